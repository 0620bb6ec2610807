"""Starts the processes of a job, runs scenarios in them, and ends them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.real_jobs.faults import RECORDED_STEPS
from tests.real_jobs.jobs import MICROBATCHES, Framework, Job

# An interpreter that has PyTorch and, for its jobs, megatron-core; without it, this one.
TORCH_PYTHON: Final = "PACELINE_TORCH_PYTHON"
FORWARD_S: Final = 0.032

# Seconds for imports and the first step, and the largest multiple of a scenario's own time.
_STARTING_S: Final = 90.0
_PATIENCE: Final = 4.0
_LOG_CHARS: Final = 4000
ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = {
    Framework.HAND_WRITTEN: "torch",
    Framework.TORCH: "torch",
    Framework.MEGATRON: "megatron",
}
_HAS_PACKAGE: Final = (
    "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
)

_running: Final[set[subprocess.Popen[bytes]]] = set()


class LaunchError(Exception):
    """The processes of a launch failed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of one run of a launch: its recording and the times of its steps.

    Parameters
    ----------
    rows : tuple of str
        The recorded operations as JSON, rank by rank.
    step_times_s : tuple of float
        Time between the ends of successive steps on the last rank, without the warm-up.
    meta : mapping or None
        The client's metadata of the session, if it recorded.
    """

    rows: tuple[str, ...]
    step_times_s: tuple[float, ...]
    meta: Mapping[str, Any] | None = None


def torch_python() -> str:
    """Return the interpreter of the workers."""
    return os.environ.get(TORCH_PYTHON) or sys.executable


@cache
def missing(framework: Framework) -> str | None:
    """Return why jobs of this framework cannot run on this machine; None if they can."""
    package, python = _PACKAGES[framework], torch_python()
    command = [python, "-c", _HAS_PACKAGE, package]
    try:
        # The user's interpreter, or this one.
        looked = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    except OSError as error:
        return f"{TORCH_PYTHON}={python}: {error.strerror}"
    if looked.returncode == 0:
        return None
    return f"{package} is not installed for {python}; {TORCH_PYTHON} names another interpreter"


def launch(
    job: Job, runs: Sequence[str], forward_s: float = FORWARD_S, *, hooked: bool = False
) -> dict[str, Measured]:
    """Run these faults one after the other in one group of processes.

    Parameters
    ----------
    hooked : bool
        The client's hooks record, and not the workers themselves.

    Raises
    ------
    LaunchError
        A process failed, or they did not end in time.
    """
    limit_s = _time_limit_s(job, len(runs), forward_s)
    with tempfile.TemporaryDirectory(prefix="paceline-real-job-") as name:
        directory = Path(name)
        log = directory / "log"
        command = [
            *(torch_python(), "-m", "tests.real_jobs.worker", job.name, ",".join(runs)),
            *("--directory", name, "--forward-s", str(forward_s)),
            *("--time-limit-s", str(math.ceil(limit_s))),
            *(("--hooked",) if hooked else ()),
        ]
        _wait(job.name, command, log, limit_s)
        return {run: _measured(directory, job, run) for run in runs}


def run_workers(name: str, arguments: Sequence[str], log: Path, limit_s: float) -> None:
    """Run a module of workers until its processes have ended.

    Raises
    ------
    LaunchError
        A process failed, or they did not end in time.
    """
    _wait(name, [torch_python(), "-m", *arguments], log, limit_s)


def _wait(name: str, command: list[str], log: Path, limit_s: float) -> None:
    with _processes(command, log) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{name} did not end in time\n{_said(log)}") from None
        if code:
            raise LaunchError(f"{name} failed\n{_said(log)}")


def _time_limit_s(job: Job, runs: int, forward_s: float) -> float:
    step_s = 3 * forward_s * job.chunks * (MICROBATCHES + job.pp)
    return _STARTING_S + _PATIENCE * runs * step_s * (1 + RECORDED_STEPS)


@contextmanager
def _processes(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the launch in a separate process group, and end all its processes at the end."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "client" / "src"))),
        # One thread for each process, because many processes share few processors.
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        # By default, PyTorch would leave a folder in another place.
        "TORCHINDUCTOR_CACHE_DIR": str(log.parent / "inductor"),
    }
    if Path("/sys/class/net/lo").exists():
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    with log.open("wb") as written:
        process = subprocess.Popen(  # noqa: S603 - our own module
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    _running.add(process)
    try:
        yield process
    finally:
        _running.discard(process)
        _end(process)


def end_all() -> None:
    """End all running launches, for example when the run is interrupted."""
    for process in tuple(_running):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # A process that ended normally has waited for all others of its group.
    if process.poll() != 0:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _said(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_CHARS:]


def _measured(directory: Path, job: Job, run: str) -> Measured:
    parts = [
        json.loads((directory / f"{run}.{rank}.json").read_text()) for rank in range(job.world)
    ]
    ends_ns = [max(ends) for ends in zip(*(part["step_ends_ns"] for part in parts), strict=True)]
    return Measured(
        tuple(row for part in parts for row in part["rows"]),
        tuple((end - start) / 1e9 for start, end in pairwise(ends_ns)),
        joined([part["meta"] for part in parts if part["meta"]]),
    )


def joined(said: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the joined metadata of all shares of a session, as the server joins them."""
    if not said:
        return None
    joined: dict[str, Any] = {}
    for meta in said:
        for key, value in meta.items():
            if isinstance(value, dict):
                joined[key] = joined.get(key, {}) | value
            else:
                joined[key] = value
    return joined

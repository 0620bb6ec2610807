"""Step times of a job with a real service, while a straggler appears and disappears."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch.distributed as dist

from benchmarks.tensor.job import Job, on_ranks
from paceline_client.tensor import Consent, Controller, Granularity, Method, Peer, pre_test

SLOW: Final = 2
SLOWDOWN: Final = 4.0
COMES: Final = 10
GOES: Final = 30
STEPS: Final = 50
# Longer than elsewhere: the service counts a rank as slow from 10 % on, which a rank that waits for
# a processor of this machine can reach.
_HEALTHY_STEP_S: Final = 0.6
_OVERHEAD_STEPS: Final = 60
_JOB: Final = "bench-tp"
_GROUP: Final = "0-0"
_STARTS_WITHIN_S: Final = 120.0
_LOG_CHARS: Final = 2000
_ROOT: Final = Path(__file__).parents[2]


class NoServiceError(Exception):
    """The service did not start; the message contains its last output."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the job.

    Parameters
    ----------
    version : int
        Version of the applied plan; 0 without a plan.
    """

    number: int
    took_s: float
    version: int
    method: Method

    @property
    def planned(self) -> bool:
        """Whether a plan was applied."""
        return self.method is not Method.NONE


@dataclass(frozen=True, slots=True)
class Followed:
    """Results of the job.

    Parameters
    ----------
    controller_s : float
        Median time of the controller in a step if all ranks call it at once, s.
    """

    steps: tuple[Step, ...]
    controller_s: float

    @property
    def slow_steps(self) -> int:
        """Number of steps from the straggler's first step until a plan is applied."""
        planned = (s.number for s in self.steps if s.number >= COMES and s.planned)
        return next(planned, STEPS) - COMES

    @property
    def held_steps(self) -> int:
        """Number of steps after the straggler's recovery until the plan is withdrawn."""
        unplanned = (s.number for s in self.steps if s.number >= GOES and not s.planned)
        return next(unplanned, STEPS) - GOES

    def median_s(self, first: int, last: int, *, planned: bool) -> float:
        """Return the median duration of steps with or without a plan, s; NaN without such steps."""
        durations_s = [
            s.took_s for s in self.steps if first <= s.number < last and s.planned is planned
        ]
        return statistics.median(durations_s) if durations_s else math.nan


def measure() -> Followed:
    """Train with a separate service, which is stopped at the end."""
    with _service() as url:
        return on_ranks(partial(_on_rank, url))[0]


def _on_rank(url: str) -> Followed:
    job = Job(Granularity.COLUMNS, _HEALTHY_STEP_S)
    costs = pre_test(job.workload, job.tp, job.train_step, steps=1)
    controller = Controller(
        job.workload,
        job.tp,
        Peer(url, _JOB, _GROUP, 1),
        Consent(apply=True, max_gamma=0.0),
        costs=costs,
    )
    # The service creates a job with its first report; only then can plans be switched on.
    for _ in range(2):
        job.train_step()
        controller.step()
    if job.tp.rank == 0:
        _switch_on(url)
    dist.barrier()
    steps: list[Step] = []
    for number in range(STEPS):
        job.pace.slowdown = SLOWDOWN if job.tp.rank == SLOW and COMES <= number < GOES else 1.0
        plan = controller.plan
        began_s = time.perf_counter()
        job.train_step()
        controller.step()
        steps.append(
            Step(
                number,
                time.perf_counter() - began_s,
                plan.version if plan is not None else 0,
                plan.method if plan is not None else Method.NONE,
            )
        )
    took_s = []
    for _ in range(_OVERHEAD_STEPS):
        dist.barrier()
        with job.watch.matmul(1):
            pass  # without any product there is nothing to report
        began_s = time.perf_counter()
        controller.step()
        took_s.append(time.perf_counter() - began_s)
    controller.close()
    return Followed(tuple(steps), statistics.median(took_s))


def _switch_on(url: str) -> None:
    """Switch plans on for the job, once the service has received a report of it."""
    body = json.dumps({"mode": "apply", "max_gamma": None, "expires_after_steps": 200}).encode()
    request = urllib.request.Request(  # noqa: S310 - our own service
        f"{url}/api/v1/jobs/{_JOB}/tp/mode",
        data=body,
        method="PUT",
        headers={"Content-Type": "application/json"},
    )
    _until_answered(request)


def _until_answered(
    request: urllib.request.Request, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Repeat a request until it is answered, or until the service's process has ended."""
    deadline_s = time.monotonic() + _STARTS_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - as above
                return
        except OSError:
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


@contextmanager
def _service() -> Iterator[str]:
    """Serve Paceline with an embedded database, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="paceline-bench-tp-") as directory:
        # As root, the database runs under another account, which must be able to enter the
        # directory.
        Path(directory).chmod(0o755)
        command = [sys.executable, "-m", "app.cli.main", "serve"]
        command += ["--port", str(port), "--data-dir", directory]
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                cwd=_ROOT,
                env=os.environ | {"PYTHONPATH": os.environ.get("PYTHONPATH", str(_ROOT))},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            try:
                ready = urllib.request.Request(f"{url}/readyz")  # noqa: S310 - as above
                _until_answered(ready, process)
            except OSError as error:
                said = (Path(directory) / "log").read_text(errors="replace")[-_LOG_CHARS:]
                raise NoServiceError(f"{' '.join(command)}:\n{said}") from error
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def data(followed: Followed) -> str:
    """Return the steps as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", "slow", "step_ms", "plan", "method"])
    for step in followed.steps:
        slow = int(COMES <= step.number < GOES)
        took = f"{1000 * step.took_s:.1f}"
        writer.writerow([step.number, slow, took, step.version, step.method.value])
    return out.getvalue()

"""Repeated attachments: each one is an attempt, whose sessions arrive and are analyzed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.client.conftest import environment, fall_silent
from tests.real_jobs.launching import torch_python
from tests.support.nightly import every_night

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation

# Variables in which launchers give the name of a run and its number of restarts.
_NAMED: Final = {
    "PACELINE_RUN_ID": "PACELINE_RESTART",
    "SLURM_JOB_ID": "SLURM_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID": "TORCHELASTIC_RESTART_COUNT",
}
*_NAMED_BEFORE, _NAMED_LAST = _NAMED
LIMIT_S: Final = 200
_JUDGED: Final = {"analyzed", "no_verdict"}
_SCRIPT: Final = Path(__file__).with_name("attaching.py")


def run(installation: Installation, tmp_path: Path, *words: str, **named: str) -> None:
    """Run attaching.py to its end."""
    done = start(installation, tmp_path, *words, **named)
    try:
        said, _ = done.communicate(timeout=LIMIT_S)
    finally:
        done.kill()
    assert done.returncode == 0, said


def start(
    installation: Installation, tmp_path: Path, *words: str, **named: str
) -> subprocess.Popen[str]:
    command = [torch_python(), str(_SCRIPT), *words]
    if words[0] == "torchrun":
        options = ["--nproc-per-node=2", "--max-restarts=2", "--rdzv-id=run", "--standalone"]
        command = [torch_python(), "-m", "torch.distributed.run", *options, str(_SCRIPT), *words]
    return subprocess.Popen(  # noqa: S603 - our own script
        command,
        env=environment()
        | {"PACELINE_SPOOL": str(tmp_path / "spool"), "URL": installation.url}
        | {"TMPDIR": str(tmp_path)}
        # Otherwise gloo may try the addresses of the last start, which the shared store still
        # contains.
        | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        | named,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def judged(installation: Installation) -> list[tuple[int, int]]:
    """Analyze all sessions and check their verdicts; return attempt and number of each."""
    installation.analyze_all()
    sessions = installation.client.get("/api/v1/sessions").json()["sessions"]
    assert {one["state"] for one in sessions} <= _JUDGED, [one["reason"] for one in sessions]
    return sorted((one["attempt"], one["session"]) for one in sessions)


@pytest.mark.parametrize("launcher", [_NAMED_LAST, *every_night(*_NAMED_BEFORE)])
def test_a_process_that_attaches_again_and_again_has_an_attempt_each_time(
    installation: Installation, tmp_path: Path, launcher: str
) -> None:
    """Attachments one after the other, two at the same time, and a script that runs twice."""
    named = {launcher: "run", _NAMED[launcher]: "0"}
    run(installation, tmp_path, "after", **named)
    assert judged(installation) == [(1, 3), (2, 3)]
    run(installation, tmp_path, "together", **named)
    assert judged(installation) == [(1, 3), (2, 3), (3, 3), (4, 3)]
    assert not list((tmp_path / "spool").glob("*.share"))


def test_a_restart_that_goes_back_to_a_checkpoint_is_an_attempt_of_its_own(
    installation: Installation, tmp_path: Path
) -> None:
    """One of torchrun's two ranks fails in the middle of a window, and the other one is ended."""
    run(installation, tmp_path, "torchrun")
    fall_silent(installation)
    # The window from step 4 on was recorded by both attempts.
    assert judged(installation) == [(1, 5), (2, 5)]


def test_cells_of_a_notebook_that_run_again_and_a_kernel_that_is_killed(
    installation: Installation, tmp_path: Path
) -> None:
    kernel = start(installation, tmp_path, "notebook")
    assert kernel.stdout is not None
    with kernel:
        said = []
        while (line := kernel.stdout.readline()) not in {"trained\n", ""}:
            said.append(line)
        os.kill(kernel.pid, signal.SIGKILL)
    assert line, said
    fall_silent(installation, 601.0)
    assert judged(installation) == [(1, 3), (2, 3)]

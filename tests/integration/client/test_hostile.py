"""A training with a hostile server: the same losses, no more memory, and an end in time.

The training is a process of its own, whose end is awaited for `ENDS_WITHIN_S`: the client promises
five seconds at the exit, and an endless answer lasts as long as the client listens. A client that
keeps its promise only for each read would never end. So no duration is asserted that a busy machine
could lengthen; the measured ones are printed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import skip_or_fail
from tests.integration.client.conftest import environment
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import missing, torch_python
from tests.support.hostile_server import KINDS, HostileServer, hostile_server

MOST_GROWN: Final = 20 << 20
ENDS_WITHIN_S: Final = 90.0
# The whole list of trainings, one after another.
LIST_WITHIN_S: Final = 600.0
TRAINING: Final = Path(__file__).with_name("hostile_training.py")
# At the exit, with the usual time limits.
AT_EXIT: Final = ("drip_body", "silence", "endless_continue", "record_20_digits")


@pytest.fixture
def server() -> Iterator[HostileServer]:
    reason = missing(Framework.TORCH)
    if reason is not None:
        skip_or_fail(reason)
    with hostile_server() as server:
        yield server


def start(server: HostileServer, directory: Path, *kinds: str) -> subprocess.Popen[str]:
    directory.mkdir()
    url = server.url(kinds[0]).removesuffix(f"/{kinds[0]}")
    return subprocess.Popen(  # noqa: S603 - our own script
        [torch_python(), str(TRAINING), url, str(directory), *kinds],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_of(process: subprocess.Popen[str], directory: Path, within_s: float) -> dict[str, Any]:
    """Wait for the end of the process and return its result, checked for losses and memory."""
    try:
        said = process.communicate(timeout=within_s)[1]
    finally:
        process.kill()
    assert process.returncode == 0, said
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    expected = result["trainings"][""]["losses"]
    assert len(set(expected)) == len(expected), "it learns"
    for kind, training in result["trainings"].items():
        assert training["losses"] == expected, kind
        assert training["grown"] <= MOST_GROWN, kind
    return result


def test_the_process_ends_by_itself_whatever_holds_its_last_requests(
    server: HostileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = {kind: start(server, tmp_path / kind, kind) for kind in AT_EXIT}
    for kind, process in processes.items():
        result = result_of(process, tmp_path / kind, ENDS_WITHIN_S)
        with capsys.disabled():
            print(f"\n{kind}: exit in {result['exit_s']:.1f} s")  # noqa: T201 - the figure


@pytest.mark.slow
def test_losses_and_memory_are_the_same_with_every_kind_of_answer(
    server: HostileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start(server, tmp_path / "job", *KINDS)
    result = result_of(process, tmp_path / "job", LIST_WITHIN_S)["trainings"]
    with capsys.disabled():
        for figure, unit in (("grown", 1 << 20), ("closed_s", 1.0)):
            kind = max(KINDS, key=lambda kind: float(result[kind][figure]))
            print(f"\nlargest {figure}: {result[kind][figure] / unit:.1f}, {kind}")  # noqa: T201

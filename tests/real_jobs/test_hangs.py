"""Real jobs that hang: their culprits are found in the dumps that PyTorch writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.verdict import judge_hang
from app.hangs.files import job_of, read_hang_file
from tests.conftest import skip_or_fail
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import ROOT, missing, torch_python
from tests.support.nightly import every_night

CULPRIT = 2
LIMIT_S = 120


def hang_of(kind: str, directory: Path) -> Hang:
    reason = missing(Framework.TORCH)
    if reason is not None:
        skip_or_fail(reason)
    subprocess.run(  # noqa: S603 - our own module
        [torch_python(), "-m", "tests.real_jobs.worker.hanging", kind, str(directory)],
        cwd=ROOT,
        check=True,
        timeout=LIMIT_S,
    )
    paths = sorted([*directory.glob("_dump_*"), *directory.glob("stack_*")])
    return judge_hang(
        job_of(file for path in paths for file in read_hang_file(path.name, path.read_bytes()))
    )


def test_a_rank_that_sleeps_before_a_collective_is_named(tmp_path: Path) -> None:
    hang = hang_of("sleeps", tmp_path)
    assert [(one.rank, one.kind) for one in hang.culprits] == [(CULPRIT, HangKind.NEVER_ENTERED)]
    assert hang.waiting == (0, 1, 3)
    assert "gloo:all_reduce" in hang.culprits[0].operation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "function"),
    [("forward", "forward"), ("loader", "batches"), *every_night(("fsdp2", "forward"))],
)
def test_a_rank_of_a_training_that_hangs_is_named_with_its_line(
    kind: str, function: str, tmp_path: Path
) -> None:
    hang = hang_of(kind, tmp_path)
    assert [(one.rank, one.kind) for one in hang.culprits] == [(CULPRIT, HangKind.NEVER_ENTERED)]
    assert hang.waiting == (0, 1, 3)
    frame = hang.culprits[0].stack[0]
    assert (frame.function, Path(frame.file).name) == (function, "hanging.py")


@pytest.mark.slow
def test_a_stage_that_hangs_is_named_by_the_stacks_alone(tmp_path: Path) -> None:
    hang = hang_of("pipeline", tmp_path)
    # Gloo's recorder contains no transfers.
    assert [(one.rank, one.kind) for one in hang.culprits] == [(CULPRIT, HangKind.NEVER_ENTERED)]
    assert hang.waiting == (0, 1, 3)
    assert hang.culprits[0].stack[0].function == "forward"
    assert "_wait_batch_p2p" in hang.culprits[0].operation
    assert hang.confidence < 0.95


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_silent(tmp_path: Path) -> None:
    hang = hang_of("stopped", tmp_path)
    assert [(one.rank, one.kind) for one in hang.culprits] == [(CULPRIT, HangKind.SILENT)]
    # Gloo's recorder lists no groups, so it is unknown that rank 3's group has another rank.
    assert hang.waiting == (0, 1)


@pytest.mark.slow
def test_ranks_that_call_collectives_in_another_order_are_no_machines_fault(
    tmp_path: Path,
) -> None:
    hang = hang_of("another-order", tmp_path)
    assert {one.kind for one in hang.culprits} == {HangKind.MISMATCH}
    assert CULPRIT in {one.rank for one in hang.culprits}

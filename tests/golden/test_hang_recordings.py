"""Verdicts on published dumps of jobs in which two ranks were made to fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.verdict import judge_hang
from app.hangs.files import job_of, read_hang_file
from tests.conftest import skip_or_fail


@pytest.fixture(scope="module")
def folder() -> Path:
    named = os.environ.get("PACELINE_REFERENCE_DATA")
    if not named:
        skip_or_fail(
            "PACELINE_REFERENCE_DATA is not set; next to its folder are dumps of flight recorders "
            "(https://github.com/NVIDIA/nvidia-resiliency-ext)"
        )
    return Path(named).resolve().parent / "flight-recorder"


def hang_of(recording: Path) -> Hang:
    paths = sorted(recording.iterdir())
    return judge_hang(
        job_of(file for path in paths for file in read_hang_file(path.name, path.read_bytes()))
    )


@pytest.mark.parametrize(
    ("recording", "kind", "culprits", "operation"),
    [
        ("gpu_error_1st", HangKind.DEVICE_STUCK, (12, 14), "nccl:_all_gather_base 42806"),
        ("lock_gil_1st", HangKind.NEVER_ENTERED, (9, 14), "nccl:all_to_all 45265"),
    ],
)
def test_the_ranks_that_were_made_to_fail_are_named_and_no_other(
    folder: Path, recording: str, kind: HangKind, culprits: tuple[int, ...], operation: str
) -> None:
    hang = hang_of(folder / recording)
    assert tuple(one.rank for one in hang.culprits) == culprits
    assert {one.kind for one in hang.culprits} == {kind}
    assert operation in hang.culprits[0].operation
    assert hang.waiting == tuple(rank for rank in range(16) if rank not in culprits)

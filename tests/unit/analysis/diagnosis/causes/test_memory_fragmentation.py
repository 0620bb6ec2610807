from __future__ import annotations

import pytest

from app.analysis.diagnosis.causes.memory_fragmentation import MEMORY_FRAGMENTATION
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    MemoryFragmentation,
    TensorParallelStraggler,
)
from app.analysis.synthesis.job import JobModel
from tests.unit.analysis.diagnosis.jobs import (
    MS,
    TENSOR,
    check_named_alone,
    diagnosed,
    evidence,
    found,
    session,
    signs_of,
)


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (MemoryFragmentation((2, 1), 40 * MS), TENSOR),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert MEMORY_FRAGMENTATION.find(signs_of(session(job=TENSOR))) is None
    assert MEMORY_FRAGMENTATION.find(signs_of(session())) is None


def test_a_group_that_waits_for_one_rank_alone_is_not_fragmented() -> None:
    synthetic = session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR)

    assert MEMORY_FRAGMENTATION.find(signs_of(synthetic)) is None


def test_evidence_says_that_another_rank_is_late_each_time() -> None:
    text = evidence(diagnosed(session(MemoryFragmentation((2, 1), 40 * MS), job=TENSOR)))

    assert text.startswith("The ranks of worker (2, 1) on node-")
    assert "for one rank or another" in text


def test_without_it_no_computation_of_another_worker_changes() -> None:
    finding = found(
        MEMORY_FRAGMENTATION, signs_of(session(MemoryFragmentation((2, 1), 40 * MS), job=TENSOR))
    )

    less = list(finding.change.less_ns.values())
    assert less
    assert all((lost_ns[:, :2] == 0).all() for lost_ns in less)
    assert sum(float(lost_ns[:, 2].sum()) for lost_ns in less) > 40 * MS

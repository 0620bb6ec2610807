from __future__ import annotations

import pytest

from app.analysis.diagnosis.tensor_waits import (
    computations_without,
    has_tensor_ranks,
    measure_waits,
    waiting_groups,
)
from app.analysis.synthesis.injections.computations import TensorParallelStraggler
from tests.unit.analysis.diagnosis.jobs import TENSOR, observe, session


def test_a_group_waits_for_its_straggler_as_long_as_it_is_slower() -> None:
    observation = observe(session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR))

    waits = {wait.cell: wait for wait in measure_waits(observation)}
    assert len(waits) == 6
    assert set(waits[2, 1].last.tolist()) == {3}
    slow, fast = waits[2, 1].wait_ns.mean(), waits[0, 0].wait_ns.mean()
    assert slow > 10 * fast
    (group,) = waiting_groups(observation, list(waits.values()))
    assert (group.cell, group.slowest, group.of_one_rank) == ((2, 1), 3, True)
    total = sum(float(less.sum()) for less in computations_without(observation, [group]).values())
    assert total == pytest.approx(waits[2, 1].wait_ns.sum())


def test_ranks_that_record_no_collectives_are_no_tensor_ranks() -> None:
    assert has_tensor_ranks(session(job=TENSOR).trace)
    assert not has_tensor_ranks(session().trace)

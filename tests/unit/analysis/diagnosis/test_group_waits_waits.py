from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.group_waits import (
    THRESHOLDS,
    computations_without,
    has_tensor_ranks,
    measure_waits,
    waiting_groups,
    without_waits,
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
    assert group.typical < 0.1 * group.share
    total = sum(float(less.sum()) for less in computations_without(observation, [group]).values())
    # Without the waiting of healthy groups, which compute for a shorter time.
    beyond = 1 - group.typical * (1 - group.share) / group.share
    assert 0.9 < beyond < 1
    assert total == pytest.approx(beyond * waits[2, 1].wait_ns.sum())


def test_a_step_without_a_straggler_is_off_by_what_healthy_groups_differ() -> None:
    observation = observe(session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR))
    waits = measure_waits(observation)
    (group,) = waiting_groups(observation, waits)

    # The group is in one of three DP ranks.
    assert without_waits(observation, [group]).reference == pytest.approx(group.typical / 2 / 3)
    assert without_waits(observation, [group]).longer == 0
    (alone,) = waiting_groups(observation, [wait for wait in waits if wait.cell == (2, 1)])
    assert alone.typical == THRESHOLDS.typical_wait
    # Without a healthy group, the usual waiting is unknown and may be longer.
    assert without_waits(observation, [alone]).longer == pytest.approx(THRESHOLDS.typical_wait / 3)


def test_the_more_groups_wait_the_better_is_known_what_they_wait_together() -> None:
    observation = observe(session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR))
    (group,) = waiting_groups(observation, measure_waits(observation))
    same_rank = replace(group, waits=replace(group.waits, cell=(2, 0)))

    alone = without_waits(observation, [group]).reference
    assert without_waits(observation, [group, same_rank]).reference == pytest.approx(alone / 2**0.5)


def test_what_other_groups_of_a_cell_wait_is_no_waiting_of_a_group() -> None:
    synthetic = session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR)
    trace = synthetic.trace
    sizes = trace.meta.sizes
    plain = {wait.cell: wait for wait in measure_waits(observe(synthetic))}
    # The same ranks, as two groups of half the size.
    halved = replace(trace, meta=replace(trace.meta, sizes=replace(sizes, tp=sizes.tp // 2, cp=2)))
    waits = {wait.cell: wait for wait in measure_waits(observe(replace(synthetic, trace=halved)))}

    assert plain.keys() == waits.keys()
    assert waits[2, 1].ranks.tolist() == plain[2, 1].ranks[sizes.tp // 2 :].tolist()
    assert set(waits[2, 1].last.tolist()) == {1}


def test_ranks_that_record_no_collectives_are_no_tensor_ranks() -> None:
    assert has_tensor_ranks(session(job=TENSOR).trace)
    assert not has_tensor_ranks(session().trace)

"""1F1B, compared with worked examples and with the synthesizer's executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.planning.template import simulate
from app.analysis.synthesis.costs import healthy_work
from app.analysis.synthesis.execution import execute
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.program import build_program
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    KNOWN_OP_TYPES,
    Sizes,
)


def test_one_stage_takes_the_sum() -> None:
    line = simulate([3], [5], [], [], 4)
    assert line.iteration_ps == 4 * 8


def test_equal_stages_take_what_the_formula_says() -> None:
    # Fill and drain of S − 1 stages, and N_b microbatches.
    line = simulate([10] * 4, [20] * 4, [0] * 3, [0] * 3, 8)
    assert line.iteration_ps == (8 + 4 - 1) * 30


def test_last_stage_alternates() -> None:
    line = simulate([1, 1], [1, 1], [0], [0], 3)
    forward, backward = line.start_ps[0, 1], line.start_ps[1, 1]
    assert forward.tolist() == [1, 3, 5]
    assert backward.tolist() == [2, 4, 6]


def test_transfers_delay_the_neighbor_and_share_a_link() -> None:
    line = simulate([1, 1], [1, 1], [10], [0], 2)
    # Both microbatches are computed at the same time, but their transfers follow each other.
    assert line.start_ps[0, 1].tolist() == [11, 21]


def test_fewer_microbatches_than_stages() -> None:
    line = simulate([1] * 5, [1] * 5, [0] * 4, [0] * 4, 2)
    assert (line.end_ps > 0).all()
    assert line.iteration_ps == 2 * (2 + 5 - 1)


@pytest.mark.parametrize("seed", range(20))
def test_is_never_below_its_bounds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    stages, microbatches = int(draw.integers(1, 9)), int(draw.integers(1, 30))
    forward = draw.integers(1, 100, stages).tolist()
    backward = draw.integers(1, 100, stages).tolist()
    sends = draw.integers(0, 30, stages - 1).tolist()
    line = simulate(forward, backward, sends, sends, microbatches)
    busy = [microbatches * (f + b) for f, b in zip(forward, backward, strict=True)]
    assert line.busy_ps().tolist() == busy
    for k in range(stages):
        ahead = sum(forward[:k]) + sum(backward[:k]) + 2 * sum(sends[:k])
        assert line.iteration_ps >= ahead + busy[k]
    # The computations of a stage do not overlap.
    starts = np.sort(np.concatenate([line.start_ps[0], line.start_ps[1]], axis=1), axis=1)
    ends = np.sort(np.concatenate([line.end_ps[0], line.end_ps[1]], axis=1), axis=1)
    assert (starts[:, 1:] >= ends[:, :-1]).all()


def executed_ns(costs: tuple[list[int], list[int]], sends: list[int], microbatches: int) -> int:
    """Return the iteration of the same pipeline by the synthesizer's executor in ns."""
    stages = len(costs[0])
    job = JobModel(
        sizes=Sizes(dp=1, pp=stages), microbatches=microbatches, steps=1, op_types=frozenset()
    )
    program = build_program(job)
    duration = np.zeros((len(program), 1, 1))
    names = [KNOWN_OP_TYPES[code] for code in program.op]
    for i, (name, stage) in enumerate(zip(names, program.stage, strict=True)):
        if name in {FORWARD_COMPUTE, BACKWARD_COMPUTE}:
            duration[i] = costs[name == BACKWARD_COMPUTE][stage]
        elif name in {FORWARD_SEND, BACKWARD_RECV}:
            duration[i] = sends[stage]
        elif name in {FORWARD_RECV, BACKWARD_SEND}:
            duration[i] = sends[stage - 1]
    healthy = healthy_work(job, program, seed=0)
    work = replace(healthy, duration_ns=duration, delay_ns=np.zeros_like(duration))
    return int(execute(work).step_times_ns()[0])


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_the_synthesizer(seed: int) -> None:
    draw = np.random.default_rng(seed)
    stages, microbatches = int(draw.integers(2, 7)), int(draw.integers(6, 20))
    forward = draw.integers(1, 100, stages).tolist()
    backward = draw.integers(1, 100, stages).tolist()
    none = [0] * (stages - 1)
    line = simulate(forward, backward, none, none, microbatches)
    assert line.iteration_ps == executed_ns((forward, backward), none, microbatches)
    # The synthesizer posts a receive only after the computation before, so it is never faster.
    sends = draw.integers(1, 30, stages - 1).tolist()
    line = simulate(forward, backward, sends, sends, microbatches)
    assert line.iteration_ps <= executed_ns((forward, backward), sends, microbatches)

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.sequence_lengths import SEQUENCE_LENGTHS
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    RotatingWorker,
    SequenceLengths,
    SlowTogether,
    SlowWorker,
    ThermalThrottling,
)
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.synthesis.synthesize import true_slowdown
from app.analysis.trace.model import Sizes
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import World
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    ONE_RANK,
    ONE_STAGE,
    check_named_alone,
    diagnosed,
    evidence,
    found,
    session,
    signs_of,
)
from tests.unit.analysis.diagnosis.second_physics import PLAIN, names, report_of


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (SequenceLengths(), JOB),
        (SequenceLengths(), ONE_STAGE),
        (SequenceLengths(), ONE_RANK),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert SEQUENCE_LENGTHS.find(signs_of(session())) is None


def test_even_microbatches_take_the_same_time_on_all_dp_ranks() -> None:
    signs = signs_of(session(SequenceLengths()))
    finding = found(SEQUENCE_LENGTHS, signs)

    observation = signs.observation
    for nodes in observation.passes["backward-compute"].nodes:
        factors = np.stack([finding.change.times[node] for node in nodes.tolist()])
        times = observation.recorded_ns[nodes] * factors
        assert times.std() / times.mean() < 0.05
        assert times.mean() == pytest.approx(observation.recorded_ns[nodes].mean(), rel=0.05)


def test_recorded_sequence_lengths_are_held_against_the_times() -> None:
    job = replace(JOB, profiler=Profiler(sequence_lengths=True))

    assert "follow Σs²" in evidence(diagnosed(session(SequenceLengths(), job=job)))
    assert "follow Σs²" not in evidence(diagnosed(session(SequenceLengths())))


@pytest.mark.parametrize(
    "lane",
    [
        7,
        "a text as long",
        {"0": [512]},
        [512] * 8,
        [None] * 8,
        [["512"]] * 8,
        [[True]] * 8,
        [[-512]] * 8,
        [[float("nan")]] * 8,
        [[10**200]] * 8,
    ],
    ids=str,
)
def test_an_invalid_list_of_sequence_lengths_is_left_alone(lane: object) -> None:
    trace = session(SequenceLengths()).trace
    recorded = {str(step): [lane] * JOB.sizes.dp for step in np.unique(trace.step).tolist()}
    report = analyze(
        replace(trace, meta=replace(trace.meta, extra={"sequence_lengths": recorded}))
    ).report

    assert report.causes[0].cause == "sequence_length_imbalance"
    assert "Σs²" not in " ".join(report.causes[0].evidence)


def lengthen(world: World, factor: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    """Lengthen microbatches by factors of shape (microbatches, steps, dp)."""
    world.forward_s[:] *= factor
    world.backward_s[:] *= factor


@pytest.mark.parametrize(
    "shape", [PLAIN, replace(PLAIN, dp=1), replace(PLAIN, pp=1, dp=6)], ids=["dp 4", "dp 1", "pp 1"]
)
def test_a_few_long_microbatches_are_enough(shape: Shape) -> None:
    def strike(world: World) -> None:
        rng = np.random.default_rng(1)
        long = rng.random(world.forward_s.shape[2:]) < 0.08
        lengthen(world, np.where(long, 3.0, 1.0))

    report, _ = report_of(shape, strike)

    assert names(report) == ["sequence_length_imbalance"]
    assert "take 3.0× as long as the median" in " ".join(report.causes[0].evidence)


def test_bursts_of_one_worker_are_no_long_microbatches() -> None:
    def strike(world: World) -> None:
        world.forward_s[:, :, 2:4, ::2, 1] *= 3
        world.backward_s[:, :, 2:4, ::2, 1] *= 3

    report, _ = report_of(replace(PLAIN, pp=1), strike)

    assert names(report) == ["slow_worker"]
    assert report.causes[0].where.workers == ((1, 0),)


@pytest.mark.parametrize("recorded", [True, False])
def test_recorded_lengths_tell_long_microbatches_from_bursts(*, recorded: bool) -> None:
    def strike(world: World) -> World:
        factor = np.ones(world.forward_s.shape[2:])
        factor[2:4, ::2, 1] = 4.0
        lengthen(world, factor)
        lengths = tuple(
            tuple(tuple((int(1000 * mb),) for mb in lane) for lane in step)
            for step in np.moveaxis(factor, 0, -1)
        )
        return replace(world, lengths=lengths)

    report, _ = report_of(replace(PLAIN, dp=2, pp=1, lengths_recorded=recorded), strike)

    assert names(report) == ["sequence_length_imbalance" if recorded else "slow_worker"]


@pytest.mark.parametrize("dp", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_worker_is_accused_with_them(dp: int, seed: int) -> None:
    def strike(world: World) -> None:
        rng = np.random.default_rng(seed)
        factor = rng.uniform(0.3, 1.7, world.forward_s.shape[2:])
        lengthen(world, factor)
        # The head's cost per token is constant, so the last stage differs less between
        # microbatches.
        world.forward_s[-1] *= (0.5 + 0.5 * factor) / factor
        world.backward_s[-1] *= (0.5 + 0.5 * factor) / factor

    report, _ = report_of(replace(PLAIN, pp=2, dp=dp), strike, seed)

    assert names(report) == ["sequence_length_imbalance"]


# One microbatch a step and no pipeline, as most people train with DDP.
SINGLE = replace(ONE_STAGE, sizes=Sizes(dp=8, pp=1), microbatches=1, steps=16)
UNEVEN = SequenceLengths(median_length=8_000)


@pytest.mark.parametrize("dp", [3, 4, 8, 16])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_single_microbatch_a_step_is_compared_with_those_of_other_ranks(
    dp: int, *, recorded: bool
) -> None:
    profiler = Profiler(sequence_lengths=recorded)
    job = replace(SINGLE, sizes=Sizes(dp=dp, pp=1), profiler=profiler)
    diagnosis = diagnosed(session(UNEVEN, job=job))

    assert [cause.cause for cause in diagnosis.causes] == ["sequence_length_imbalance"]
    assert diagnosis.slowdown == pytest.approx(true_slowdown(job, (UNEVEN,), seed=5), rel=0.03)


@pytest.mark.parametrize("dp", [4, 8])
@pytest.mark.parametrize(
    "injection",
    [
        SlowWorker((1, 0), 1.5),
        SlowWorker((1, 0), 1.5, Spells(share=0.5)),
        RotatingWorker(1.4),
        ThermalThrottling((1, 0), 1.6, 6),
        SlowTogether(1.4, 4, 8),
    ],
    ids=["slow", "spells", "rotating", "hot", "together"],
)
def test_other_causes_are_not_taken_for_single_microbatches_of_other_lengths(
    injection: Injection, dp: int
) -> None:
    job = replace(SINGLE, sizes=Sizes(dp=dp, pp=1))

    assert SEQUENCE_LENGTHS.find(signs_of(session(injection, job=job))) is None

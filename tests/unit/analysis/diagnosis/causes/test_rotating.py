from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest

from app.analysis.diagnosis.causes.rotating import ROTATING
from app.analysis.diagnosis.finding import Rotation
from app.analysis.report.build import analyze
from app.analysis.synthesis.execution import StepWork
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    RotatingWorker,
    SequenceLengths,
    SlowWorker,
    ThermalThrottling,
)
from app.analysis.synthesis.injections.delays import Congestion
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import true_slowdown
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, Sizes
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    MS,
    ONE_STAGE,
    causes,
    diagnosed,
    evidence,
    session,
    signs_of,
)


@dataclass(frozen=True, slots=True)
class Pauses(Injection):
    """In each step a random worker, or all workers of its host, pause in one computation."""

    pause_ns: float
    op: str  # the type of the computation
    before: bool  # whether the pause delays its launch; else it lengthens it
    by_host: bool
    cause: ClassVar[str] = "rotating"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Lengthen or delay a computation of the pausing workers."""
        program, sizes = work.program, job.sizes
        changed = work.delay_ns if self.before else work.duration_ns
        for step, chosen in enumerate(rng.integers(sizes.workers, size=job.steps).tolist()):
            place = divmod(chosen, sizes.pp)
            for dp, pp in product(range(sizes.dp), range(sizes.pp)):
                host, other = (
                    job.traced_rank(*worker) // job.gpus_per_host for worker in (place, (dp, pp))
                )
                if (dp, pp) == place or (self.by_host and other == host):
                    nodes = np.flatnonzero(program.of_types(self.op) & (program.stage == pp))
                    changed[nodes[len(nodes) // 2], step, dp] += self.pause_ns


LONG = replace(JOB, steps=24)
FLAT = replace(ONE_STAGE, sizes=Sizes(dp=8, pp=1), steps=40)


@pytest.mark.parametrize("factor", [1.2, 1.4])
@pytest.mark.parametrize(
    "sizes",
    [Sizes(dp=4, pp=1), Sizes(dp=8, pp=1), Sizes(dp=4, pp=2), Sizes(dp=16, pp=4)],
    ids=["4", "8", "4 by 2", "16 by 4"],
)
def test_another_worker_in_each_step_is_named_alone(sizes: Sizes, factor: float) -> None:
    job = replace(FLAT, sizes=sizes)
    synthetic = session(RotatingWorker(factor), job=job)
    diagnosis = diagnosed(synthetic)

    assert causes(diagnosis) == ["rotating"]
    assert diagnosis.slowdown == pytest.approx(
        true_slowdown(job, (RotatingWorker(factor),), seed=5), rel=0.02
    )


def test_no_worker_is_to_be_replaced() -> None:
    report = analyze(session(RotatingWorker(1.4), job=FLAT).trace).report

    assert "no worker is slow: another one in each step, 1.40×" in report.verdict.sentence
    assert [fix.action for fix in report.recommendations] == ["even_steps"]
    assert report.causes[0].where.workers == ()
    figure = report.causes[0].figure
    assert isinstance(figure, Rotation)
    assert sum(map(sum, figure.slowest)) == 40
    assert len(figure.slowest) == 8


def test_it_may_leave_out_steps() -> None:
    report = analyze(session(RotatingWorker(1.4, Spells(share=0.6)), job=FLAT).trace).report

    assert [cause.cause for cause in report.causes] == ["rotating"]
    assert "of 40 steps, 1.40×" in report.verdict.sentence


@pytest.mark.parametrize(
    "injection",
    [
        SlowWorker((2, 0), 1.5),
        SlowWorker((2, 0), 1.5, Spells(share=0.5)),
        SlowWorker((2, 0), 1.5, Spells(from_step=10)),
        ThermalThrottling((2, 0), 1.9, 10, 3),
        SequenceLengths(),
        GarbageCollection(250 * MS, pauses=0.4),
        Congestion(8.0, 9),
    ],
    ids=["slow", "by spells", "since a step", "hot", "lengths", "collections", "congestion"],
)
def test_other_causes_are_not_taken_for_it(injection: Injection) -> None:
    for job in (FLAT, LONG):
        assert "rotating" not in causes(diagnosed(session(injection, job=job)))


def test_two_workers_with_spells_are_slow() -> None:
    spells = Spells(share=0.5, length=4)
    synthetic = session(SlowWorker((2, 0), 1.5, spells), SlowWorker((5, 0), 1.5, spells), job=FLAT)
    diagnosis = diagnosed(synthetic)

    assert causes(diagnosis) == ["slow_worker"]
    assert sorted(diagnosis.causes[0].where.workers) == [(2, 0), (5, 0)]


def test_a_slow_worker_as_well_is_named_alone_among_workers() -> None:
    both = (RotatingWorker(1.4), SlowWorker((2, 0), 1.4))
    diagnosis = diagnosed(session(*both, job=FLAT))

    assert sorted(causes(diagnosis)) == ["rotating", "slow_worker"]
    (worker,) = (cause for cause in diagnosis.causes if cause.cause == "slow_worker")
    assert worker.where.workers == ((2, 0),)
    assert diagnosis.slowdown == pytest.approx(true_slowdown(FLAT, both, seed=5), rel=0.03)


@pytest.mark.parametrize("job", [FLAT, LONG])
def test_a_healthy_job_has_none(job: JobModel) -> None:
    assert ROTATING.find(signs_of(session(job=job))) is None


@pytest.mark.parametrize("by_host", [False, True], ids=["worker", "host"])
@pytest.mark.parametrize("before", [False, True], ids=["within", "before"])
@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, sizes=Sizes(dp=8, pp=2), steps=16, gpus_per_host=4),
        replace(FLAT, sizes=Sizes(dp=12, pp=1), microbatches=1, steps=16, gpus_per_host=4),
    ],
    ids=["8 by 2", "12"],
)
def test_hosts_that_pause_in_turn_are_named_alone(
    job: JobModel, *, before: bool, by_host: bool
) -> None:
    pauses = Pauses(400 * MS, BACKWARD_COMPUTE, before, by_host)
    diagnosis = diagnosed(session(pauses, job=job))

    assert causes(diagnosis) == ["rotating"]
    assert "pauses that each host has at its own time" in evidence(diagnosis)
    assert diagnosis.slowdown == pytest.approx(true_slowdown(job, (pauses,), seed=5), rel=0.02)


@pytest.mark.parametrize("before", [False, True], ids=["within", "before"])
def test_pauses_of_forwards_alone_are_garbage_collections(*, before: bool) -> None:
    job = replace(JOB, sizes=Sizes(dp=8, pp=2), steps=16)
    pauses = Pauses(400 * MS, FORWARD_COMPUTE, before, by_host=False)

    assert causes(diagnosed(session(pauses, job=job))) == ["garbage_collection"]

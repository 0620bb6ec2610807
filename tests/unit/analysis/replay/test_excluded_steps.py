from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest

from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SequenceLengths,
    SlowWorker,
    ThermalThrottling,
)
from app.analysis.synthesis.injections.delays import Checkpoint, SlowDataLoading
from app.analysis.synthesis.job import JobModel, Needs, draw_job, stream
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, Sizes

if TYPE_CHECKING:
    from app.analysis.synthesis.execution import StepWork

FLAT = JobModel(sizes=Sizes(dp=8, pp=1), microbatches=6, steps=20)
PIPELINE = JobModel(sizes=Sizes(dp=2, pp=2), microbatches=8, steps=20)
SLOW = SlowWorker((3, 0), 1.4)
# one second in nanoseconds
S = 1e9


@dataclass(frozen=True, slots=True)
class WarmUp(Injection):
    """In some steps all workers compute longer, as while kernels are compiled and tuned."""

    steps: tuple[int, ...]  # positions among the recorded ones
    times: float  # how many times as long
    first_only: bool = False  # whether only each stage's first forward and backward does
    cause: ClassVar[str] = ""

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:  # noqa: ARG002 - nothing is random
        """Lengthen the computations of all workers."""
        program, steps = work.program, np.array(self.steps)
        for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE):
            for stage in range(job.sizes.pp):
                nodes = np.flatnonzero(program.of_types(name) & (program.stage == stage))
                chosen = nodes[:1] if self.first_only else nodes
                work.duration_ns[np.ix_(chosen, steps)] *= self.times

    def odd(self) -> tuple[int, ...]:
        """Return the positions of the steps."""
        return self.steps


@dataclass(frozen=True, slots=True)
class ProfilerStart(Injection):
    """Ranks begin the first recorded step one after another."""

    apart_ns: float  # from the first one to the last
    cause: ClassVar[str] = ""

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        """Delay the first operations of each rank, which wait for nothing."""
        program = work.program
        late = rng.uniform(0, self.apart_ns, (job.sizes.pp, job.sizes.dp))
        late[0, 0], late.flat[-1] = 0.0, self.apart_ns
        for node, before in enumerate(program.after):
            if not before:
                work.delay_ns[node, 0] += late[program.stage[node]]

    def odd(self) -> tuple[int, ...]:
        """Return the first step."""
        return (0,)


@dataclass(frozen=True, slots=True)
class UnrecordedPause(Injection):
    """A rank pauses after each step, so that it begins all steps but the first one late."""

    pause_ns: float
    cause: ClassVar[str] = ""

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:  # noqa: ARG002 - always this rank
        """Delay the first operations of a rank, which wait for nothing, from the second step on."""
        for node, before in enumerate(work.program.after):
            if not before:
                work.delay_ns[node, 1:, 2] += self.pause_ns


ODD = {
    "first step 2x": WarmUp((0,), 2.0),
    "first step 6x": WarmUp((0,), 6.0),
    "first step 1.5x": WarmUp((0,), 1.5),
    "first steps 1.2x": WarmUp((0, 1), 1.2),
    "three first steps": WarmUp((0, 1, 2), 3.0),
    "several": WarmUp((0, 5, 11, 12), 2.5),
    "first computation": WarmUp((0, 11), 20.0, first_only=True),
    "ranks apart": ProfilerStart(30 * S),
    "ranks a little apart": ProfilerStart(2 * S),
}


def report_of(session: SyntheticSession) -> Report:
    return analyze(session.trace).report


def odd_of(*injections: Injection, job: JobModel = FLAT, seed: int = 3) -> tuple[int, ...]:
    session = synthesize(job, injections, seed=seed)
    return tuple(item.step for item in prepare_replay(session.trace).odd)


def test_steps_that_metadata_name_are_odd_like_those_that_are_found() -> None:
    trace = synthesize(FLAT, (SLOW, ODD["first computation"]), seed=3).trace
    found = [item.step for item in prepare_replay(trace).odd]
    step = int(np.unique(trace.step)[4])
    named = replace(
        trace, meta=replace(trace.meta, odd_steps={step: "a restart", 10_000: "a restart"})
    )
    odd = prepare_replay(named).odd
    assert [item.step for item in odd] == sorted([*found, step])
    assert odd[1].reason == "a restart"
    assert step not in analyze(named).report.steps.analyzed


def test_of_steps_that_are_all_named_none_is_odd() -> None:
    trace = synthesize(FLAT, (SLOW,), seed=3).trace
    named = replace(
        trace, meta=replace(trace.meta, odd_steps=dict.fromkeys(trace.step.tolist(), "a test"))
    )
    assert prepare_replay(named).odd == ()


@pytest.mark.parametrize("job", [FLAT, PIPELINE], ids=["flat", "pipeline"])
@pytest.mark.parametrize("name", ODD)
def test_odd_steps_are_named_and_the_slow_worker_stands(job: JobModel, name: str) -> None:
    slow = replace(SLOW, worker=(1, 0))
    without = report_of(synthesize(job, (slow,), seed=4))
    session = synthesize(job, (slow, ODD[name]), seed=4)
    found = report_of(session)
    assert tuple(step.step for step in found.steps.odd) == session.truth.odd_steps
    assert [cause.cause for cause in found.causes] == ["slow_worker"]
    assert found.causes[0].where.workers == ((1, 0),)
    assert found.headline.slowdown == pytest.approx(without.headline.slowdown, rel=0.01)
    assert found.headline.slowdown == pytest.approx(session.truth.slowdown, rel=0.02)
    analyzed = set(found.steps.analyzed)
    assert not analyzed & set(session.truth.odd_steps)
    assert len(analyzed) + len(found.steps.odd) == job.steps


@pytest.mark.parametrize("name", ODD)
def test_a_healthy_job_with_odd_steps_has_no_cause(name: str) -> None:
    found = report_of(synthesize(FLAT, (ODD[name],), seed=5))
    assert found.causes == ()
    assert found.headline.slowdown == pytest.approx(1.0, abs=0.02)
    assert found.steps.odd


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("first step 2x", "all ranks compute 2.0× as long as in other steps"),
        ("first computation", "a computation takes 20× as long as in other steps, on all ranks"),
        ("ranks apart", "ranks begin it up to 30.0 s apart, as where profilers start"),
    ],
)
def test_the_reason_of_each_excluded_step_is_named(name: str, said: str) -> None:
    odd = prepare_replay(synthesize(FLAT, (ODD[name],), seed=6).trace).odd
    assert odd[0].reason == said


@pytest.mark.parametrize(
    "injection",
    [
        pytest.param(Checkpoint(5, 3 * S), id="checkpoints"),
        pytest.param(SlowWorker((2, 0), 2.5, Spells(share=0.3)), id="spells of a worker"),
        pytest.param(SlowWorker((2, 0), 2.5, Spells(from_step=12)), id="slow since a step"),
        pytest.param(ThermalThrottling((1, 0), 2.0, 10.0, 2.0), id="throttling"),
        pytest.param(GarbageCollection(0.2 * S, 1.0, 0.5), id="gc"),
        pytest.param(SequenceLengths(), id="lengths"),
        pytest.param(SlowDataLoading(0.5 * S), id="data loading"),
        pytest.param(WarmUp(tuple(range(14, 26)), 3.0), id="slow together"),
        pytest.param(WarmUp(tuple(range(12)), 3.0), id="slow together at first"),
        pytest.param(WarmUp(tuple(range(0, 40, 3)), 2.0), id="every third step"),
    ],
)
def test_a_step_that_shows_a_cause_is_not_excluded(injection: Injection) -> None:
    assert odd_of(injection, job=replace(FLAT, steps=40)) == ()


def test_a_step_that_ranks_begin_together_is_not_excluded_because_later_ones_begin_apart() -> None:
    pausing = UnrecordedPause(0.5 * S)
    assert odd_of(pausing, job=replace(FLAT, steps=8)) == ()


def test_data_that_comes_late_every_eight_steps_leaves_the_first_one() -> None:
    session = synthesize(replace(FLAT, steps=40), (), seed=2)
    trace = session.trace
    steps = np.unique(trace.step)[::8]
    start, duration = trace.start_ns.copy(), trace.duration_ns.copy()
    late = np.isin(trace.step, steps) & (trace.rank == 5)
    # One rank's loader is late, so that its first operation begins late and all others wait for it.
    first = late & (trace.order == 0) & (trace.op == trace.op_names.index("params-all-gather"))
    assert first.sum() == len(steps)
    start[first] += int(S)
    duration[first] -= int(S)
    moved = replace(trace, start_ns=start, duration_ns=np.maximum(duration, 0))
    assert prepare_replay(moved).odd == ()


@pytest.mark.parametrize("seed", range(12))
def test_odd_steps_of_random_jobs_change_no_verdict(seed: int) -> None:
    rng = stream(seed, "odd steps")
    job = replace(draw_job(rng, Needs(dp=3)), steps=20)
    dp, pp = int(rng.integers(job.sizes.dp)), int(rng.integers(job.sizes.pp))
    kinds = list(ODD.values())
    odd = kinds[int(rng.integers(len(kinds)))]
    slow = SlowWorker((dp, pp), float(rng.uniform(1.3, 1.8)))
    without = report_of(synthesize(job, (slow,), seed=seed))
    session = synthesize(job, (slow, odd), seed=seed)
    found = report_of(session)
    assert tuple(step.step for step in found.steps.odd) == session.truth.odd_steps
    assert [c.cause for c in found.causes] == [c.cause for c in without.causes]
    assert found.headline.slowdown == pytest.approx(without.headline.slowdown, rel=0.01)


def test_three_steps_are_too_few_to_tell() -> None:
    job = replace(FLAT, steps=3)
    assert odd_of(WarmUp((0,), 6.0), job=job) == ()


def test_of_four_steps_one_may_be_odd() -> None:
    job = replace(FLAT, steps=4)
    assert len(odd_of(WarmUp((0,), 6.0), job=job)) == 1

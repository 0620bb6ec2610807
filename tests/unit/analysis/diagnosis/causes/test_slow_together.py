from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.slow_together import SLOW_TOGETHER
from app.analysis.diagnosis.finding import ComputingLevels
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SequenceLengths,
    SlowTogether,
    SlowWorker,
)
from app.analysis.synthesis.injections.delays import Checkpoint
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.synthesis.synthesize import synthesize, true_slowdown
from app.analysis.trace.model import Trace
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    MS,
    ONE_RANK,
    ONE_STAGE,
    causes,
    diagnosed,
    found,
    session,
    signs_of,
)

LONG = replace(JOB, steps=24)
FLAT = replace(ONE_STAGE, steps=40)
SPELL = SlowTogether(3.0, 14, 12)


def reported(*injections: Injection, job: JobModel = FLAT) -> Report:
    return analyze(session(*injections, job=job).trace).report


@pytest.mark.parametrize(
    "job", [LONG, FLAT, replace(ONE_RANK, steps=24)], ids=["dp 4 pp 4", "dp 6", "pp 4"]
)
@pytest.mark.parametrize(
    "injection",
    [SlowTogether(1.5, 9, 8), SlowTogether(1.5, 12), SlowTogether(growth=0.02)],
    ids=["spell", "since a step", "growth"],
)
def test_it_is_named_alone_with_its_true_cost(job: JobModel, injection: SlowTogether) -> None:
    synthetic = session(injection, job=job)
    diagnosis = diagnosed(synthetic)

    assert causes(diagnosis) == ["slow_together"]
    true = true_slowdown(job, (injection,), seed=5)
    assert diagnosis.slowdown == pytest.approx(true, rel=0.02)


def test_the_sentence_says_who_how_much_and_since_when() -> None:
    report = reported(SPELL)
    steps = report.steps.analyzed

    assert report.verdict.level == "slow"
    assert (
        f"all workers compute 3.00× slower in steps {steps[14]} to {steps[25]}"
        in report.verdict.sentence
    )
    evidence = " ".join(report.causes[0].evidence)
    assert "All 6 workers compute 3.00× as long" in evidence
    assert f"It is over in step {steps[26]}" in evidence
    assert report.causes[0].where.workers == ()
    (fix,) = report.recommendations
    assert fix.action == "restore_speed"
    assert "No worker is to be replaced" in fix.detail


def test_a_slowness_without_an_end_is_reported_as_lasting() -> None:
    report = reported(SlowTogether(1.5, 20))

    assert f"since step {report.steps.analyzed[20]}" in report.verdict.sentence
    assert "It lasts until the end of the session" in report.causes[0].evidence


def test_the_evidence_has_the_slope_of_a_growth() -> None:
    report = reported(SlowTogether(growth=0.02))

    assert "steps grow by 2.0" in report.verdict.sentence
    assert "each, on all workers alike" in report.verdict.sentence
    figure = report.causes[0].figure
    assert isinstance(figure, ComputingLevels)
    assert figure.growth == pytest.approx(0.02, rel=0.05)
    assert figure.by_step[-1] / figure.by_step[0] == pytest.approx(1.02**39, rel=0.02)


def test_a_slow_worker_as_well_is_named_and_no_other() -> None:
    report = reported(SlowTogether(1.6, 14, 14), SlowWorker((2, 0), 1.3))

    assert sorted(cause.cause for cause in report.causes) == ["slow_together", "slow_worker"]
    (worker,) = (cause for cause in report.causes if cause.cause == "slow_worker")
    assert worker.where.workers == ((2, 0),)
    true = true_slowdown(FLAT, (SlowTogether(1.6, 14, 14), SlowWorker((2, 0), 1.3)), seed=5)
    assert report.headline.slowdown == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize(
    "injection",
    [
        SequenceLengths(),
        GarbageCollection(150 * MS, pauses=0.3, growth=0.6),
        SlowWorker((2, 0), 2.0),
        Checkpoint(5, 2000 * MS),
    ],
    ids=["lengths", "collections", "slow worker", "checkpoint"],
)
def test_other_causes_are_not_taken_for_it(injection: Injection) -> None:
    for job in (FLAT, LONG):
        assert "slow_together" not in causes(diagnosed(session(injection, job=job)))


@pytest.mark.parametrize("job", [FLAT, LONG, replace(ONE_RANK, steps=24)])
def test_a_healthy_job_has_none(job: JobModel) -> None:
    assert SLOW_TOGETHER.find(signs_of(session(job=job))) is None


def test_one_slow_step_is_none() -> None:
    assert SLOW_TOGETHER.find(signs_of(session(SlowTogether(4.0, 0, 1), job=FLAT))) is None


def _longer_in(begin: int, end: int, times: float) -> Trace:
    """Return a session with longer sequences, with recorded lengths, in some steps."""
    job = replace(FLAT, profiler=Profiler(sequence_lengths=True))
    lengths = SequenceLengths(8_192, 1_000, 0.8, quadratic=0.0, fixed=0.0, linear=1.0)
    synthetic = synthesize(job, (lengths, SlowTogether(times, begin, end - begin)), seed=5)
    trace = synthetic.trace
    steps = np.unique(trace.step)
    recorded = dict(trace.meta.extra["sequence_lengths"])
    for step in steps[begin:end].tolist():
        ranks = recorded[str(step)]
        recorded[str(step)] = [
            [[round(s * times) for s in microbatch] for microbatch in rank] for rank in ranks
        ]
    extra = {**trace.meta.extra, "sequence_lengths": recorded}
    return replace(trace, meta=replace(trace.meta, extra=extra))


def test_steps_that_are_longer_by_their_tokens_are_not_slow() -> None:
    report = analyze(_longer_in(14, 26, 1.5)).report

    assert "slow_together" not in [cause.cause for cause in report.causes]


def test_lengths_that_explain_nothing_leave_it() -> None:
    job = replace(FLAT, profiler=Profiler(sequence_lengths=True))
    report = reported(SequenceLengths(), SlowTogether(2.0, 14, 12), job=job)

    assert "slow_together" in [cause.cause for cause in report.causes]


def test_a_pause_right_before_is_its_likeliest_reason() -> None:
    trace = session(SPELL, job=FLAT).trace
    first = np.unique(trace.step)
    steps = np.searchsorted(first, trace.step) + 100
    begins = np.array([trace.start_ns[trace.step == step].min() for step in first])
    ends = np.array(
        [(trace.start_ns + trace.duration_ns)[trace.step == step].max() for step in first]
    )
    # Consecutive steps, with a pause of 20 s before the first slow one.
    between = np.full(len(first), 50_000_000)
    between[14] = 20_000_000_000
    new = np.cumsum(np.concatenate([[0], (ends - begins)[:-1]]) + between)
    place = np.searchsorted(first, trace.step)
    moved = replace(
        trace,
        step=steps.astype(trace.step.dtype),
        start_ns=trace.start_ns - begins[place] + new[place],
    )

    sentence = analyze(moved).report.verdict.sentence

    assert "in steps 114 to 125, after a pause of 20.0 s, as with a checkpoint" in sentence


def test_its_finding_holds_no_worker() -> None:
    finding = found(SLOW_TOGETHER, signs_of(session(SPELL, job=FLAT)))

    assert finding.where.workers == ()
    assert finding.where.spells is not None
    assert finding.where.spells.steps == 12

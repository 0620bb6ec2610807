"""Sessions compared with the job's past: all workers are slower than then, or one is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.earlier_sessions import Computing, EarlierSession, Past, against_past
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    SequenceLengths,
    SlowTogether,
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes, Trace
from tests.unit.analysis.diagnosis.jobs import ONE_RANK, ONE_STAGE, observe, session

FLAT = replace(ONE_STAGE, steps=24)
DEEP = replace(ONE_RANK, steps=16, layers=(8, 8, 8, 8))
ALL = SlowTogether(1.25)
HEAD = StageImbalance(1.2, 1.2)


def trace(*injections: Injection, job: JobModel = FLAT, seed: int = 5) -> Trace:
    return synthesize(job, injections, seed=seed).trace


def computed(at: Trace) -> Computing:
    found = analyze(at).report.computing
    assert found is not None
    return found


def past(
    *injections: Injection, job: JobModel = FLAT, sessions: int = 3, first: int = 1
) -> list[EarlierSession]:
    return [
        EarlierSession(number, computed(trace(*injections, job=job, seed=100 + number)))
        for number in range(first, first + sessions)
    ]


def held(at: Trace, earlier: list[EarlierSession]) -> Report:
    return analyze(at, earlier=earlier).report


def names(report: Report) -> list[str]:
    return [cause.cause for cause in report.causes]


def test_all_workers_slower_than_before_are_named_with_the_session() -> None:
    report = held(trace(ALL), past())

    assert names(report) == ["slow_together"]
    assert "all workers compute 1.25× slower than in session 3" in report.verdict.sentence
    assert report.headline.slowdown == pytest.approx(1.23, abs=0.02)
    assert [fix.action for fix in report.recommendations] == ["restore_speed"]


def test_without_a_past_the_same_session_seems_healthy() -> None:
    assert names(held(trace(ALL), [])) == []


@pytest.mark.parametrize("job", [FLAT, DEEP])
def test_a_job_that_is_as_fast_as_before_is_healthy(job: JobModel) -> None:
    assert names(held(trace(job=job), past(job=job))) == []


def test_slow_sessions_in_between_do_not_hide_it() -> None:
    earlier = [*past(), *past(ALL, sessions=6, first=4)]

    assert "than in session 3" in held(trace(ALL), earlier).verdict.sentence


def test_two_odd_sessions_are_no_past() -> None:
    earlier = [*past(), *past(SlowTogether(0.6), sessions=2, first=4)]

    assert names(held(trace(), earlier)) == []


def test_one_session_is_a_past_in_doubt() -> None:
    (cause,) = held(trace(ALL), past(sessions=1)).causes

    assert cause.confidence is not None
    assert cause.confidence <= 0.8


def test_another_configuration_is_no_past() -> None:
    more = replace(FLAT, microbatches=FLAT.microbatches + 1)
    layers = replace(FLAT, layers=(16,))

    assert names(held(trace(ALL, job=more), past())) == []
    assert names(held(trace(ALL, job=layers), past())) == []


def test_other_metadata_of_the_job_is_another_configuration() -> None:
    slow = trace(ALL)
    other = replace(slow, meta=replace(slow.meta, extra={**slow.meta.extra, "seq_length": 8192}))

    assert names(held(other, past())) == []


def test_other_machines_are_no_past() -> None:
    slow = trace(ALL)
    hosts = {rank: f"other-{rank}" for rank in slow.meta.hosts}
    moved = replace(slow, meta=replace(slow.meta, hosts=hosts))

    assert names(held(moved, past())) == []


def test_the_same_tokens_are_compared_and_others_are_not() -> None:
    job = replace(FLAT, profiler=Profiler(sequence_lengths=True))
    short, long = SequenceLengths(16_384), SequenceLengths(32_768)

    assert "slow_together" in names(held(trace(short, ALL, job=job), past(short, job=job)))
    assert "slow_together" not in names(held(trace(long, ALL, job=job), past(short, job=job)))


def test_with_one_dp_rank_it_tells_a_worker_that_became_slow_from_a_heavy_stage() -> None:
    slow = SlowWorker((0, 3), 1.5)
    report = held(trace(HEAD, slow, job=DEEP), past(HEAD, job=DEEP))

    assert names(report)[0] == "slow_worker"
    assert report.causes[0].where.workers == ((0, 3),)
    assert "in session 3" in report.causes[0].evidence[0]
    assert names(held(trace(HEAD, slow, job=DEEP), []))[0] == "stage_imbalance"


def test_with_one_dp_rank_a_stage_that_was_heavy_before_is_heavy() -> None:
    earlier = past(HEAD, job=DEEP)
    (cause,) = held(trace(HEAD, job=DEEP), earlier).causes

    assert cause.cause == "stage_imbalance"
    assert cause.confidence is not None
    assert cause.confidence > 0.9
    assert "no worker has become slow since" in cause.evidence[-1]


def test_a_slow_stage_that_is_not_the_heaviest_is_found_as_well() -> None:
    slow = SlowWorker((0, 1), 1.15)
    report = held(trace(HEAD, slow, job=DEEP), past(HEAD, job=DEEP))

    assert sorted(names(report)) == ["slow_worker", "stage_imbalance"]
    (worker,) = (cause for cause in report.causes if cause.cause == "slow_worker")
    assert worker.where.workers == ((0, 1),)


def test_of_large_jobs_some_workers_are_kept() -> None:
    large = replace(FLAT, sizes=Sizes(dp=100, pp=2), microbatches=4, steps=6)
    found = computed(trace(job=large))

    assert found.every == 4
    assert (len(found.step_s), len(found.step_s[0])) == (25, 2)
    assert "slow_together" in names(held(trace(ALL, job=large), past(job=large, sessions=1)))


def test_few_workers_that_stayed_tell_nothing() -> None:
    observation = observe(session(job=FLAT))
    now = computed(trace())
    moved = tuple(("elsewhere",) if dp > 1 else row for dp, row in enumerate(now.machines))

    assert against_past(observation, now, [EarlierSession(1, replace(now, machines=moved))]) is None
    known = against_past(observation, now, [EarlierSession(1, now)])
    assert isinstance(known, Past)
    np.testing.assert_allclose(known.ratio, 1.0)
    assert not known.all_slower

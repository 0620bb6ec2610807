from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    MemoryFragmentation,
    SequenceLengths,
    SlowWorker,
    StageImbalance,
    TensorParallelStraggler,
)
from app.analysis.synthesis.injections.delays import (
    Checkpoint,
    FalseKernelDependency,
    SlowDataLoading,
    SlowLink,
)
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.scenarios import SCENARIOS
from app.analysis.wording import percent
from tests.oracles.loops import Compute, Loop, Meet, plain, sharded_layers
from tests.unit.analysis.budget.sessions import following
from tests.unit.analysis.diagnosis.jobs import JOB, MS, TENSOR, session

SLOW_GRADIENTS = SCENARIOS["kernel-dependency"].job


@pytest.mark.parametrize(
    ("injection", "job", "because"),
    [
        (SlowWorker((2, 1), 1.6), JOB, "computes 1.6× slower than its peers"),
        (
            SlowWorker((2, 1), 3.0, Spells(from_step=10)),
            JOB,
            "computes 3.0× slower than its peers in 2 of 12 steps",
        ),
        (StageImbalance(), JOB, "the last stage (3) is heavier than the others"),
        (StageImbalance(2, 2, at=1), JOB, "stage 1 is heavier than the others"),
        (SequenceLengths(), JOB, "microbatches differ in length"),
        (GarbageCollection(100 * MS, pauses=0.5), JOB, "forwards stall on random workers"),
        (SlowLink((2, 1), 30.0), JOB, "the network link of worker (2, 1) on node-"),
        (TensorParallelStraggler((2, 1), 3, 1.6), TENSOR, "rank 23 on node-"),
        (MemoryFragmentation((2, 1), 40 * MS), TENSOR, "launch late by turns"),
    ],
)
def test_the_sentence_says_why(injection: Injection, job: JobModel, because: str) -> None:
    verdict = analyze(session(injection, job=job).trace).report.verdict

    assert verdict.level == "slow"
    how_slow, _, why = verdict.sentence.partition(": ")
    assert how_slow.endswith(" slower than without its cause")
    assert because in why


@pytest.mark.parametrize(
    ("injection", "job", "because"),
    [
        (SlowDataLoading(500 * MS), JOB, "steps wait for their data"),
        (Checkpoint(3, 1500 * MS), JOB, "all stages stand still at the start of some steps"),
        (FalseKernelDependency(2), SLOW_GRADIENTS, "computations wait for reduce-scatters"),
    ],
)
def test_late_launches_are_held_against_the_job_without_them(
    injection: Injection, job: JobModel, because: str
) -> None:
    synthetic = session(injection, job=job)
    report = analyze(synthetic.trace).report

    assert not report.fidelity.verdict
    assert report.headline.kind == "launches"
    assert report.headline.slowdown == pytest.approx(synthetic.truth.slowdown, rel=0.03)
    assert report.verdict.level == "slow"
    assert f"slower than without its cause: {because}" in report.verdict.sentence
    assert "withheld" not in report.verdict.sentence


def test_late_launches_that_cost_little_are_no_straggler() -> None:
    report = analyze(session(SlowDataLoading(90 * MS), job=JOB).trace).report

    assert report.headline.kind == "launches"
    assert report.verdict.level == "ok"
    assert report.verdict.sentence.endswith("no straggler to act on")


@pytest.mark.parametrize("dp", [2, 3])
def test_a_worker_is_compared_with_the_others_and_not_with_itself(dp: int) -> None:
    few = replace(JOB, sizes=replace(JOB.sizes, dp=dp))
    report = analyze(session(SlowWorker((1, 1), 1.8), job=few).trace).report
    evidence = report.causes[0].evidence[0]

    assert "computes 1.8× slower than its peers" in report.verdict.sentence
    assert "forward 1.8" in evidence
    assert report.by_worker.forward_ratio[1][1] == pytest.approx(1.8, abs=0.05)


def test_with_one_rank_a_worker_is_compared_with_the_other_stages() -> None:
    one = replace(JOB, sizes=replace(JOB.sizes, dp=1), layers=(4,) * JOB.sizes.pp)
    report = analyze(session(SlowWorker((0, 1), 1.8), job=one).trace).report

    assert "computes 1.8× slower than the other stages" in report.verdict.sentence


def test_two_causes_share_a_sentence() -> None:
    slow = session(StageImbalance(), SequenceLengths())
    sentence = analyze(slow.trace).report.verdict.sentence

    assert (
        "slower than without its causes: microbatches differ in length, on all workers alike"
        in sentence
    )
    assert ", and the last stage (3) is heavier than the others" in sentence


def test_a_healthy_job_is_called_healthy() -> None:
    report = analyze(session().trace).report

    assert report.verdict.level == "ok"
    assert report.causes == ()
    assert "slow_worker" in report.diagnosis.ruled_out


def _following(*injections: Injection, stalls_ns: dict[int, int]) -> Report:
    trace = session(*injections, job=replace(JOB, steps=24)).trace
    return analyze(following(trace, stalls_ns=stalls_ns)).report


def test_what_passes_between_steps_is_said_where_no_worker_straggles() -> None:
    report = _following(stalls_ns={10: 6 * 10**9, 20: 6 * 10**9})

    assert report.budget is not None
    lost = percent(report.budget.shares.between_steps_above, 0)
    assert report.verdict.sentence == (
        f"No straggler; {lost} of the time is lost between steps: the job stands still between "
        "steps, with nothing recorded"
    )
    assert report.verdict.level == "slow"
    assert report.headline.slowdown < 1.1


def test_a_little_that_passes_between_steps_is_said_and_makes_no_job_slow() -> None:
    report = _following(stalls_ns={10: 10**9, 20: 2 * 10**9})

    assert report.verdict.sentence.startswith("No straggler; ")
    assert report.verdict.level == "ok"


@pytest.mark.parametrize(("factor", "first"), [(1.4, "between steps"), (3.0, "slower than")])
def test_the_sentence_begins_with_the_largest_cost(factor: float, first: str) -> None:
    report = _following(SlowWorker((2, 1), factor), stalls_ns={10: 6 * 10**9, 20: 6 * 10**9})

    costly, _, other = report.verdict.sentence.partition("; ")
    assert first in costly
    assert {"between steps", "slower than"} == {
        words for words in ("between steps", "slower than") if words in costly + other
    }
    assert report.verdict.level == "slow"


def _with_transfers(program: tuple[Compute | Meet, ...], times: float) -> Loop:
    def slower(item: Compute | Meet) -> Compute | Meet:
        if isinstance(item, Meet):
            return replace(item, ms=item.ms * times)
        return replace(item, meets=tuple(replace(meet, ms=meet.ms * times) for meet in item.meets))

    return Loop(tuple(map(slower, program)), noise=0.03, turn_ms=1)


@pytest.mark.parametrize(("program", "times"), [(sharded_layers(), 4.0), (plain(), 40.0)])
def test_a_network_that_is_slow_for_all_ranks_is_said_to_take_its_share_of_the_time(
    program: tuple[Compute | Meet, ...], times: float
) -> None:
    slow, usual = (analyze(_with_transfers(program, by).run().trace).report for by in (times, 1.0))

    assert slow.budget is not None
    share = slow.budget.shares.communication + slow.budget.shares.communication_above
    assert share > 0.5
    assert slow.verdict.level == "ok"
    assert slow.verdict.sentence.endswith(
        f"; communication takes {percent(share, 0)} of the time, alike on all ranks"
    )
    assert "communication" not in usual.verdict.sentence

"""Withheld verdicts: the reason names the actual fault of the recording."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.clock_alignment import clocks_apart_ns
from app.analysis.replay.fidelity import distrust, late_launches
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.report.trust import CLOCK_WARNING
from app.analysis.synthesis.host_jobs import HostJob
from app.analysis.synthesis.host_sessions import run
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.job import JobModel, Schedule
from app.analysis.synthesis.scenarios import SCENARIOS
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_SEND,
    Sizes,
    Trace,
)

if TYPE_CHECKING:
    from app.analysis.synthesis.execution import StepWork

EVERY = tuple(Name)
HOSTS = HostJob()
SLOW = {(1, 0): 1.8}
JOB = JobModel(Sizes(dp=3, pp=4), microbatches=8, steps=12)
CHUNKS = replace(JOB, sizes=Sizes(dp=3, pp=4, vpp=2), schedule=Schedule.INTERLEAVED)


@dataclass(frozen=True, slots=True)
class Late(Injection):
    """Late launches of a type: at random, or always the same ones of stage 1."""

    op_type: str
    mean_ns: float
    share: float = 1.0
    cause: ClassVar[str] = "late"

    def apply(self, work: StepWork, job: JobModel, rng: np.random.Generator) -> None:
        del job
        chosen = np.flatnonzero(work.program.of_types(self.op_type))
        if self.share == 1.0:
            chosen = chosen[work.program.stage[chosen] == 1][2:4]
        late = rng.uniform(0.8, 1.2, work.delay_ns[chosen].shape) * self.mean_ns
        work.delay_ns[chosen] += late * (rng.random(late.shape) < self.share)


def report_on(trace: Trace, *, adapted: bool = True) -> Report:
    """Return the report of a session without a verdict."""
    report = analyze(trace, () if adapted else EVERY).report
    assert report.fidelity.verdict is False
    assert report.verdict.level == "none"
    return report


def reason_of(trace: Trace, *, adapted: bool = True) -> str:
    reason = report_on(trace, adapted=adapted).fidelity.reason
    assert reason is not None
    assert reason.count("Likeliest") == 1
    return reason


def jumping(trace: Trace, *, stage: bool) -> Trace:
    """Return a trace in which the clock of a stage, or of a DP rank, jumps in every step."""
    jumps = 200e6 * np.random.default_rng(0).normal(size=int(trace.step.max()) + 1)
    wrong = trace.pp == 1 if stage else trace.dp == 1
    return replace(
        trace,
        start_ns=trace.start_ns + np.where(wrong, jumps[trace.step], 0.0).astype(np.int64),
    )


def with_eager_sends(trace: Trace) -> Trace:
    """Return a trace whose sends end when the data is handed to the network."""
    sends = np.isin(trace.op, [trace.op_names.index(n) for n in (FORWARD_SEND, BACKWARD_SEND)])
    short = np.minimum(trace.duration_ns, 100_000)
    return replace(trace, duration_ns=np.where(sends, short, trace.duration_ns))


@pytest.mark.parametrize("kind", ["slow worker", "one late"])
def test_ends_that_are_taken_at_the_wait(kind: str) -> None:
    slow = SLOW if kind == "slow worker" else {}
    trace = run(replace(HOSTS, late_ends=True, factors=slow)).trace
    replayed = prepare_replay(trace, without=EVERY)

    reason = distrust(replayed, measure(replayed), [], 0.05)

    assert "ends of transfers are taken when the job waits for them" in reason
    assert "take them when the transfer is done" in reason
    assert "clocks" not in reason
    # Warnings do not blame clocks, although the ends by which clocks are compared differ widely.
    assert report_on(trace, adapted=False).clocks.warnings == ()


@pytest.mark.parametrize("stage", [False, True], ids=["dp", "pp"])
def test_clocks_that_jump(stage: bool) -> None:  # noqa: FBT001 - a parameter of the test
    replayed = prepare_replay(jumping(run(HOSTS).trace, stage=stage), without=EVERY)

    reason = distrust(replayed, measure(replayed), [], 0.05)

    assert "clocks disagree" in reason
    assert "synchronize the hosts" in reason


def test_clocks_that_jump_are_no_late_batches() -> None:
    report = report_on(jumping(run(HOSTS).trace, stage=False))

    assert "clocks disagree" in (report.fidelity.reason or "")
    assert any("clocks move between steps" in warning for warning in report.clocks.warnings)


def test_sends_that_end_when_they_are_handed_over_are_no_clocks() -> None:
    trace = run(replace(HOSTS, dp=3, pp=3, microbatches=8, steps=8, wire_ns=15e6)).trace
    replayed = prepare_replay(with_eager_sends(trace), without=EVERY)
    report = analyze(with_eager_sends(trace)).report
    step_ns = report.step_times.recorded[0] * 1e9

    # The ends of transfers differ, but clocks do not.
    assert replayed.clocks.residual_ns.max() > CLOCK_WARNING * step_ns
    assert clocks_apart_ns(replayed.layout, replayed.graph) < 1e-3 * step_ns
    assert "clocks" not in distrust(replayed, measure(replayed), [], 0.05)
    assert report.clocks.warnings == ()


def test_steps_that_overlap() -> None:
    trace = run(replace(HOSTS, dp=4, pp=4, microbatches=12, steps=12, barrier=False)).trace

    reason = reason_of(trace, adapted=False)

    assert "steps overlap" in reason
    assert "record consecutive steps of one shape with absolute times" in reason


def test_relative_times_do_not_show_whether_steps_overlap() -> None:
    noisy = synthesize(JOB, [Late(FORWARD_COMPUTE, 60e6, 0.4)], seed=1).trace

    assert "host noise" in reason_of(replace(noisy, step_relative=True))


def test_computations_that_wait_inside_for_collectives() -> None:
    trace = run(replace(HOSTS, gathers=True)).trace
    replayed = prepare_replay(trace, without=EVERY)

    reason = distrust(replayed, measure(replayed), [], 0.05)

    assert "computations wait inside for collectives" in reason
    assert "record all of these" in reason


@pytest.mark.parametrize("job", [JOB, CHUNKS], ids=["one chunk", "two chunks"])
@pytest.mark.parametrize(
    "op_types",
    [(FORWARD_COMPUTE, BACKWARD_COMPUTE), (BACKWARD_COMPUTE,)],
    ids=["both ways", "backward"],
)
def test_hosts_that_are_late_by_chance(job: JobModel, op_types: tuple[str, ...]) -> None:
    # Late forward passes alone would be garbage collection.
    late = [Late(op_type, 60e6, 0.4) for op_type in op_types]

    reason = reason_of(synthesize(job, late, seed=1).trace)

    assert "host noise" in reason
    assert "leave the hosts to the job" in reason


@pytest.mark.parametrize("job", [JOB, CHUNKS], ids=["one chunk", "two chunks"])
def test_what_is_held_up_in_every_step_is_no_noise(job: JobModel) -> None:
    reason = reason_of(synthesize(job, [Late(BACKWARD_COMPUTE, 250e6)], seed=1).trace)

    assert "something that is not recorded holds up the same launches" in reason
    assert "(backward-compute on stage 1)" in reason
    assert "noise" not in reason


def test_transfers_that_are_posted_late_in_every_step() -> None:
    reason = reason_of(synthesize(JOB, [Late(BACKWARD_RECV, 250e6)], seed=1).trace)

    assert "the job posts transfers later than it could" in reason
    assert "backward-recv on stage 1" in reason


def test_kernels_that_wait_for_others_that_they_do_not_need() -> None:
    replayed = prepare_replay(SCENARIOS["kernel-dependency"].synthesize(0).trace)
    metrics = measure(replayed)

    # The reason without the diagnosis
    reason = distrust(replayed, metrics, late_launches(replayed, metrics), 0.05)

    assert "kernels wait for others that they do not need" in reason
    assert "always for the end of grads-reduce-scatter" in reason
    assert "backward-compute on stage" in reason
    assert "noise" not in reason


@pytest.mark.parametrize(
    ("scenario", "title"),
    [("kernel-dependency", "false kernel dependency"), ("data-loading", "data loading")],
)
def test_what_the_diagnosis_knows_is_no_fault_of_the_recording(scenario: str, title: str) -> None:
    report = analyze(SCENARIOS[scenario].synthesize(0).trace).report
    reason = report.fidelity.reason or ""

    # There is a headline, but no S.
    assert report.headline.kind is HeadlineKind.LAUNCHES
    assert report.fidelity.verdict is False
    assert report.verdict.level == "slow"
    assert f"Likeliest: {title}." in reason
    assert "the recording lacks nothing" in reason
    assert "noise" not in reason

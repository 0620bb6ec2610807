"""The fix that divides sequences as a loader does: its gain is that of an actual division."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from app.analysis.diagnosis.locations import Where
from app.analysis.quantities import IntArray
from app.analysis.report.build import analyze
from app.analysis.report.document import Recommendation
from app.analysis.synthesis.injections.computations import SequenceLengths
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import Sizes, Trace
from paceline_client.balance import Cost, balance
from tests.referee.fixes.own import made_s
from tests.referee.fixes.promise import Advised

JOB = JobModel(Sizes(dp=4, pp=2), microbatches=6, steps=8, profiler=Profiler(sequence_lengths=True))


@pytest.fixture(scope="module")
def session() -> SyntheticSession:
    return synthesize(JOB, (SequenceLengths(),), seed=5)


def fix_of(trace: Trace) -> Recommendation:
    report = analyze(trace).report
    (fix,) = (f for f in report.recommendations if f.action == "even_microbatches")
    return fix


def naming(trace: Trace, lengths: object) -> Trace:
    """Return a trace with other sequence lengths in its metadata."""
    extra: dict[str, Any] = {**trace.meta.extra, "sequence_lengths": lengths}
    return replace(trace, meta=replace(trace.meta, extra=extra))


def test_a_division_that_a_loader_makes_is_replayed(session: SyntheticSession) -> None:
    fix = fix_of(session.trace)
    assert fix.balancing is not None
    assert not fix.at_most
    # The promised gain is near the largest possible gain, and not above it.
    truth = session.truth
    most = 1 - sum(truth.healthy_step_times_s) / sum(truth.step_times_s)
    assert 0.6 * most < fix.predicted_gain <= most * 1.03
    assert fix.balancing.call in fix.detail


def test_costs_and_limit_are_those_of_the_session(session: SyntheticSession) -> None:
    plan = fix_of(session.trace).balancing
    assert plan is not None
    assert plan.max_tokens == SequenceLengths().max_length
    assert plan.stages == JOB.sizes.pp
    cost = Cost(plan.fixed_ms, plan.linear_ms, plan.quadratic_ms)
    # The fitted cost is 0.05 + 0.6 Σs + Σs², in units of the longest microbatch.
    long, short = (cost.of([plan.max_tokens // parts] * parts) for parts in (1, 8))
    assert long / short == pytest.approx(1.65 / (0.65 + 1 / 8), rel=0.1)


def test_the_call_divides_a_batch(session: SyntheticSession) -> None:
    plan = fix_of(session.trace).balancing
    assert plan is not None
    batch = next(iter(session.trace.meta.extra["sequence_lengths"].values()))
    names = {"batch": batch, "balance": balance, "Cost": Cost}
    even = eval(plan.call, names)  # noqa: S307 - our own text, as a loader would have it
    assert [len(rank) for rank in even] == [len(rank) for rank in batch]


@dataclass(frozen=True, slots=True)
class PartlyFull(SequenceLengths):
    """Microbatches with few long sequences hold fewer tokens than others."""

    def draw(self, microbatches: int, rng: np.random.Generator) -> IntArray:
        """Return the sequences of microbatches with room for different numbers of tokens."""
        full = SequenceLengths.draw(self, microbatches, rng)
        room = rng.integers(self.max_length * 4 // 5, self.max_length, (microbatches, 1))
        before = full.cumsum(axis=1) - full
        cut: IntArray = np.clip(room - before, 0, full)
        return cut


def with_memory(trace: Trace, tokens: object) -> Recommendation:
    """Return the fix of a session whose metadata name the tokens that memory holds."""
    extra: dict[str, Any] = {**trace.meta.extra, "max_tokens": tokens}
    return fix_of(replace(trace, meta=replace(trace.meta, extra=extra)))


@pytest.mark.parametrize("seed", [5, 6])
def test_more_tokens_save_more_where_memory_holds_them(seed: int) -> None:
    job = replace(JOB, microbatches=2)
    session = synthesize(job, (PartlyFull(),), seed=seed)
    usual = fix_of(session.trace)
    assert usual.balancing is not None
    most = usual.balancing.max_tokens
    roomy = with_memory(session.trace, most * 2)
    assert roomy.balancing is not None
    assert roomy.balancing.max_tokens == most * 2
    assert roomy.predicted_gain > usual.predicted_gain + 0.005
    assert f"which memory holds, {most:,} today" in roomy.detail
    truth = session.truth
    for fix in (usual, roomy):
        item = Advised(fix, Where(), analyze(session.trace).report)
        realised = 1 - made_s(session, item) / sum(truth.step_times_s)
        assert fix.predicted_gain == pytest.approx(realised, abs=0.01)


@pytest.mark.parametrize("tokens", [100, "many", True, 10**12])
def test_a_small_or_invalid_limit_of_tokens_changes_nothing(tokens: object) -> None:
    trace = synthesize(JOB, (PartlyFull(),), seed=5).trace
    assert with_memory(trace, tokens).predicted_gain == fix_of(trace).predicted_gain


def test_the_cost_of_more_tokens_is_unknown_where_all_microbatches_are_full(
    session: SyntheticSession,
) -> None:
    usual = fix_of(session.trace)
    assert usual.balancing is not None
    roomy = with_memory(session.trace, usual.balancing.max_tokens * 2)
    assert roomy.balancing == usual.balancing


@pytest.mark.parametrize(
    "lengths",
    [None, {}, [], {"0": [[[1]]]}, {"0": [[["long"]]]}, {"0": 7}],
    ids=str,
)
def test_without_lengths_only_a_bound_is_known(session: SyntheticSession, lengths: object) -> None:
    fix = fix_of(naming(session.trace, lengths))
    assert fix.at_most
    assert fix.balancing is None
    assert "sequence_lengths" in fix.detail


def test_some_steps_tell_what_a_division_brings_to_all(session: SyntheticSession) -> None:
    lengths = session.trace.meta.extra["sequence_lengths"]
    some = fix_of(naming(session.trace, dict(list(lengths.items())[::2])))
    assert some.balancing is not None
    assert some.predicted_gain == pytest.approx(fix_of(session.trace).predicted_gain, rel=0.25)


def test_slow_workers_do_not_make_sequences_dear(session: SyntheticSession) -> None:
    trace = session.trace
    slow = np.where((trace.dp == 1) & np.isin(trace.op, computations(trace)), 1.02, 1.0)
    slower = replace(trace, duration_ns=(trace.duration_ns * slow).astype(np.int64))
    one, other = fix_of(trace).balancing, fix_of(slower).balancing
    assert one is not None
    assert other is not None
    assert other.quadratic_ms == pytest.approx(one.quadratic_ms, rel=0.03)


def computations(trace: Trace) -> list[int]:
    return [code for code, name in enumerate(trace.op_names) if name.endswith("-compute")]

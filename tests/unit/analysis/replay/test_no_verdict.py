"""Recordings of two attempts, and jobs that would be slower without stragglers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.replay.no_verdict import LEAST_SLOWDOWN, faster_with_stragglers, unseen_of
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.model import Trace
from tests.factories import session
from tests.random_jobs import random_job
from tests.support.nightly import drawn


def on_hosts(trace: Trace) -> Trace:
    hosts = {int(rank): f"node-{rank}" for rank in np.unique(trace.rank)}
    return dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, hosts=hosts))


def attempt(seed: int, factor: float = 1.5) -> Trace:
    injection = SlowWorker((1, 1), factor)
    return on_hosts(session(injection, dp=2, pp=2, steps=10, microbatches=4, seed=seed).trace)


def mixed(first: Trace, second: Trace, ranks: list[int], by_s: float) -> Trace:
    """Return the first attempt's trace, with some ranks of the second attempt, some time later."""
    parts: dict[str, Any] = {}
    for name in ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns"):
        early, late = getattr(first, name), getattr(second, name)
        if name == "start_ns":
            late = late + int(by_s * 1e9)
        parts[name] = np.concatenate(
            [early[~np.isin(first.rank, ranks)], late[np.isin(second.rank, ranks)]]
        )
    return dataclasses.replace(first, **parts)


@given(
    st.integers(1, 10**6), st.sampled_from([3600.0, -3600.0, 7200.0]), st.sampled_from([1.0, 1.5])
)
@drawn(20)
def test_ranks_of_two_attempts_are_no_session(seed: int, by_s: float, factor: float) -> None:
    first = attempt(seed)
    second = attempt(seed + 1, factor)
    # Both attempts record steps with the same numbers.
    second = dataclasses.replace(
        second, step=np.unique(first.step)[np.unique(second.step, return_inverse=True)[1]]
    )
    ranks = np.unique(first.rank)[[0, 2]].tolist()
    report = analyze(mixed(first, second, ranks, by_s)).report
    assert report.verdict.level == "none"
    assert "are of no one session" in report.verdict.sentence
    assert report.fidelity.verdict is False
    assert report.causes == ()
    assert report.known_waste is None
    assert report.budget is None
    assert report.clocks.warnings == ()


@pytest.mark.parametrize("by_s", [-86_400.0, 600.0, 1_000_000.0, 30_000_000.0])
def test_a_clock_that_is_off_by_anything_is_of_the_same_session(by_s: float) -> None:
    trace = attempt(3)
    clean = analyze(trace).report
    off = trace.start_ns + np.where(trace.rank == trace.rank.max(), int(by_s * 1e9), 0)
    report = analyze(dataclasses.replace(trace, start_ns=off)).report
    assert report.headline.slowdown == pytest.approx(clean.headline.slowdown, rel=0.01)
    assert report.fidelity.verdict


@given(st.integers(0, 2**32 - 1))
@drawn(30)
def test_random_jobs_are_of_one_session(seed: int) -> None:
    trace = on_hosts(random_job(seed, steps=8, launch_overhead=True).trace)
    off = trace.start_ns + trace.rank * 900 * 10**9
    replayed = prepare_replay(dataclasses.replace(trace, start_ns=off))
    found = unseen_of(replayed)
    assert found is None or "no one session" not in found.verdict


def test_the_reason_of_a_slowdown_below_one_names_its_origin() -> None:
    replayed = prepare_replay(attempt(3))
    assert faster_with_stragglers(replayed, LEAST_SLOWDOWN) is None
    of_replay = faster_with_stragglers(replayed, 0.88)
    assert of_replay is not None
    assert "0.88×, which cannot be" in of_replay.verdict
    assert "give its sizes, or the replay is at fault" in of_replay.reason
    of_recording = faster_with_stragglers(dataclasses.replace(replayed, clamped=12), 0.88)
    assert of_recording is not None
    assert "The recording is at fault" in of_recording.reason
    assert "12 transfers end before they begin" in of_recording.reason


def test_a_job_taken_for_a_longer_pipeline_has_no_verdict_below_one() -> None:
    """A job of DP 2 × PP 2, recorded without transfers, whose metadata name four stages."""
    trace = attempt(5, 1.8)
    kept = np.isin(
        trace.op, [trace.op_names.index(n) for n in ("forward-compute", "backward-compute")]
    )
    columns = {
        name: getattr(trace, name)[kept]
        for name in (
            "rank",
            "dp",
            "pp",
            "step",
            "op",
            "mb",
            "mc",
            "order",
            "start_ns",
            "duration_ns",
        )
    }
    sizes = dataclasses.replace(trace.meta.sizes, dp=1, pp=4)
    whole = dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, sizes=sizes), **columns)
    whole = dataclasses.replace(
        whole, dp=np.zeros_like(whole.dp), pp=(2 * columns["pp"] + columns["dp"]).astype(np.int32)
    )
    report = analyze(whole).report
    assert report.headline.slowdown >= LEAST_SLOWDOWN or not report.fidelity.verdict

"""Transfers that do not pair up are left out of the replay, and the report says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.replay.adaptations.kind import SENTENCES, Name
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.host_jobs import HostJob
from app.analysis.synthesis.host_sessions import run
from app.analysis.trace.model import Trace
from app.errors import UnanalyzableError
from tests.factories import joined, select
from tests.oracles.adaptations import without_types
from tests.random_jobs import random_job

TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")


def of_type(trace: Trace, name: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(trace.op == trace.op_names.index(name))


def with_retries(trace: Trace, count: int) -> Trace:
    """Add a second record of each rank's first sends, as after a retry."""
    more = select(trace, of_type(trace, "forward-send") & (trace.order < count))
    later = more.order + int(trace.order.max()) + 1
    return joined(trace, replace(more, order=later, mb=np.full_like(more.mb, -1)))


def with_the_first(trace: Trace, count: int) -> Trace:
    """Keep only the transfers that fill the pipeline."""
    transfers = np.isin(trace.op, [trace.op_names.index(name) for name in TRANSFERS])
    return select(trace, ~transfers | (trace.order < count))


@pytest.mark.parametrize("damage", [with_retries, with_the_first])
def test_what_is_left_tells_the_slow_worker_and_what_it_costs(damage: object) -> None:
    job = HostJob(pp=3)
    slow = run(replace(job, factors={(1, 0): 1.8}))
    report = analyze(damage(slow.trace, 2)).report  # type: ignore[operator]
    (made,) = report.fidelity.adaptations

    assert made.adaptation == Name.UNMATCHED_TRANSFERS
    assert made.sentence == SENTENCES[Name.UNMATCHED_TRANSFERS]
    assert "for 6 computations in every step" in made.where[0]
    assert "transfers of each step and DP rank left out" in made.where[1]
    assert report.fidelity.verdict
    truth = slow.step_time_s / run(job).step_time_s
    assert report.headline.slowdown == pytest.approx(truth, rel=0.02)
    assert [(c.cause, c.where.workers) for c in report.causes] == [("slow_worker", ((1, 0),))]


def test_switched_off_the_trace_is_refused() -> None:
    damaged = with_retries(run(HostJob()).trace, 1)
    with pytest.raises(UnanalyzableError) as caught:
        prepare_replay(damaged, without=(Name.UNMATCHED_TRANSFERS,))
    assert caught.value.stable_code == "trace.transfers_unmatched"


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_the_replay_is_that_of_a_trace_without_transfers(seed: int, count: int) -> None:
    trace = random_job(seed).trace
    if trace.meta.sizes.pp == 1:
        return
    damaged = prepare_replay(with_retries(trace, count))
    bare = prepare_replay(without_types(trace, TRANSFERS))

    assert [item.name for item in damaged.adaptations][:1] == [Name.UNMATCHED_TRANSFERS]
    assert np.array_equal(damaged.durations.recorded_ns, bare.durations.recorded_ns)
    assert damaged.graph.units == bare.graph.units

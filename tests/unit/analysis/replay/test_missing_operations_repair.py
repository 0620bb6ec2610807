"""Lost operations: their identification, and their substitutes."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.replay.layout.arrange import lay_out
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependency_graph import build_graph
from app.analysis.replay.layout.slots import assign
from app.analysis.replay.missing_operations import recreate
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.model import Trace
from tests.factories import joined, select, session
from tests.lossy import losing, without
from tests.oracles.replay import recreated_times
from tests.schedules import Job, executed
from tests.support.nightly import drawn

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow


def the_layout(trace: Trace) -> Layout:
    (layout,) = lay_out(trace).groups
    return layout


def in_the_same_places(lossy: Layout, whole: Layout) -> bool:
    """Return whether all recorded operations have the same places as without losses."""
    assert lossy.missing is not None
    assert (lossy.nodes.op == whole.nodes.op).all()
    # A step begins with its first recorded operation.
    shift = (lossy.begin_ns - whole.begin_ns)[None, :, None]
    there = ~lossy.missing
    same_start = (lossy.start_ns + shift == whole.start_ns)[there].all()
    return bool(same_start and (lossy.duration_ns == whole.duration_ns)[there].all())


JOBS = [
    Job("1f1b", dp=3, pp=4, microbatches=8),
    Job("gpipe", dp=2, pp=3, microbatches=6),
    Job("interleaved", dp=2, pp=2, vpp=2, microbatches=6),
    Job("zero-bubble", dp=2, pp=3, microbatches=6),
]


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.schedule)
def test_named_operations_keep_their_places(job: Job, renumbered: bool) -> None:  # noqa: FBT001
    trace, _ = executed(job, steps=8, seed=4)
    lossy = losing(trace, 0.05, renumbered=renumbered, seed=1)
    assert in_the_same_places(the_layout(lossy), the_layout(trace))


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_times_tell_transfers_without_names_apart(share: float) -> None:
    trace = session(dp=3, pp=4, microbatches=8, steps=12).trace
    transfers = np.isin(trace.op, [3, 4, 5, 6])
    trace.mb[transfers] = trace.mc[transfers] = -1
    lossy = losing(trace, share, renumbered=True, seed=2)
    whole, found = the_layout(trace), the_layout(lossy)
    assert found.missing is not None
    there = ~found.missing
    right = found.duration_ns[there] == whole.duration_ns[there]
    assert right.mean() > 0.998


def test_times_tell_computations_without_names_apart() -> None:
    trace = session(dp=3, pp=2, microbatches=6, steps=12).trace
    trace.mb[:] = trace.mc[:] = -1
    forwards = np.flatnonzero((trace.op == 0) & (trace.order == 2))[::5]
    lost = np.zeros(len(trace), dtype=bool)
    lost[forwards] = True
    lossy = without(trace, lost, renumbered=True)
    assert in_the_same_places(the_layout(lossy), the_layout(trace))


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 1 << 30))
@drawn(60)
def test_slots_are_assigned_at_the_least_cost(count: int, lost: int, seed: int) -> None:
    costs = np.random.default_rng(seed).integers(0, 9, size=(3, count, lost + 1)).astype(float)
    for lane, slots in enumerate(assign(costs)):
        assert (np.diff(slots) > 0).all()
        shifts = slots - np.arange(count)
        brute = min(
            sum(costs[lane, i, slot - i] for i, slot in enumerate(chosen))
            for chosen in itertools.combinations(range(count + lost), count)
        )
        assert costs[lane, np.arange(count), shifts].sum() == brute


def test_what_is_lost_is_made_from_the_ranks_own_medians() -> None:
    trace = session(dp=3, pp=2, steps=12).trace
    code = {
        name: trace.op_names.index(name) for name in ("forward-compute", "grads-reduce-scatter")
    }
    step = int(np.unique(trace.step)[4])
    here = (trace.step == step) & (trace.dp == 1) & (trace.pp == 1)
    lost = here & (
        ((trace.op == code["forward-compute"]) & (trace.order == 2))
        | (trace.op == code["grads-reduce-scatter"])
    )
    whole = prepare_replay(trace)
    replayed = prepare_replay(without(trace, lost, renumbered=False))
    layout, at = replayed.layout, replayed.layout.steps.tolist().index(step)
    for name, order in (("forward-compute", 2), ("grads-reduce-scatter", 0)):
        of_type = (layout.nodes.op == code[name]) & (layout.nodes.pp == 1)
        (node,) = np.flatnonzero(of_type & (layout.nodes.order == order))
        others = whole.durations.recorded_ns[of_type, :, 1].copy()
        kept = np.ones(others.shape, dtype=bool)
        kept[order if name == "forward-compute" else 0, at] = False
        expected = np.median(others[kept])
        assert replayed.durations.recorded_ns[node, at, 1] == pytest.approx(expected, rel=1e-9)
    assert replayed.recreated.by_optype == dict.fromkeys(code, 1)
    assert replayed.recreated.by_worker.tolist() == [[0, 0], [0, 2], [0, 0]]


@drawn(20)
@given(st.integers(0, 2**32 - 1), st.sampled_from(JOBS), st.sampled_from([0.005, 0.01, 0.02]))
def test_what_is_lost_is_made_as_the_twin_does(seed: int, job: Job, share: float) -> None:
    layout = the_layout(losing(executed(job, seed=seed)[0], share, renumbered=False, seed=seed))
    graph = build_graph(layout)
    ((repaired,), _) = recreate([layout], [graph])
    for step in range(len(layout.steps)) if layout.missing is not None else ():
        for (node, dp), times in recreated_times(layout, graph, step).items():
            made = repaired.start_ns[node, step, dp], repaired.duration_ns[node, step, dp]
            assert made == pytest.approx(times, abs=1e-3)


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.05])
def test_the_slowdown_survives_losses(share: float, renumbered: bool) -> None:  # noqa: FBT001
    trace = session(SlowWorker((1, 0), 2.0), dp=4, pp=4, microbatches=8, steps=12).trace
    whole = analyze(trace).report
    lossy = losing(trace, share, renumbered=renumbered)
    report = analyze(lossy).report
    assert report.slowdown == pytest.approx(whole.slowdown, rel=0.01)
    assert report.steps.dropped == ()
    recreated = report.coverage.recreated
    lost = len(trace) - len(lossy)
    gc = int(((trace.op == 14).sum()) - (lossy.op == 14).sum())
    assert recreated.operations == lost - gc
    assert sum(recreated.by_optype.values()) == sum(map(sum, recreated.by_worker)) == lost - gc


def test_a_lost_collective_of_the_slow_worker_hides_nothing() -> None:
    trace = session(SlowWorker((1, 0), 3.0), dp=4, pp=1, microbatches=4, steps=12).trace
    whole = analyze(trace).report.slowdown
    lost = (trace.dp == 1) & (trace.op == trace.op_names.index("grads-reduce-scatter"))
    lost &= np.isin(trace.step, np.unique(trace.step)[::4])
    report = analyze(without(trace, lost, renumbered=True)).report
    assert report.slowdown == pytest.approx(whole, rel=2e-3)


def test_transfers_that_only_receives_record_replay_to_the_nanosecond() -> None:
    job = Job("1f1b", dp=2, pp=3, microbatches=5, jitter=False)
    trace, times = executed(job, steps=6, seed=8)
    codes = [trace.op_names.index(f"{d}-send") for d in ("forward", "backward")]
    replayed = prepare_replay(select(trace, ~np.isin(trace.op, codes)))
    simulator = replayed.simulator
    assert simulator.step_times([simulator.keep()])[0].tolist() == times
    assert replayed.recreated.total == 0


@pytest.mark.parametrize("directions", [["forward"], ["backward"], ["forward", "backward"]])
def test_sends_without_receives_are_left_out_for_what_they_wait_for_is_unknown(
    directions: list[str],
) -> None:
    trace = session(SlowWorker((1, 0), 2.0), dp=2, pp=3, steps=12).trace
    whole = analyze(trace).report
    # Sends begin before their receivers are ready, and wait for them.
    sends = np.isin(trace.op, [trace.op_names.index(f"{d}-send") for d in directions])
    trace.start_ns[sends] -= (waits := trace.duration_ns[sends] // 2)
    trace.duration_ns[sends] += waits
    receives = [trace.op_names.index(f"{d}-recv") for d in directions]
    bare = analyze(select(trace, ~np.isin(trace.op, receives))).report
    count = len(trace.op[sends]) // len(directions)
    assert bare.coverage.unanswered == {f"{d}-send": count for d in directions}
    assert bare.coverage.recreated.operations == 0
    assert bare.slowdown == pytest.approx(whole.slowdown, rel=0.01)


def test_without_any_transfer_stages_follow_one_another() -> None:
    trace = session(SlowWorker((1, 0), 2.0), dp=2, pp=3, steps=12).trace
    whole = analyze(trace).report
    bare = analyze(select(trace, ~np.isin(trace.op, [3, 4, 5, 6]))).report
    assert {"forward-send", "backward-recv"} <= set(bare.coverage.absent_op_types)
    assert bare.slowdown == pytest.approx(whole.slowdown, rel=0.02)
    assert bare.fidelity.verdict is True


def test_garbage_collections_may_come_and_go() -> None:
    trace = session(dp=3, pp=2, steps=12).trace
    gc = trace.op == trace.op_names.index("gc")
    lossy = select(trace, ~gc | (np.random.default_rng(0).random(len(trace)) < 0.3))
    report = analyze(lossy).report
    assert report.coverage.recreated.operations == 0
    assert report.slowdown == pytest.approx(analyze(trace).report.slowdown, rel=1e-6)


def test_launch_order_survives_when_no_lane_is_whole() -> None:
    trace, _ = executed(Job("interleaved", dp=2, pp=2, vpp=2, microbatches=8), steps=10, seed=1)
    lossy = prepare_replay(losing(trace, 0.05, renumbered=True, seed=3))
    whole = prepare_replay(trace)
    assert lossy.layout.missing is not None
    units = {frozenset(u.members): u.after for u in whole.graph.units}
    assert {frozenset(u.members): u.after for u in lossy.graph.units} == units


def test_mixed_orders_are_distinguished_though_operations_are_missing() -> None:
    one, _ = executed(Job("1f1b", pp=3, microbatches=6), steps=5, seed=1)
    other, _ = executed(Job("gpipe", pp=3, microbatches=6), steps=5, seed=2)
    both = joined(one, dataclasses.replace(other, step=other.step + 5))
    lossy = losing(both, 0.02, renumbered=False, seed=5)
    groups = prepare_replay(lossy).groups
    assert {frozenset(group.layout.steps.tolist()) for group in groups} == {
        frozenset(range(5)),
        frozenset(range(5, 10)),
    }

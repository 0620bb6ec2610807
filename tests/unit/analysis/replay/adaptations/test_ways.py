"""Random jobs with each way of execution, and their adaptations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.replay.adaptations.candidate import Draft, Recording
from app.analysis.replay.adaptations.idle_transfers import without_idle_transfers
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.adaptations.nested_collectives import (
    classes_of,
    find_nested,
    set_apart,
    take_out,
    waited_for,
)
from app.analysis.replay.adaptations.overlapping_steps import propose_overlapping_steps
from app.analysis.replay.adaptations.signs import sampled
from app.analysis.replay.engine.simulator import own_durations
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.host_jobs import HostJob
from app.analysis.synthesis.host_sessions import run
from app.analysis.synthesis.random_host_sessions import WAYS, draw_host_session
from app.analysis.trace.model import Trace
from tests.factories import joined, select
from tests.oracles import adaptations as twins
from tests.random_jobs import random_job
from tests.schedules import Job, executed
from tests.support.nightly import every_night

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

seeds = st.integers(min_value=0, max_value=2**31 - 1)
few = settings(max_examples=6, deadline=None)

# Further adaptations that a way of execution may cause: all but windowed jobs block, some have no
# barrier, and unrecorded transfers delay launches.
ALSO = {Name.BLOCKING_TRANSFERS, Name.OVERLAPPING_STEPS, Name.REGULAR_DELAYS}
CALLED_FOR: dict[str, Name | None] = {
    "blocking": None,
    "windowed": None,
    "overlapping": None,
    "gathering": Name.NESTED_COLLECTIVES,
    "late-ends": Name.LATE_ENDS,
    "handing-over": Name.REGULAR_DELAYS,
    "v-shaped": Name.PLACEMENT,
}
# Structural adaptations, which are kept at any discrepancy.
ALWAYS = {Name.NESTED_COLLECTIVES, Name.PLACEMENT}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=2, deadline=None)
@given(seed=seeds, slow=st.booleans())
def test_the_replay_is_as_long_as_the_recording(way: str, seed: int, slow: bool) -> None:  # noqa: FBT001
    session = draw_host_session("slow_worker" if slow else None, 1.8, seed, way)
    replayed = prepare_replay(session.trace)
    made = {item.name for item in replayed.adaptations}

    assert made - ALSO <= {CALLED_FOR[way]}
    assert made >= {CALLED_FOR[way]} & ALWAYS
    assert measure(replayed).discrepancy < 0.02


@few
@given(seed=seeds, dp=st.integers(2, 3))
def test_what_computations_wait_for_is_taken_out_as_by_the_twin(seed: int, dp: int) -> None:
    trace = run(HostJob(dp=dp, gathers=True, steps=3, factors={(1, 0): 1.6}, seed=seed)).trace
    replayed = prepare_replay(trace, without=tuple(Name))
    layout = replayed.layout
    found = find_nested(layout)
    assert found is not None
    waited: dict[int, list[int]] = {}
    for item in found[0]:
        assert item.waited
        waited.setdefault(item.computation, []).append(item.collective)
    changed = take_out(layout, found[0])
    graph = set_apart(layout, replayed.graph, found[0])

    after = {
        node: befores
        for unit in graph.units
        for node, befores in zip(unit.members, unit.after, strict=True)
    }
    for item in found[0]:
        first, second = item.collective, item.computation
        if not item.first:
            first, second = second, first
        assert first in after[second]
    ends = changed.start_ns + changed.duration_ns
    for step, rank in np.ndindex(len(layout.steps), layout.dp):
        for host, own in twins.taken_out(layout, waited, step, rank).items():
            assert changed.duration_ns[host, step, rank] == pytest.approx(own, abs=1.0)
            # The pieces of the computation begin when the computation began, and follow each other
            # as in the graph.
            nodes = [host, *waited[host]]
            begin = changed.start_ns[nodes, step, rank].min()
            assert begin == pytest.approx(layout.start_ns[host, step, rank], abs=1.0)
            for node in nodes:
                for before in set(after[node]) & set(nodes):
                    assert changed.start_ns[node, step, rank] >= ends[before, step, rank] - 1
    for item in found[0]:
        # From the arrival of the last rank, after all computing before the collective.
        node = item.collective
        took = layout.start_ns[node] + layout.duration_ns[node]
        took = took - layout.start_ns[node].max(axis=-1, keepdims=True)
        came = changed.start_ns[node].max(axis=-1, keepdims=True)
        assert ends[node] == pytest.approx(np.maximum(came + took, changed.start_ns[node]), abs=1.0)


@few
@given(seed=seeds, dp=st.integers(2, 3), meanwhile=st.sets(st.integers(0, 3), max_size=2))
def test_awaited_operations_are_found_as_by_the_twin(
    seed: int, dp: int, meanwhile: set[int]
) -> None:
    trace = run(HostJob(dp=dp, gathers=True, steps=3, factors={(1, 0): 1.6}, seed=seed)).trace
    layout = prepare_replay(trace, without=tuple(Name)).layout
    found = find_nested(layout)
    assert found is not None
    hosts = {item.collective: item.computation for item in found[0]}
    places = classes_of(layout, hosts)
    # At these places, operations take far longer than elsewhere.
    longer = layout.duration_ns.copy()
    chosen = {place for at, place in enumerate(sorted(set(places.values()))) if at in meanwhile}
    for node in (node for node, place in places.items() if place in chosen):
        longer[node] += 8 * np.median(layout.duration_ns[list(hosts)])
    layout = replace(layout, duration_ns=longer)

    assert waited_for(layout, hosts, places) == twins.waited_for(layout, hosts, places)


@few
@given(seed=seeds, barrier=st.booleans())
def test_overlaps_are_those_of_the_twin(seed: int, barrier: bool) -> None:  # noqa: FBT001
    trace = run(HostJob(pp=3, steps=4, barrier=barrier, noise=0.02, seed=seed)).trace
    plain = prepare_replay(trace, without=tuple(Name))
    draft = Draft(
        arranged=(plain.layout,),
        layouts=(plain.layout,),
        graphs=(plain.graph,),
        own=(own_durations(plain.layout, plain.graph),),
        clocks=plain.clocks,
        recreated=plain.recreated,
        recording=Recording(absolute=True),
    )
    proposal = propose_overlapping_steps(draft)
    expected = twins.overlaps(plain.layout)

    assert (proposal is not None) == all(overlap > 0 for overlap in expected) == (not barrier)
    if proposal is not None:
        assert f"{float(np.median(expected)) * 1e-6:.0f} ms" in proposal.sign.where[0]
        assert proposal.draft.graphs[0].chained


def with_idle_receives(trace: Trace, rng: np.random.Generator) -> Trace:
    """Add receives without a send at the pipeline's ends, like those of fused calls."""
    last = trace.meta.sizes.pp - 1
    for name, stage in (("forward-recv", 0), ("backward-recv", last)):
        code = trace.op_names.index(name)
        sends = trace.op == trace.op_names.index(name.replace("recv", "send"))
        partners = np.flatnonzero(sends & (trace.pp == stage))
        count = int(trace.order[partners].max()) + 1
        chosen = rng.choice(count, 2, replace=False)
        more = select(trace, partners[np.isin(trace.order[partners], chosen)])
        more = replace(more, op=np.full_like(more.op, code))
        trace = joined(trace, more)
    # Recorders number operations by their start.
    rows = np.lexsort((trace.start_ns, trace.op, trace.step, trace.rank))
    trace = select(trace, rows)
    key = np.stack([trace.rank, trace.step, trace.op])
    new = np.any(key[:, 1:] != key[:, :-1], axis=0)
    first = np.concatenate(([0], np.flatnonzero(new) + 1))
    length = np.diff(first, append=len(trace))
    order = np.arange(len(trace)) - np.repeat(first, length)
    return replace(trace, order=order.astype(np.int32))


@few
@given(seed=seeds, pp=st.integers(2, 3))
def test_receives_without_a_send_are_left_out_and_no_others(seed: int, pp: int) -> None:
    job = Job(
        "interleaved",
        pp=pp,
        vpp=2,
        microbatches=2 * pp,
        compute_ns=50_000_000,
        jitter=False,
        types=frozenset(),
    )
    trace, _ = executed(job, steps=3, seed=seed)
    found = without_idle_transfers(with_idle_receives(trace, np.random.default_rng(seed)))

    assert found is not None
    kept, sign = found
    intervals = [
        sorted(zip(t.rank, t.step, t.op, t.start_ns, t.duration_ns, strict=True))
        for t in (kept, trace)
    ]
    assert intervals[0] == intervals[1]
    assert sign.where[-1].startswith("4 of")


@pytest.mark.parametrize("hundred", [0, *every_night(*range(1, 10))])
def test_a_thousand_jobs_of_the_paper_call_for_none(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        trace = random_job(
            seed,
            launch_overhead=seed % 2 == 0,
            interleaved=seed % 3 == 0,
            overlap=seed % 4 == 0,
            edge_transfers=seed % 5 == 0,
        ).trace
        assert prepare_replay(trace).adaptations == (), seed


def test_a_sample_is_enough_to_tell() -> None:
    trace = run(HostJob(dp=9, steps=9, microbatches=3, gathers=True)).trace
    layout = prepare_replay(trace, without=tuple(Name)).layout
    whole, part = find_nested(layout), find_nested(sampled(layout))

    assert whole is not None
    assert part is not None
    assert whole[0] == part[0]

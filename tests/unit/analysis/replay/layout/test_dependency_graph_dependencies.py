from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.analysis.replay.layout.arrange import lay_out
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependency_graph import build_graph
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes, Trace
from app.errors import UnanalyzableError
from tests.factories import select, session


def the_layout(trace: Trace) -> Layout:
    (layout,) = lay_out(trace).groups
    return layout


def node(layout: Layout, name: str, stage: int, order: int) -> int:
    nodes = layout.nodes
    code = layout.op_names.index(name)
    found = np.flatnonzero((nodes.op == code) & (nodes.pp == stage) & (nodes.order == order))
    return int(found[0])


def test_what_an_operation_waits_for() -> None:
    layout = the_layout(session(dp=2, pp=3, microbatches=4).trace)
    graph = build_graph(layout)
    after = {
        member: set(nodes)
        for unit in graph.units
        for member, nodes in zip(unit.members, unit.after, strict=True)
    }
    forward = node(layout, "forward-compute", 1, 1)
    assert node(layout, "forward-recv", 1, 1) in after[forward]
    receive = node(layout, "forward-recv", 1, 2)
    assert after[receive] == {forward, node(layout, "forward-recv", 1, 1)}
    first = node(layout, "forward-compute", 1, 0)
    assert node(layout, "params-all-gather", 1, 0) in after[first]
    send = node(layout, "backward-send", 1, 0)
    assert node(layout, "backward-compute", 1, 0) in after[send]


def test_a_gather_at_the_end_of_a_step_follows_its_optimizer_and_gates_no_forward() -> None:
    job = JobModel(Sizes(dp=2, pp=3), 4, 3, gathers_at_end=True)
    layout = the_layout(synthesize(job, seed=1).trace)
    after = {
        member: set(nodes)
        for unit in build_graph(layout).units
        for member, nodes in zip(unit.members, unit.after, strict=True)
    }
    for stage in range(3):
        gather = node(layout, "params-all-gather", stage, 0)
        assert node(layout, "optimizer", stage, 0) in after[gather]
        assert not any(gather in before for before in after.values())


def test_who_moves_data_together() -> None:
    layout = the_layout(session(dp=2, pp=3, microbatches=4).trace)
    groups = {frozenset(u.members): u.across_dp for u in build_graph(layout).units}
    pair = frozenset({node(layout, "forward-send", 0, 2), node(layout, "forward-recv", 1, 2)})
    assert groups[pair] is False
    clip = frozenset(node(layout, "optimizer-clip-main-grad", stage, 0) for stage in range(3))
    assert groups[clip] is True
    ends = frozenset(node(layout, "embedding-grads-all-reduce", stage, 0) for stage in (0, 2))
    assert groups[ends] is False
    assert groups[frozenset({node(layout, "params-all-gather", 2, 0)})] is True


def test_every_node_is_in_one_unit_behind_all_that_it_waits_for() -> None:
    layout = the_layout(session(dp=2, pp=4, microbatches=6).trace)
    seen: set[int] = set()
    for unit in build_graph(layout).units:
        assert all(set(nodes) <= seen for nodes in unit.after)
        assert seen.isdisjoint(unit.members)
        seen.update(unit.members)
    assert seen == set(range(len(layout.nodes)))


def test_operations_that_wait_for_one_another_are_named() -> None:
    trace = session(dp=1, pp=2, microbatches=4).trace
    # Stage 0 runs its backward passes first, which wait for stage 1, which waits for stage 0: a
    # cycle.
    backward = trace.op == trace.op_names.index("backward-compute")
    starts = np.where(backward & (trace.pp == 0), trace.start_ns - 10**9, trace.start_ns)
    broken = dataclasses.replace(trace, start_ns=starts)
    with pytest.raises(UnanalyzableError, match="wait for one another") as caught:
        build_graph(the_layout(broken))
    assert caught.value.stable_code == "trace.dependency_cycle"
    assert all("on stage" in fault.message for fault in caught.value.faults)


def test_transfers_that_fit_no_computation_are_refused() -> None:
    trace = session(dp=1, pp=2, microbatches=4).trace
    code = trace.op_names.index("forward-recv")
    broken = select(trace, ~((trace.op == code) & (trace.order == 3)))
    with pytest.raises(UnanalyzableError) as caught:
        build_graph(the_layout(broken))
    assert caught.value.stable_code == "trace.transfers_unmatched"
    assert "Stage 1 has 3 forward-recv for 4 computations" in caught.value.message


def test_a_step_that_cannot_have_run_so_is_dropped_by_name() -> None:
    trace = session(dp=2, pp=2, microbatches=4, steps=8).trace
    first = int(trace.step.min())
    backward = trace.op == trace.op_names.index("backward-compute")
    early = backward & (trace.pp == 0) & (trace.step == first)
    begin = trace.start_ns[trace.step == first].min()
    broken = dataclasses.replace(trace, start_ns=np.where(early, begin, trace.start_ns))
    replayed = prepare_replay(broken)
    assert [item.step for item in replayed.dropped] == [first]
    assert "wait for one another" in replayed.dropped[0].reason
    assert len(replayed.steps) == 7

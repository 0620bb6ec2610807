from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.analysis.replay.layout.arrange import lay_out
from app.analysis.replay.layout.dense import LaidOut
from app.analysis.trace.model import Sizes
from app.errors import UnanalyzableError
from tests.factories import joined, select, session


def same(one: LaidOut, other: LaidOut) -> bool:
    a, b = one.groups[0], other.groups[0]
    return (
        len(one.groups) == len(other.groups)
        and np.array_equal(a.start_ns, b.start_ns)
        and np.array_equal(a.duration_ns, b.duration_ns)
        and np.array_equal(a.steps, b.steps)
        and np.array_equal(a.nodes.mb, b.nodes.mb)
    )


def test_every_operation_has_its_place() -> None:
    trace = session().trace
    laid_out = lay_out(trace)
    (layout,) = laid_out.groups
    assert layout.start_ns.size == len(trace)
    assert layout.duration_ns.sum() == trace.duration_ns.sum()
    assert (layout.start_ns.min(axis=(0, 2)) == 0).all()
    assert laid_out.dropped == ()


def test_the_order_of_rows_does_not_matter() -> None:
    trace = session().trace
    shuffled = select(trace, np.random.default_rng(0).permutation(len(trace)))
    assert same(lay_out(trace), lay_out(shuffled))


def test_blocks_of_many_ranks_come_to_the_places_of_their_rows() -> None:
    # More DP ranks than are written in one block.
    trace = session(dp=70, microbatches=2, steps=3).trace
    shuffled = select(trace, np.random.default_rng(1).permutation(len(trace)))
    assert same(lay_out(trace), lay_out(shuffled))


def test_a_worker_that_sent_nothing_is_named() -> None:
    trace = session().trace
    without = select(trace, ~((trace.dp == 2) & (trace.pp == 1)))
    with pytest.raises(UnanalyzableError, match=r"1 of 6 workers sent nothing.*\(2, 1\)") as caught:
        lay_out(without)
    assert caught.value.stable_code == "trace.rank_missing"


def test_operations_that_lost_their_place_in_the_numbering_keep_it() -> None:
    trace = session().trace
    renumbered = dataclasses.replace(trace, order=trace.order * 3 + 1)
    assert same(lay_out(trace), lay_out(renumbered))


def test_without_a_complete_step_there_is_nothing_to_analyze() -> None:
    trace = session(steps=2).trace
    with pytest.raises(UnanalyzableError) as caught:
        lay_out(select(trace, (trace.dp != 0) | (trace.pp == 1) | (trace.op >= 7)))
    assert caught.value.stable_code == "trace.no_complete_step"
    assert "are missing" in caught.value.faults[0].message


def test_a_cell_is_analyzed_from_its_lowest_traced_rank() -> None:
    trace = session().trace
    sizes = Sizes(dp=3, pp=2, tp=2)
    meta = dataclasses.replace(trace.meta, sizes=sizes)
    low = dataclasses.replace(trace, meta=meta, rank=trace.rank * 2)
    high = dataclasses.replace(low, rank=low.rank + 1, duration_ns=low.duration_ns + 5)
    both = joined(high, low)
    assert same(lay_out(both), lay_out(low))


def test_operations_that_are_not_replayed_leave_the_layout_unchanged() -> None:
    trace = session().trace
    extra = select(trace, np.arange(6))
    extra = dataclasses.replace(
        extra, op=np.full(6, len(trace.op_names), dtype=np.int16), op_names=trace.op_names
    )
    both = joined(trace, extra, op_names=(*trace.op_names, "first-op"))
    assert same(lay_out(both), lay_out(trace))


def test_the_nodes_of_a_type_on_a_stage_are_found() -> None:
    (layout,) = lay_out(session().trace).groups
    nodes = layout.nodes

    for code, name in enumerate(layout.op_names):
        for stage in range(layout.pp):
            mine = np.flatnonzero((nodes.op == code) & (nodes.pp == stage))
            assert np.array_equal(layout.of(name, stage), mine)

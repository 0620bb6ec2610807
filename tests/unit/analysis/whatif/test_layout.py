from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.analysis.trace.model import Sizes
from app.analysis.whatif.layout import LaidOut, lay_out
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


def test_a_worker_that_sent_nothing_is_named() -> None:
    trace = session().trace
    without = select(trace, ~((trace.dp == 2) & (trace.pp == 1)))
    with pytest.raises(UnanalyzableError, match=r"1 of 6 workers sent nothing.*\(2, 1\)") as caught:
        lay_out(without)
    assert caught.value.stable_code == "trace.rank_missing"


def test_a_step_with_an_operation_missing_is_dropped_by_name() -> None:
    trace = session().trace
    step = int(np.unique(trace.step)[4])
    gone = np.flatnonzero(
        (trace.step == step) & (trace.dp == 1) & (trace.op == trace.op_names.index("optimizer"))
    )[:1]
    layout = lay_out(select(trace, np.delete(np.arange(len(trace)), gone)))
    assert [item.step for item in layout.dropped] == [step]
    assert layout.dropped[0].reason == "0 instead of 1 optimizer on stage 0 on DP rank 1"
    assert step not in layout.groups[0].steps
    rest = select(trace, trace.step != step)
    assert same(layout, lay_out(rest))


def test_a_step_whose_operations_are_numbered_with_gaps_is_dropped() -> None:
    trace = session().trace
    step = int(np.unique(trace.step)[0])
    forward = np.flatnonzero((trace.step == step) & (trace.dp == 0) & (trace.op == 0))
    trace.order[forward[-1]] += 1
    layout = lay_out(trace)
    assert [(d.step, d.reason) for d in layout.dropped] == [
        (step, "operations are numbered with gaps")
    ]


def test_steps_of_a_rarer_shape_are_dropped() -> None:
    trace = session().trace
    steps = np.unique(trace.step)
    fewer = np.isin(trace.step, steps[:3]) & (trace.mb == 3)
    layout = lay_out(select(trace, ~fewer))
    assert layout.groups[0].steps.tolist() == steps[3:].tolist()
    assert [d.step for d in layout.dropped] == steps[:3].tolist()
    assert "on every DP rank" in layout.dropped[0].reason


def test_without_a_complete_step_there_is_nothing_to_analyze() -> None:
    trace = session(steps=2).trace
    incomplete = ~((trace.dp == 0) & (trace.op == 0) & (trace.order == 0))
    incomplete |= trace.pp == 1
    kept = select(trace, incomplete)
    with pytest.raises(UnanalyzableError) as caught:
        lay_out(dataclasses.replace(kept, order=kept.order))
    assert caught.value.stable_code == "trace.no_complete_step"


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

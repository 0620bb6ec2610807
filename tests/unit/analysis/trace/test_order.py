"""The order of operations, and repeated operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.trace import storage as packed
from app.analysis.trace.decode import decode
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import InvalidTraceError
from tests.support.nightly import drawn
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.bodies import LIMITS, META


def refused(body: bytes, meta: SessionMeta = META) -> InvalidTraceError:
    with pytest.raises(InvalidTraceError) as caught:
        decode(body, meta, limits=LIMITS)
    assert caught.value.stable_code == "trace.duplicate_operation"
    return caught.value


def shuffled(made: list[dict[str, Any]], seed: int = 1) -> list[dict[str, Any]]:
    return [made[row] for row in np.random.default_rng(seed).permutation(len(made))]


def test_rows_may_come_in_any_order() -> None:
    expected = {
        (rank, step, op, start): order
        for rank, step, op, start, order in zip(
            *(
                getattr(bodies.decoded(bodies.ndjson()), name).tolist()
                for name in ("rank", "step", "op", "start_ns", "order")
            ),
            strict=True,
        )
    }
    trace = bodies.decoded(bodies.ndjson(shuffled(bodies.rows())))
    found = zip(
        *(getattr(trace, name).tolist() for name in ("rank", "step", "op", "start_ns", "order")),
        strict=True,
    )
    assert {key[:4]: key[4] for key in found} == expected


def test_rows_by_time_are_numbered_within_their_group() -> None:
    made = sorted(bodies.rows(), key=lambda row: (row["start_ns"], row["rank"]))
    trace = bodies.decoded(bodies.parquet(bodies.native_table(made)))
    assert trace.start_ns.tolist() == [row["start_ns"] for row in made]
    compute = bodies.names_of(trace).index("forward-compute")
    same = (trace.rank == trace.rank[compute]) & (trace.step == trace.step[compute])
    same &= trace.op == trace.op[compute]
    assert trace.order[same].tolist() == [0, 1, 2]


def test_recorded_order_is_kept_where_published() -> None:
    columns = bodies.published_columns()
    columns["seq_id"] = [order * 3 + 1 for order in columns["seq_id"]]
    trace = bodies.decoded(bodies.parquet(bodies.published_table(**columns)))
    assert trace.order.tolist() == columns["seq_id"]


def test_published_rows_may_come_in_any_order() -> None:
    table = bodies.published_table()
    rows = np.random.default_rng(5).permutation(len(table))
    trace = bodies.decoded(bodies.parquet(table.take(rows)))
    expected = np.array(bodies.published_columns()["seq_id"])[rows]
    assert trace.order.tolist() == expected.tolist()


def test_operations_that_start_together_keep_their_order() -> None:
    made = bodies.rows()[:3]
    for row, duration in zip(made, (300, 100, 200), strict=True):
        row |= {"op": "tp-all-reduce", "mb": -1, "start_ns": bodies.EPOCH_NS, "dur_ns": duration}
    trace = bodies.decoded(bodies.parquet(bodies.native_table(made)))
    assert trace.order.tolist() == [0, 1, 2]
    assert trace.duration_ns.tolist() == [300, 100, 200]


@pytest.mark.parametrize("far", [True, False], ids=["apart", "neighbors"])
def test_a_published_row_twice_counts_once(far: bool) -> None:  # noqa: FBT001 - a parameter
    table = bodies.published_table()
    rows = [*range(80), 12] if far else [*range(13), *range(12, 80)]
    trace = bodies.decoded(bodies.parquet(table.take(rows)))
    assert (trace.copies, trace.repeated_steps) == (1, ())
    bodies.assert_same(replace(trace, copies=0), bodies.decoded(bodies.parquet(table)))


@pytest.mark.parametrize("far", [True, False], ids=["apart", "neighbors"])
@pytest.mark.parametrize("picked", [1, 4, 9], ids=["compute", "send", "gc"])
def test_a_row_twice_counts_once(picked: int, far: bool) -> None:  # noqa: FBT001 - a parameter
    made = bodies.rows()
    whole = bodies.decoded(bodies.ndjson(made))
    made.insert(len(made) if far else picked + 1, dict(made[picked]))
    trace = bodies.decoded(bodies.ndjson(made))
    assert (trace.copies, trace.repeated_steps) == (1, ())
    bodies.assert_same(replace(trace, copies=0), whole)


def test_one_microbatch_computed_twice_costs_its_step() -> None:
    made = bodies.rows()
    made[2]["mb"] = 0
    columns = bodies.published_columns()
    columns["mb_id"][2] = 0
    for body in (
        bodies.parquet(bodies.native_table(made)),
        bodies.parquet(bodies.published_table(**columns)),
    ):
        trace = bodies.decoded(body)
        assert trace.copies == 0
        ((step, reason),) = trace.repeated_steps
        assert (step, "forward-compute twice" in reason) == (bodies.STEPS[0], True)
        assert set(trace.step.tolist()) == {bodies.STEPS[1]}


@given(st.sets(st.integers(0, 79), min_size=1, max_size=20), st.integers(0, 2**32 - 1))
@drawn(30)
def test_any_copies_anywhere_change_nothing(picked: set[int], seed: int) -> None:
    made = bodies.rows()
    doubled = shuffled([*made, *(dict(made[row]) for row in picked)], seed)
    trace = bodies.decoded(bodies.ndjson(doubled))
    assert (trace.copies, trace.repeated_steps) == (len(picked), ())
    assert len(trace) == len(made)


def test_copies_and_repeated_steps_are_stored() -> None:
    made = bodies.rows()
    made.append({**made[0], "start_ns": made[0]["start_ns"] + 5})
    made.append(dict(made[-2]))
    trace = bodies.decoded(bodies.ndjson(made))
    assert trace.copies == 1
    assert len(trace.repeated_steps) == 1
    bodies.assert_same(packed.unpack(packed.pack(trace), trace.meta), trace)
    stored = packed.unpack(packed.pack(trace), trace.meta)
    assert (stored.copies, stored.repeated_steps) == (trace.copies, trace.repeated_steps)


def test_chunks_tell_equal_microbatches_apart() -> None:
    meta = SessionMeta(Sizes(dp=2, pp=2, tp=2, vpp=2))
    made = bodies.rows()[:3]
    for row, (mb, mc) in zip(made, ((0, 0), (0, 1), (1, 0)), strict=True):
        row |= {"mb": mb, "mc": mc}
    assert len(bodies.decoded(bodies.parquet(bodies.native_table(made)), meta)) == 3
    made[2] |= {"mb": 0, "mc": 1}
    assert refused(bodies.parquet(bodies.native_table(made)), meta).faults[0].row == 2


def test_collectives_of_every_layer_may_share_a_microbatch() -> None:
    made = [{**row, "op": "tp-all-gather", "mb": 0} for row in bodies.rows()[:3]]
    assert bodies.decoded(bodies.parquet(bodies.native_table(made))).order.tolist() == [0, 1, 2]


def test_other_ranks_of_a_worker_are_no_duplicates() -> None:
    both = bodies.rows() + [{**row, "rank": row["rank"] + 1} for row in bodies.rows()]
    trace = bodies.decoded(bodies.parquet(bodies.native_table(both)))
    assert len(trace) == 2 * len(bodies.rows())
    assert sorted(set(trace.rank.tolist())) == list(range(8))


def test_one_row_over_and_over_is_refused_before_the_end() -> None:
    head, line, _ = bodies.ndjson(bodies.rows()[:1]).split(b"\n")
    # The whole body exceeds the limit of rows, but is refused earlier.
    body = head + b"\n" + (line + b"\n") * (LIMITS.max_rows + 1)
    assert [fault.line for fault in refused(body).faults][:2] == [3, 4]

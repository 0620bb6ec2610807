"""Faults of values, in every format that can contain them, with their places."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import MAX_TIME_NS
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import InvalidTraceError
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.bodies import LIMITS, META

NAN, INF = float("nan"), float("inf")
ROW = 33


def refused(body: bytes, meta: SessionMeta = META) -> InvalidTraceError:
    with pytest.raises(InvalidTraceError) as caught:
        decode(body, meta, limits=LIMITS)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("duration", NAN, "not_finite"),
        ("duration", INF, "not_finite"),
        ("duration", -INF, "not_finite"),
        ("start_ts", NAN, "not_finite"),
        ("start_ts", INF, "not_finite"),
        ("start_ts", 3600.0, "absolute_float_time"),
        ("start_ts", 1.76e9, "absolute_float_time"),
        ("start_ts", -0.001, "absolute_float_time"),
        ("rank", 8, "rank_out_of_range"),
        ("rank", -1, "rank_out_of_range"),
        ("dp_rank", 2, "dp_out_of_range"),
        ("stage", -1, "pp_out_of_range"),
        ("step", -1, "step_out_of_range"),
        ("step", 1 << 53, "step_out_of_range"),
        ("mb_id", -2, "microbatch_out_of_range"),
        ("mc", 1, "model_chunk_out_of_range"),
        ("mc", -2, "model_chunk_out_of_range"),
        ("seq_id", -1, "order_out_of_range"),
        ("duration", None, "null"),
        ("optype", None, "null"),
        ("mb_id", None, "null"),
    ],
)
def test_a_bad_value_in_published_columns_is_found(name: str, value: object, code: str) -> None:
    values = bodies.published_columns()[name]
    values[ROW] = value
    error = refused(bodies.parquet(bodies.published_table(**{name: values})))
    assert error.stable_code == f"trace.{code}"
    fault = error.faults[0]
    assert (fault.code, fault.column, fault.row) == (code, name, ROW)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("start_ns", (1 << 63) - 1, "time_overflow"),
        ("start_ns", -(1 << 63), "time_overflow"),
        ("rank", 8, "rank_out_of_range"),
        ("rank", 1 << 40, "rank_out_of_range"),
        ("dp", -1, "dp_out_of_range"),
        ("pp", 2, "pp_out_of_range"),
        ("tp", 2, "tp_out_of_range"),
        ("step", -5, "step_out_of_range"),
        ("mb", (1 << 20) + 1, "microbatch_out_of_range"),
        ("mc", 1, "model_chunk_out_of_range"),
        ("dur_ns", None, "null"),
        ("op", None, "null"),
        ("op", "\x07", "bad_op_name"),
    ],
)
@pytest.mark.parametrize("text", [True, False], ids=["ndjson", "parquet"])
def test_a_bad_value_in_our_columns_is_found(
    name: str,
    value: object,
    code: str,
    text: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    made = [{**row, "tp": 0} for row in bodies.rows()]
    made[ROW][name] = value
    body = bodies.ndjson(made) if text else bodies.parquet(bodies.native_table(made))
    error = refused(body)
    assert error.stable_code == f"trace.{code}"
    fault = error.faults[0]
    assert (fault.code, fault.column) == (code, name)
    # Lines count from 1, and the first is the header.
    assert (fault.line, fault.row) == ((ROW + 2, None) if text else (None, ROW))


@pytest.mark.parametrize("value", [-1, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("text", [True, False], ids=["ndjson", "parquet"])
def test_a_duration_that_cannot_be_is_taken_as_far_as_there_is_room(
    value: int,
    text: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    made = bodies.rows()
    made[ROW]["dur_ns"] = value
    body = bodies.ndjson(made) if text else bodies.parquet(bodies.native_table(made))
    trace = bodies.decoded(body)
    assert trace.duration_ns[ROW] == max(-MAX_TIME_NS, min(MAX_TIME_NS, value))


@pytest.mark.parametrize(("value", "taken"), [(-0.5, -(10**9) // 2), (1e12, MAX_TIME_NS)])
def test_likewise_in_published_columns(value: float, taken: int) -> None:
    values = bodies.published_columns()["duration"]
    values[ROW] = value
    trace = bodies.decoded(bodies.parquet(bodies.published_table(duration=values)))
    assert trace.duration_ns[ROW] == taken


def test_a_signaling_nan_is_refused_like_any() -> None:
    bits = np.array(bodies.published_columns()["duration"], np.float32).view(np.uint32)
    bits[ROW] = 0x7F800001
    table = bodies.published_table(duration=pa.array(bits.view(np.float32)))
    error = refused(bodies.parquet(table, use_dictionary=False))
    assert error.stable_code == "trace.not_finite"
    assert error.faults[0].row == ROW


def test_the_first_ten_faults_are_reported_in_order() -> None:
    columns = bodies.published_columns()
    for row in range(20, 40):
        columns["duration"][row] = NAN
    columns["rank"][3] = 99
    error = refused(bodies.parquet(bodies.published_table(**columns)))
    assert error.stable_code == "trace.rank_out_of_range"
    assert [fault.row for fault in error.faults] == [3, *range(20, 29)]
    assert "row 3" in error.message


def test_absolute_times_in_float32_are_refused_by_step() -> None:
    starts = [
        start + 100.0 if step == bodies.STEPS[1] else start
        for start, step in zip(
            bodies.published_columns()["start_ts"], bodies.published_columns()["step"], strict=True
        )
    ]
    error = refused(bodies.parquet(bodies.published_table(start_ts=starts)))
    assert error.stable_code == "trace.absolute_float_time"
    assert [fault.row for fault in error.faults] == [40]
    assert "step 9 begins at 100" in error.message


def test_negative_clock_readings_are_times() -> None:
    made = [
        {**row, "start_ns": row["start_ns"] - bodies.EPOCH_NS - (1 << 50)} for row in bodies.rows()
    ]
    assert bodies.decoded(bodies.ndjson(made)).start_ns.max() < 0


def test_the_widest_times_are_kept_exactly() -> None:
    made = bodies.rows()
    made[-1]["start_ns"] = 1 << 62
    made[-1]["dur_ns"] = 1 << 62
    trace = bodies.decoded(bodies.parquet(bodies.native_table(made)))
    assert int(trace.start_ns[-1]) == 1 << 62
    assert int(trace.duration_ns[-1]) == 1 << 62


@pytest.mark.parametrize("name", ["dp", "pp"])
def test_a_rank_at_two_places_is_refused(name: str) -> None:
    made = bodies.rows()
    made[ROW][name] = 1 - made[ROW][name]
    for body in (bodies.parquet(bodies.native_table(made)), bodies.ndjson(made)):
        assert refused(body).stable_code == "trace.rank_moved"


def test_a_rank_that_moves_between_steps_is_refused() -> None:
    made = bodies.rows()
    for row in made:
        if row["rank"] == 0 and row["step"] == bodies.STEPS[1]:
            row["dp"] = 1
    error = refused(bodies.parquet(bodies.native_table(made)))
    assert error.stable_code == "trace.rank_moved"
    assert error.faults[0].row == 40


def test_virtual_stages_need_chunk_and_microbatch() -> None:
    meta = SessionMeta(Sizes(dp=2, pp=2, tp=2, vpp=2))
    made = bodies.rows()
    assert len(bodies.decoded(bodies.parquet(bodies.native_table(made)), meta)) == len(made)
    made[3]["op"] = "backward-compute"
    for name, code in (("mb", "missing_microbatch"), ("mc", "missing_model_chunk")):
        without = [{**row, name: -1} for row in made]
        error = refused(bodies.parquet(bodies.native_table(without)), meta)
        assert error.stable_code == f"trace.{code}"
        assert error.faults[0].column == name

"""Files in the format of NDTimeline's public source; none was recorded by it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.trace.decode import decode
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import InvalidMetadataError, InvalidTraceError
from tests.support.nightly import drawn
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import operations

META = SessionMeta(Sizes(dp=2, pp=2, tp=2))


def timeline(operation: dict[str, Any]) -> dict[str, Any]:
    """Return an event in the format of `CompleteEvent.to_objects`; times in seconds."""
    return {
        "name": operation["op"],
        "cat": operation["op"],
        "pid": operation["dp"],
        "tid": operation["rank"] * 10,
        "args": {
            "rank": operation["rank"],
            "step": operation["step"],
            "tp": 0,
            "pp": operation["pp"],
        },
        "ts": operation["start"] * 1e6,
        "dur": operation["duration"] * 1e6,
        "ph": "X",
    }


def record(operation: dict[str, Any]) -> dict[str, Any]:
    """Return a record in the format of `DeviceTimerStreamRecord.to_dict`."""
    return {
        "ts": 1_760_000_000,
        "rank": operation["rank"],
        "metric": operation["op"],
        "iteration": 0,
        "step": operation["step"],
        "value": operation["duration"],
        "start_ts": [operation["start"]],
        "duration": [operation["duration"]],
        "model_chunk": 0,
        "stage": operation["pp"],
        "dp_rank": operation["dp"],
        "tp_rank": 0,
        "ip": "10.0.0.7",
        "role": 0,
        "trial": "1",
        "run_id": 2,
    }


OPERATIONS: list[dict[str, Any]] = [
    {"rank": 2, "dp": 1, "pp": 0, "op": op, "step": step, "start": at + step, "duration": 0.25}
    for step in (4, 5)
    for at, op in ((1.0, "forward-compute"), (1.5, "backward-compute"), (1.8, "grad-all-reduce"))
]
FORMS = {
    "timeline": json.dumps(
        [
            *map(timeline, OPERATIONS),
            {"name": "process_name", "pid": 1, "ph": "M", "args": {"name": "dp rank[1]"}},
        ]
    ),
    "records": json.dumps([record(one) for one in OPERATIONS]),
    "a record a line": "\n".join(json.dumps(record(one)) for one in OPERATIONS),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_both_forms_are_the_same_operations(text: str) -> None:
    decoded = decode(text.encode(), META, limits=LIMITS)

    assert decoded.trace_format == "ndtimeline"
    assert decoded.unmapped == ()
    found = operations(decoded.trace)
    assert {(step, op): times for (step, op, _), times in found.items()} == {
        (one["step"], alias): (round(one["start"] * 1e9), 250_000_000)
        for one in OPERATIONS
        for alias in [one["op"].replace("grad-all-reduce", "grads-reduce-scatter")]
    }
    assert set(decoded.trace.dp.tolist()) == {1}


# Seconds until the year 2096, exact in binary.
_times = st.integers(0, 4_000_000_000 * 1024).map(lambda time: time / 1024)


@drawn(60)
@given(
    made=st.lists(
        st.fixed_dictionaries(
            {
                "rank": st.just(2),
                "dp": st.just(1),
                "pp": st.just(0),
                "op": st.sampled_from(["forward-compute", "params-all-gather", "gc", "x-y"]),
                "step": st.integers(1, 3),
                "start": _times,
                "duration": st.integers(0, 1 << 30).map(lambda time: time / 1024),
            }
        ),
        min_size=1,
        max_size=12,
        unique_by=lambda one: (one["op"], one["step"], one["start"]),
    ),
    form=st.sampled_from([timeline, record]),
)
def test_a_written_recording_is_read_back(made: list[dict[str, Any]], form: Any) -> None:  # noqa: ANN401
    trace = decode(json.dumps([form(one) for one in made]).encode(), META, limits=LIMITS).trace

    wanted = sorted((one["op"], one["step"], one["start"], one["duration"]) for one in made)
    read = sorted(
        (trace.op_names[op], step, start, duration)
        for op, step, start, duration in zip(
            trace.op.tolist(),
            trace.step.tolist(),
            trace.start_ns.tolist(),
            trace.duration_ns.tolist(),
            strict=True,
        )
    )
    assert len(read) == len(wanted)
    for (op, step, start, duration), (asked_op, asked_step, asked_start, asked) in zip(
        read, wanted, strict=True
    ):
        assert (op, step) == (asked_op, asked_step)
        # A double in microseconds cannot represent all of these times to the nanosecond.
        assert abs(start - asked_start * 1e9) <= max(1, asked_start * 1e9 * 2**-51)
        assert abs(duration - asked * 1e9) <= max(1, asked * 1e9 * 2**-51)


def test_the_sizes_are_needed_with_it() -> None:
    with pytest.raises(InvalidMetadataError) as caught:
        decode(FORMS["timeline"].encode(), None, limits=LIMITS)
    assert caught.value.stable_code == "metadata.missing"


def test_steps_without_a_count_are_said_with_the_remedy() -> None:
    text = json.dumps([timeline({**one, "step": 0}) for one in OPERATIONS[:3]])
    [lost] = decode(text.encode(), META, limits=LIMITS).unmapped

    assert lost.count == 3
    assert "inc_step()" in (lost.remedy or "")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"duration": [1.0, 2.0]}, "trace.bad_event"),
        ({"start_ts": 3}, "trace.bad_event"),
        ({"start_ts": ["x"]}, "trace.wrong_type"),
        ({"rank": 77}, "trace.rank_out_of_range"),
        ({"step": None}, "trace.missing_key"),
        ({"metric": ""}, "trace.bad_op_name"),
    ],
)
def test_a_fault_has_its_place(changed: dict[str, Any], code: str) -> None:
    records = [record(one) for one in OPERATIONS]
    records[2] |= changed
    with pytest.raises(InvalidTraceError) as caught:
        decode(json.dumps(records).encode(), META, limits=LIMITS)
    assert caught.value.stable_code == code
    if code != "trace.bad_op_name":
        assert caught.value.faults[0].row == 2

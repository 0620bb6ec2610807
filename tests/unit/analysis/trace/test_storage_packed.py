from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from app.analysis.generation import READS
from app.analysis.trace import encode
from app.analysis.trace import storage as packed
from app.analysis.trace.model import KNOWN_OP_TYPES, Trace
from app.errors import InvalidTraceError, NewerFormatError
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.bodies import META

TRACE = bodies.decoded(bodies.parquet(bodies.native_table()))


def large(rows: int) -> Trace:
    random = np.random.default_rng(2)
    return replace(
        TRACE,
        rank=np.zeros(rows, np.int32),
        dp=np.zeros(rows, np.int32),
        pp=np.zeros(rows, np.int32),
        step=np.zeros(rows, np.int64),
        op=np.zeros(rows, np.int16),
        mb=np.zeros(rows, np.int32),
        mc=np.zeros(rows, np.int32),
        order=np.arange(rows, dtype=np.int32),
        start_ns=random.integers(0, 1 << 60, rows),
        duration_ns=random.integers(0, 1 << 60, rows),
    )


def test_a_stored_trace_comes_back_exactly() -> None:
    for trace in (TRACE, replace(TRACE, step_relative=True)):
        bodies.assert_same(packed.unpack(packed.pack(trace), META), trace)
        bodies.assert_same(packed.unpack(b"".join(packed.pack(trace)), META), trace)


def test_unknown_types_are_stored_by_name() -> None:
    trace = replace(TRACE, op_names=(*TRACE.op_names, "checkpoint"), op=TRACE.op + np.int16(4))
    bodies.assert_same(packed.unpack(packed.pack(trace), META), trace)


def test_codes_of_another_release_are_translated() -> None:
    older = tuple(reversed(KNOWN_OP_TYPES[:-1]))
    names = (*older, "mystery")
    codes = np.array([names.index(TRACE.op_names[code]) for code in TRACE.op], np.int16)
    codes[0] = len(older)
    back = packed.unpack(packed.pack(replace(TRACE, op_names=names, op=codes)), META)
    assert back.op_names == (*KNOWN_OP_TYPES, "mystery")
    assert bodies.names_of(back) == ["mystery", *bodies.names_of(TRACE)[1:]]


def test_batches_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "BATCH_ROWS", 7)
    bodies.assert_same(packed.unpack(packed.pack(TRACE), META), TRACE)


@pytest.mark.slow
def test_parts_are_at_most_four_mebibytes() -> None:
    trace = large(1_500_000)
    parts = list(packed.pack(trace))
    assert len(parts) > 3
    assert all(len(part) == 4 << 20 for part in parts[:-1])
    assert 0 < len(parts[-1]) <= 4 << 20
    bodies.assert_same(packed.unpack(parts, META), trace)


@pytest.mark.parametrize("damage", ["empty", "short", "noise", "foreign"])
def test_bytes_that_were_not_packed_are_refused(damage: str) -> None:
    blob = b"".join(packed.pack(TRACE))
    foreign = pa.BufferOutputStream()
    with pa.ipc.new_stream(foreign, pa.schema([("rank", pa.int32())])):
        pass
    bad = {
        "empty": b"",
        "short": blob[: len(blob) // 2],
        "noise": b"noise" * 100,
        "foreign": foreign.getvalue().to_pybytes(),
    }[damage]
    with pytest.raises(InvalidTraceError) as caught:
        packed.unpack(bad, META)
    assert caught.value.stable_code == "trace.unreadable_blob"


def test_a_trace_of_a_later_version_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(packed, "WRITES", READS + 1)
        patch.setattr(packed, "_COLUMNS", packed._COLUMNS[:3])
        blob = b"".join(packed.pack(TRACE))
    with pytest.raises(NewerFormatError) as caught:
        packed.unpack(blob, META)
    assert caught.value.generation == READS + 1


def test_encoded_bodies_decode_to_the_same_trace() -> None:
    bodies.assert_same(bodies.decoded(encode.to_parquet(TRACE)), TRACE)
    bodies.assert_same(bodies.decoded(encode.to_ndjson_gz(TRACE), None), TRACE)


def test_equal_traces_give_equal_bytes() -> None:
    assert encode.to_ndjson_gz(TRACE) == encode.to_ndjson_gz(replace(TRACE))


def test_names_are_stored_as_json_whatever_they_hold() -> None:
    names = (*TRACE.op_names, 'quoted "name", Ω')
    trace = replace(TRACE, op_names=names, op=np.full_like(TRACE.op, len(names) - 1))
    back = packed.unpack(packed.pack(trace), META)
    assert json.dumps(back.op_names) == json.dumps(names)

from __future__ import annotations

import gzip
import json
import pickle
from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.formats.kind import OWN_MEDIA_TYPE, TraceFormat, head_of
from app.analysis.trace.formats.registry import (
    FOREIGN,
    FORMATS,
    UNSUPPORTED_FILES,
    WRITERS,
    format_of,
)
from app.errors import InvalidMetadataError, InvalidTraceError, UnsupportedFormatError
from tests.unit.analysis.trace import bodies

if TYPE_CHECKING:
    from collections.abc import Callable


OWN = {name: known for name, known in FORMATS.items() if known.recorder is None}


@pytest.mark.parametrize("known", OWN.values(), ids=OWN)
def test_what_a_format_writes_is_recognized_as_that_format(known: TraceFormat) -> None:
    trace = bodies.decoded(bodies.ndjson(), None)

    assert known.writers
    for writer in known.writers.values():
        decoded = decode(writer.encode(trace), trace.meta, limits=bodies.LIMITS)
        assert decoded.trace_format == known.name
        assert decoded.trace.step_relative == known.step_relative
        assert writer.file_name.removesuffix(".gz").removesuffix(".zst").endswith(known.suffixes)


def test_no_two_formats_share_a_title_or_a_writer() -> None:
    assert len({known.title for known in FORMATS.values()}) == len(FORMATS)
    assert len(WRITERS) == sum(len(known.writers) for known in FORMATS.values())


def test_what_others_record_is_what_convert_reads() -> None:
    assert set(FOREIGN) == {"kineto", "ndtimeline", "megascan", "nsys", "otel", "xprof"}
    assert set(FOREIGN) == set(FORMATS) - set(OWN)


BEGINNINGS = {
    "kineto": b'{"schemaVersion": 1, "deviceProperties": [',
    "ndtimeline": b'[{"name": "gc", "args": {"rank": 0, "step": 1, "tp": 0, "pp": 0}, "ph": "X"}',
    "megascan": b'[{"name": "iteration begin", "ph": "i", "ts": 28, "args": {"iteration": 0}}',
    "otel": b'{"resourceSpans":[{"resource":{"attributes":[',
    "nsys": b"SQLite format 3\x00",
    "xprof": b"\n\x83\x03\x08\x03\x12\r/device:TPU:0\x1a",
}


@pytest.mark.parametrize(
    ("known", "compress"),
    [
        (known, compress)
        for known in FOREIGN.values()
        for compress in (bytes, gzip.compress)
        if known.text or compress is bytes
    ],
)
def test_recordings_of_other_tools_are_recognized(
    known: TraceFormat, compress: Callable[[bytes], bytes]
) -> None:
    assert format_of(head_of(compress(BEGINNINGS[known.name]))) is known


NAMED = {"distributedInfo": {"pg_config": [{"ranks": list(range(9000)), "traceEvents": []}]}}


@pytest.mark.parametrize(
    "body",
    [
        # Megabytes of metadata before the first event.
        {**{f"field {number}": "x" * 900 for number in range(1200)}, "traceEvents": []},
        {"record_shapes": 1, **NAMED, "traceEvents": [{"ph": "X"}]},
        [*({"ph": "M", "name": "thread_name"} for _ in range(900)), {"ph": "X", "cat": "kernel"}],
    ],
    ids=["metadata first", "groups first", "bare array"],
)
def test_kineto_is_recognized_whatever_comes_first(body: object) -> None:
    assert format_of(head_of(json.dumps(body).encode())) is FORMATS["kineto"]


def test_words_of_a_format_in_a_text_of_another_one_do_not_mislead() -> None:
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": '"metric" and "start_ts"',
        "args": {"iteration": 1},
    }
    named = {"schemaVersion": 1, "displayTimeUnit": '"resourceSpans"', "traceEvents": [event]}
    for body in ([event], named):
        assert format_of(head_of(json.dumps(body).encode())) is FORMATS["kineto"]


DUMP = {"version": "2.10", "pg_config": {"0": {"ranks": "[0]"}}, "entries": [{"record_id": 0}]}
ROCPROF = {"args": {"BeginNs": "1", "EndNs": "2", "Name": "gemm"}, "ph": "X"}
UNREAD: dict[str, bytes] = {
    "flight recorder": json.dumps(DUMP).encode(),
    "flight recorder, pickled": pickle.dumps(DUMP),
    "Chakra": json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}).encode(),
    "Chakra, protobuf": b"\x07\x0a\x050.0.4\x22\x0a\x08\x01\x12\x06aten::",
    "Chakra, protobuf with attributes": b"\xc0\x01\x0a\x0a1.1.1-dev.0\x12\x20",
    "autograd profiler": json.dumps(
        [
            {"name": "aten::mul", "ph": "X", "ts": 1.5, "dur": 2.0, "tid": 1, "args": {}}
            | {"pid": "CPU functions"}
        ]
    ).encode(),
    "Jaeger": b'{"data":[{"traceID":"a1","spans":[{"traceID":"a1"}',
    "rocprof": json.dumps({"rocprofiler-sdk-tool": [{"metadata": {}}]}).encode(),
    "rocprof, old": json.dumps({"traceEvents": [{}, ROCPROF]}).encode(),
    "Ascend": json.dumps(
        [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "Python"}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": "1.5", "dur": 2, "pid": 1},
            {"ph": "s", "bp": "e", "cat": "async_npu", "name": "torch_to_npu", "id": 1, "pid": 1},
        ]
    ).encode(),
    "Ascend, devices first": json.dumps(
        [{"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "Ascend Hardware"}}]
    ).encode(),
    "NCCL Inspector": json.dumps({"header": {}, "metadata": {}, "coll_perf": {}}).encode(),
}


@pytest.mark.parametrize("kind", UNREAD)
@pytest.mark.parametrize("name", [None, "kineto"])
def test_a_file_without_operations_is_named(kind: str, name: str | None) -> None:
    with pytest.raises(UnsupportedFormatError, match=kind.partition(",")[0]) as caught:
        decode(UNREAD[kind], bodies.META, limits=bodies.LIMITS, format_name=name)
    assert caught.value.stable_code == "trace.no_operations"
    assert len({one.title for one in UNSUPPORTED_FILES}) == len(UNSUPPORTED_FILES)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"foo": 1, "bar": [1, 2]}', "an object with 'foo' and 'bar'"),
        (b'[{"foo": 1}]', "an array whose objects have 'foo'"),
        (b'{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}', "'a', 'b', 'c', 'd' and 1 more"),
        (b"2026-08-01 started", "it begins with '2026-08-01 started'"),
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_file_of_no_format_is_described(
    body: bytes, said: str, compress: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(UnsupportedFormatError) as caught:
        decode(compress(body), bodies.META, limits=bodies.LIMITS)
    assert caught.value.stable_code == "trace.unknown_format"
    assert said in caught.value.message
    assert "header" not in caught.value.message


@pytest.mark.parametrize("known", FOREIGN.values(), ids=FOREIGN)
def test_a_format_that_is_named_is_not_looked_for(known: TraceFormat) -> None:
    own = known.media_types[0]
    for name, content_type in ((known.name, None), (None, own)):
        if name is None and not own.startswith(OWN_MEDIA_TYPE):
            continue
        with pytest.raises((InvalidTraceError, InvalidMetadataError, UnsupportedFormatError)) as no:
            decode(
                b"[]",
                bodies.META,
                limits=bodies.LIMITS,
                format_name=name,
                content_type=content_type,
            )
        assert no.value.stable_code in {
            "trace.no_labels",
            "trace.no_rows",
            "trace.no_microbatches",
            "trace.command_line_only",
        }


def test_a_name_that_no_format_has_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="kineto"):
        decode(b"[]", bodies.META, limits=bodies.LIMITS, format_name="perfetto")


def test_formats_of_one_suffix_have_one_media_type_and_one_decoder() -> None:
    for one in OWN.values():
        for other in OWN.values():
            if set(one.suffixes) & set(other.suffixes):
                assert one.media_types == other.media_types
                assert one.decode == other.decode


def test_lines_that_are_sent_as_ours_are_read_as_ours() -> None:
    with pytest.raises(InvalidTraceError) as caught:
        decode(
            b'{"dp": 1}\n',
            bodies.META,
            limits=bodies.LIMITS,
            content_type=FORMATS["ndjson"].media_types[0],
        )
    assert caught.value.stable_code == "trace.null"
    with pytest.raises(UnsupportedFormatError):
        decode(
            b"[1]", bodies.META, limits=bodies.LIMITS, content_type=FORMATS["ndjson"].media_types[0]
        )

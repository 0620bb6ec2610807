"""Damaged bodies give a trace or a refusal, and never another exception."""

# ruff: noqa: PT017 - an error is one of two good ends here

from __future__ import annotations

import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.trace import encode
from app.analysis.trace import storage as packed
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import MAX_TIME_NS, Limits
from app.analysis.trace.metadata import load_metadata, metadata_document, parse_metadata
from app.analysis.trace.model import SessionMeta, Sizes, Trace
from app.analysis.trace.readers.ndjson_exact import read_lines
from app.analysis.trace.readers.parquet_headers import ReadBudget, ThriftError, read_struct
from app.errors import InvalidMetadataError, PacelineError
from tests.unit.analysis.trace import bodies

if TYPE_CHECKING:
    from collections.abc import Callable

# The same examples in every run, so that a failure can be reproduced.
bounded = settings(max_examples=60, derandomize=True, deadline=None, database=None)

LIMITS = Limits(max_decompressed_bytes=16 << 20, max_rows=20_000, max_header_bytes=1 << 16)
BODIES = {
    "published": bodies.parquet(bodies.published_table()),
    "plain-pages": bodies.parquet(
        bodies.published_table(), use_dictionary=False, compression="none"
    ),
    "small-groups": bodies.parquet(
        bodies.native_table(), row_group_size=9, compression="zstd", data_page_version="2.0"
    ),
    "ndjson": bodies.ndjson(),
    "gzip": gzip.compress(bodies.ndjson(), mtime=0),
    "zstd": zstandard.ZstdCompressor().compress(bodies.ndjson()),
}

_places = st.integers(0, 1 << 20)
_edits = st.lists(
    st.tuples(
        _places,
        st.integers(0, 12),
        st.one_of(
            st.binary(max_size=8),
            st.sampled_from(
                [
                    b"null",
                    b"NaN",
                    b"\xff" * 9,
                    b"\x00" * 9,
                    b"\x80" * 9 + b"\x01",
                    b"}{",
                    b"\n",
                    b'"',
                ]
            ),
        ),
    ),
    min_size=1,
    max_size=6,
)


def edited(body: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Replace stretches of a body; places wrap around."""
    for place, removed, inserted in edits:
        start = place % (len(body) + 1)
        body = body[:start] + inserted + body[start + removed :]
    return body


def decodes_or_refuses(body: bytes) -> None:
    for meta in (bodies.META, None):
        try:
            trace = decode(body, meta, limits=LIMITS).trace
        except PacelineError as error:
            assert error.stable_code.startswith(("trace.", "metadata.", "body."))
            assert len(error.faults) <= 10
            json.dumps([fault.as_dict() for fault in error.faults])
        else:
            assert_sound(trace)


def assert_sound(trace: Trace) -> None:
    """Check the properties that the code behind the decoders relies on."""
    sizes = trace.meta.sizes
    assert len(trace) > 0
    assert trace.rank.min() >= 0
    assert trace.rank.max() < sizes.world
    assert trace.dp.max() < sizes.dp
    assert trace.pp.max() < sizes.pp
    # Negative durations are accepted; they only cost their step in the analysis.
    assert abs(trace.duration_ns).max() <= MAX_TIME_NS
    assert trace.order.min() >= 0
    assert trace.op.max() < len(trace.op_names)
    keys = zip(
        trace.rank.tolist(),
        trace.step.tolist(),
        trace.op.tolist(),
        trace.order.tolist(),
        strict=True,
    )
    assert len(set(keys)) == len(trace)


@pytest.mark.parametrize("name", BODIES)
@bounded
@given(edits=_edits)
def test_edited_bytes(name: str, edits: list[tuple[int, int, bytes]]) -> None:
    decodes_or_refuses(edited(BODIES[name], edits))


@pytest.mark.parametrize("name", BODIES)
@bounded
@given(start=_places, length=_places)
def test_parts_of_bodies(name: str, start: int, length: int) -> None:
    body = BODIES[name]
    decodes_or_refuses(body[: start % len(body)])
    decodes_or_refuses(body[: start % len(body)] + body[(start + length) % len(body) :])


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
@bounded
@given(edits=_edits)
def test_edited_text_below_the_compression(
    compress: Callable[[bytes], bytes], edits: list[tuple[int, int, bytes]]
) -> None:
    decodes_or_refuses(compress(edited(bodies.ndjson(), edits)))


@bounded
@given(edits=_edits, place=_places)
def test_edited_footers(edits: list[tuple[int, int, bytes]], place: int) -> None:
    # The footer is found by its length, so edits keep the length and change its content.
    body = BODIES["published"]
    size = int.from_bytes(body[-8:-4], "little")
    footer = edited(body[-8 - size : -8], [(place + at, n, new) for at, n, new in edits])
    decodes_or_refuses(body[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.integers(-(1 << 64), 1 << 64),
    st.floats(),
    st.sampled_from(["gc", "forward-compute", "", "x" * 200, "\ud800", "0"]),
    st.just([1]),
)
_rows = st.lists(
    st.dictionaries(st.sampled_from([*bodies.rows()[0], "tp", "x"]), _values), max_size=12
)


@bounded
@given(made=_rows, kept=st.integers(0, 80))
def test_lines_of_any_values(made: list[dict[str, Any]], kept: int) -> None:
    base = bodies.rows()[:kept]
    overlaid = [{**row, **change} for row, change in zip(base, made, strict=False)]
    decodes_or_refuses(bodies.ndjson([*overlaid, *base[len(overlaid) :]]))


@bounded
@given(made=_rows, edits=_edits)
def test_the_exact_reader_of_lines(
    made: list[dict[str, Any]], edits: list[tuple[int, int, bytes]]
) -> None:
    text = b"\n".join(json.dumps(row).encode() for row in made)
    try:
        batch, lines = read_lines(edited(text, edits), 2)
    except PacelineError as error:
        assert all(fault.line is not None for fault in error.faults)
    else:
        assert batch.num_rows == len(lines)


_int64 = st.integers(-(1 << 62), 1 << 62)


@st.composite
def traces(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw rows of a small job, in any order."""
    names = draw(
        st.lists(
            st.one_of(
                st.sampled_from(["forward-compute", "gc", "optimizer", "forward-send"]),
                st.text("abcdefgh-Ωß", min_size=1, max_size=8),
            ),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    made = []
    for rank in range(draw(st.integers(1, 3))):
        for step in draw(st.lists(st.integers(0, 1 << 53), max_size=3, unique=True)):
            for name in names:
                starts = draw(st.lists(_int64, max_size=3, unique=True))
                made += [
                    {
                        "rank": rank,
                        "dp": rank,
                        "pp": 0,
                        "step": min(step, (1 << 53) - 1),
                        "op": name,
                        "mb": mb,
                        "mc": 0,
                        "start_ns": start,
                        "dur_ns": draw(st.integers(0, 1 << 62)),
                    }
                    for mb, start in enumerate(starts)
                ]
    return draw(st.permutations(made))


@bounded
@given(made=traces())
def test_every_form_of_a_trace_is_the_same_trace(made: list[dict[str, Any]]) -> None:
    meta = SessionMeta(Sizes(dp=3, pp=1))
    document = metadata_document(meta)
    body = bodies.ndjson(made, document)
    try:
        trace = decode(body, None, limits=LIMITS).trace
    except PacelineError as error:
        # The two largest drawn step numbers may be equal.
        assert error.stable_code in {"trace.no_rows", "trace.duplicate_operation"}
        return
    assert_sound(trace)
    if trace.copies or trace.repeated_steps:
        return
    assert trace.start_ns.tolist() == [row["start_ns"] for row in made]
    assert bodies.names_of(trace) == [row["op"] for row in made]
    bodies.assert_same(packed.unpack(packed.pack(trace), trace.meta), trace)
    bodies.assert_same(decode(encode.to_parquet(trace), meta, limits=LIMITS).trace, trace)
    bodies.assert_same(decode(encode.to_ndjson_gz(trace), None, limits=LIMITS).trace, trace)


@bounded
@given(edits=_edits)
def test_stored_bytes(edits: list[tuple[int, int, bytes]]) -> None:
    blob = b"".join(packed.pack(bodies.decoded(BODIES["ndjson"])))
    try:
        packed.unpack(blob[: edits[0][0] % len(blob)], bodies.META)
    except PacelineError as error:
        assert error.stable_code == "trace.unreadable_blob"


@bounded
@given(text=st.one_of(st.text(), st.text("ab:-[]{}&*!|>'\"#%@,? \n\t1.")))
def test_metadata_text(text: str) -> None:
    for document in (text, f"dp: 2\npp: 2\n{text}"):
        try:
            meta = load_metadata(document)
        except InvalidMetadataError:
            continue
        json.dumps(metadata_document(meta), allow_nan=False)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@bounded
@given(
    document=st.dictionaries(
        st.sampled_from(["dp", "pp", "tp", "world", "dp_size", "hosts", "gpus", "labels", "run_id"])
        | st.text(max_size=4),
        st.integers(1, 4) | _json | st.dictionaries(st.integers(0, 5), st.text(max_size=3)),
    )
)
def test_metadata_documents(document: dict[str, Any]) -> None:
    try:
        meta = parse_metadata({"dp": 2, "pp": 2, **document})
    except InvalidMetadataError as error:
        assert error.faults
    else:
        normal = metadata_document(meta)
        assert parse_metadata(json.loads(json.dumps(normal, allow_nan=False))) == meta


@bounded
@given(data=st.binary(max_size=64))
def test_page_headers(data: bytes) -> None:
    try:
        _, end = read_struct(data, 0, ReadBudget())
    except (ThriftError, IndexError):
        return
    assert end > 0


@pytest.mark.parametrize("options", [{"compression": "none"}, {"compression": "zstd"}], ids=str)
@bounded
@given(field=st.integers(0, 60), value=st.binary(min_size=1, max_size=10))
def test_edited_page_headers(options: dict[str, Any], field: int, value: bytes) -> None:
    body = bodies.parquet(bodies.native_table(), **options)
    chunk = pq.ParquetFile(io.BytesIO(body)).metadata.row_group(0).column(field % 9)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    place = start + field // 9
    decodes_or_refuses(body[:place] + value + body[place + len(value) :])

"""The compiled reader reads the same rows as the exact reader, or leaves a block to it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.trace.decode import decode
from app.analysis.trace.model import ABSENT
from app.analysis.trace.readers import ndjson_compiled as plain
from app.analysis.trace.readers.ndjson_compiled import read_plain
from app.analysis.trace.readers.ndjson_exact import COLUMNS, read_lines
from app.errors import PacelineError
from tests.unit.analysis.trace import bodies

if TYPE_CHECKING:
    from collections.abc import Callable

# The same examples in every run, so that a failure can be reproduced.
bounded = settings(max_examples=400, derandomize=True, deadline=None, database=None)

ROW = {
    "rank": 3,
    "dp": 1,
    "pp": 1,
    "tp": 0,
    "step": 17,
    "op": "forward-compute",
    "mb": 4,
    "mc": 0,
    "start_ns": 1_764_000_000_123_456_789,
    "dur_ns": 5_000_000,
}


def lines(*rows: dict[str, object]) -> bytes:
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


def values(block: bytes) -> list[dict[str, object]] | None:
    """Return the rows of a block by the compiled reader; None if it cannot read the block."""
    batch = read_plain(block)
    if batch is None:
        return None
    assert batch.schema.names == COLUMNS.names
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in batch.to_pylist()
    ]


def exact(block: bytes) -> list[dict[str, object]]:
    batch, _ = read_lines(block, 1)
    return [
        {
            name: ABSENT if value is None else value
            for name, value in row.items()
            if value is not None or name in {"mb", "mc"}
        }
        for row in batch.to_pylist()
    ]


BLOCK = lines(
    ROW,
    ROW | {"op": "backward-compute", "mb": -1, "mc": -1, "start_ns": -5},
    ROW | {"op": "grads-reduce-scatter", "mb": None, "mc": None, "dur_ns": 0},
)


@pytest.mark.parametrize(
    "written",
    [
        lambda block: block,
        lambda block: block.removesuffix(b"\n"),
        lambda block: block.replace(b":5000000", b":9223372036854775807"),
        lambda block: block.replace(b":5000000", b":-9223372036854775807"),
        lambda block: block.replace(b":5000000", b":-0"),
        lambda block: block.replace(b"\n", b"\r\n"),
        lambda block: block.replace(b",", b", ").replace(b":", b": "),
        lambda block: block.replace(b"{", b"{ ").replace(b"}", b"\t} "),
        lambda block: block.replace(b'"tp":0,', b""),
        lambda block: block.replace(b'"mb":null,"mc":null,', b""),
        lambda block: block.replace(b'"rank":3,"dp":1,"pp":1,', b'"pp":1,"rank":3,"dp":1,'),
        lambda block: b"".join(block.replace(b"forward", b"f%d" % number) for number in range(100)),
    ],
)
def test_lines_as_programs_write_them_are_read(written: Callable[[bytes], bytes]) -> None:
    block = written(BLOCK)

    found = values(block)

    assert found is not None
    assert found == exact(block)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"rank":3', b'"rank":03'),
        (b'"rank":3', b'"rank":3.0'),
        (b'"rank":3', b'"rank":3e0'),
        (b'"rank":3', b'"rank":"3"'),
        (b'"rank":3', b'"rank":true'),
        (b'"rank":3', b'"rank":null'),
        (b'"rank":3', b'"rank":-'),
        (b'"rank":3', b'"rank":'),
        (b'"rank":3', b'"rank":3,"rank":3'),
        (b'"rank":3', b'"ranks":3'),
        (b'"rank":3,', b""),
        (b'"rank":3', b'"rank":3,"note":"x"'),
        (b'"rank":3', b'"rank":9223372036854775808'),
        (b'"rank":3', b'"rank":9999999999999999999'),
        (b'"rank":3', b'"rank":18446744073709551617'),
        (b'"tp":0,"step":17,"op":"forward', b'"step":17,"op":"forward'),
        (b'"op":"forward-compute"', b'"op":"forw\\u0061rd-compute"'),
        (b'"op":"forward-compute"', b'"op":"forw\xc3\xa4rd"'),
        (b'"op":"forward-compute"', b'"op":"forw\xff"'),
        (b'"op":"forward-compute"', b'"op":7'),
        (b'"mb":null', b'"mb":nul'),
        (b'"mb":null', b'"mb":nulll'),
        (b"}\n{", b"}\n\n{"),
        (b"}\n{", b"} {"),
        (b"}\n{", b"},\n{"),
        (b"}\n{", b"}\n {"),
        (b"}\n{", b"\n}\n{"),
        (b'{"rank"', b'[{"rank"'),
        (b"}\n", b""),
        (b'"dur_ns":5000000}\n', b'"dur_ns":5000000'),
    ],
)
def test_what_is_not_plain_is_left_to_others(old: bytes, new: bytes) -> None:
    assert values(BLOCK.replace(old, new, 1)) is None


def test_more_names_than_a_session_may_have_are_left_to_others() -> None:
    assert values(lines(*(ROW | {"op": f"op-{number}"} for number in range(257)))) is None


def test_nothing_is_left_to_others() -> None:
    assert values(b"") is None
    assert values(b"\n") is None


_places = st.integers(0, 1 << 12)
_inserted = st.one_of(
    st.binary(max_size=3),
    st.sampled_from(
        [
            *(bytes([byte]) for byte in b'{}[]",:0123456789-+.eE \t\r\n\\ntfu'),
            b"null",
            b'"rank":1,',
            b'"tp":1,',
            b'"mb":null,',
            b'"op":"x",',
            b"}\n{",
            b"000000000000000000",
            b"999999999999999999",
            b"-0",
        ]
    ),
)


def edited(text: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for place, removed, inserted in edits:
        start = place % (len(text) + 1)
        text = text[:start] + inserted + text[start + removed :]
    return text


@bounded
@given(edits=st.lists(st.tuples(_places, st.integers(0, 6), _inserted), min_size=1, max_size=3))
def test_edited_lines(edits: list[tuple[int, int, bytes]]) -> None:
    block = edited(BLOCK, edits)

    found = values(block)

    # The exact reader would raise for a block that it refuses.
    if found is not None:
        assert found == exact(block)


def outcome(body: bytes) -> object:
    """Return a body's operations, or the code and the places of its faults."""
    try:
        trace = decode(body, bodies.META, limits=bodies.LIMITS).trace
    except PacelineError as error:
        return error.stable_code, error.message, error.faults
    return [getattr(trace, name).tolist() for name in ("rank", "step", "op", "mb", "start_ns")]


@bounded
@given(edits=st.lists(st.tuples(_places, st.integers(0, 6), _inserted), min_size=1, max_size=3))
def test_a_body_has_the_same_outcome_with_and_without_compiled_code(
    edits: list[tuple[int, int, bytes]],
) -> None:
    body = edited(bodies.ndjson(), edits)

    compiled = outcome(body)
    with pytest.MonkeyPatch.context() as patched:
        patched.delitem(sys.modules, plain.__name__)
        without = outcome(body)

    assert compiled == without

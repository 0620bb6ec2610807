from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.trace.formats.kind import MOST_EVENTS, Outline, outline_of

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS: list[dict[str, object]] = [
    {"ph": "M", "name": "process_name"},
    {"ph": "X", "cat": "cpu_op", "args": {"a": [1]}},
]


def outline(text: str, size: int = 7) -> Outline | None:
    """Return the outline of a text that arrives in pieces of some bytes."""
    body = text.encode()
    return outline_of(iter([body[at : at + size] for at in range(0, len(body), size)]))


def test_fields_are_those_before_the_events_and_events_the_first_ones() -> None:
    text = json.dumps({"a": [{"traceEvents": 1}], "b": "]}", "traceEvents": EVENTS, "c": 1})

    assert outline(text) == Outline(
        array=False, fields=("a", "b", "traceEvents"), events=tuple(EVENTS)
    )
    assert outline(json.dumps(EVENTS, indent=3)) == Outline(
        array=True, fields=(), events=tuple(EVENTS)
    )
    assert outline(" \n{} ") == Outline(array=False, fields=(), events=())


@pytest.mark.parametrize("text", ["", " ", "a", '"text"', "12", "nul", "\ufffd"])
def test_only_arrays_and_objects_have_an_outline(text: str) -> None:
    assert outline(text) is None


def test_what_is_cut_off_has_what_is_there() -> None:
    text = json.dumps({"a": {"b": [1, 2.5e3]}, "traceEvents": EVENTS})
    found = [outline(text[:length], 64) for length in range(1, len(text) + 1)]

    fields = [one.fields for one in found if one is not None]
    assert fields == sorted(fields, key=len)
    assert found[-1] == Outline(array=False, fields=("a", "traceEvents"), events=tuple(EVENTS))
    assert outline('{"a": {"b": 1') == Outline(array=False, fields=("a",), events=())


@pytest.mark.parametrize("text", ["[2026-08-01 10:00] started", "{key: 1}", '{"a" 1}', "[[[1 2"])
def test_what_only_begins_like_json_ends_there(text: str) -> None:
    found = outline(text)
    assert found is not None
    assert found.events == ()


def test_no_more_is_taken_than_is_needed() -> None:
    taken = 0

    def pieces(begin: str, more: str) -> Iterator[bytes]:
        nonlocal taken
        yield begin.encode()
        while True:
            taken += 1
            yield more.encode()

    assert outline_of(pieces('{"traceEvents": [', '{"ph": "X"},' * 100)) is not None
    assert taken <= MOST_EVENTS // 100 + 2
    taken = 0
    # Megabytes of a single value, and a depth that no recording has.
    for begin, more in (('{"a": "', "x" * 65536), ("[", "[" * 65536), ('{"a": ', " " * 65536)):
        found: Any = outline_of(pieces(begin, more))
        assert not found.events
    assert taken <= 3 * 8 * 16 + 3

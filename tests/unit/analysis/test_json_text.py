"""Dataclasses written as JSON text."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import pytest

from app.analysis.json_text import OMITTED, plain, to_json


@dataclass(frozen=True, slots=True)
class Link:
    """The two ends of a link."""

    from_: int
    to: int


@dataclass(frozen=True, slots=True)
class Place:
    """A place, with a key that may be missing and one that may be null."""

    worker: tuple[int, int]
    hosts: dict[int, str]
    links: tuple[Link, ...] = field(default=(), metadata=OMITTED)
    note: str | None = None


FULL = Place((1, 2), {3: "ä"}, (Link(0, 1),), "x")


def test_fields_are_keys_in_their_order_at_any_depth() -> None:
    assert to_json([FULL]) == (
        '[{"worker": [1, 2], "hosts": {"3": "\\u00e4"}, '
        '"links": [{"from": 0, "to": 1}], "note": "x"}]'
    )


def test_only_a_marked_field_is_left_out_where_it_has_its_default() -> None:
    assert to_json(Place((1, 2), {}), compact=True) == '{"worker":[1,2],"hosts":{},"note":null}'
    assert plain(Place((1, 2), {})) == {"worker": [1, 2], "hosts": {}, "note": None}


def test_plain_is_what_the_text_says() -> None:
    assert plain([FULL]) == json.loads(to_json([FULL]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json({"a": value})


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="a set is not JSON"):
        to_json({"a": {1}})

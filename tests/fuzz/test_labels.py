"""Arbitrary labels, and damaged recordings read with labels: rules or a refusal."""

# ruff: noqa: PT017 - an error is one of two good ends here

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.trace.decode import decode
from app.errors import InvalidLabelsError, PacelineError
from app.sessions.recordings.labels import MAX_RULES, read_labels
from tests.fuzz.recordings import LIMITS, META
from tests.fuzz.test_bodies import assert_sound, edited
from tests.fuzz.test_recordings import bounded
from tests.unit.analysis.trace.recordings import test_otlp, test_own_ranges

_PIECES = (
    *(r"(?P<mb>\d+)", r"(?P<step>.*)", r"(?P<x>a)", "(", ")", "[", "a{9}", "(a*)*", "\\", "|"),
    *("\x00", "\ud800", "é", ".", "+", "?", "attn", r"\(F\)", "(?i)", r"\pN", "\n"),
)
_patterns = st.lists(st.sampled_from(_PIECES) | st.text(max_size=3), max_size=8).map("".join)
_operations = st.sampled_from(["fwd", "bwd", "step", "gc", "ep-all-to-all", "", "x"]) | st.text()


def read(text: str) -> None:
    try:
        own = read_labels(text)
    except InvalidLabelsError as error:
        assert error.stable_code.startswith("labels.")
        assert 0 < len(error.faults) <= 10
        json.dumps([fault.as_dict() for fault in error.faults])
        return
    assert 0 < len(own.rules) <= MAX_RULES
    body = test_own_ranges.layered().body()
    for recording in (body, test_otlp.body(test_otlp.step())):
        try:
            decoded = decode(recording, META, limits=LIMITS, own=own)
        except PacelineError as error:
            assert error.stable_code.startswith(("trace.", "metadata."))
        else:
            assert_sound(decoded.trace)


@bounded
@given(rules=st.dictionaries(_patterns, _operations, max_size=4))
def test_any_patterns(rules: dict[str, str]) -> None:
    read(json.dumps(rules))


@bounded
@given(
    text=st.text(max_size=60),
    edits=st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 9), st.binary(max_size=5)), max_size=4
    ),
)
def test_any_text(text: str, edits: list[tuple[int, int, bytes]]) -> None:
    read(text)
    read(edited(test_own_ranges.LAYERS.encode(), edits).decode("utf-8", "replace"))


@pytest.mark.parametrize(
    "body",
    [test_own_ranges.layered().body(), test_otlp.request(test_otlp.body(test_otlp.step()))],
    ids=["kineto", "otel"],
)
@bounded
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 1 << 16), st.integers(0, 12), st.binary(max_size=6)),
        min_size=1,
        max_size=4,
    )
)
def test_damaged_recordings_with_labels(body: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    own = read_labels(test_own_ranges.LAYERS + "'megatron.*': fwd\n")
    try:
        decoded = decode(edited(body, edits), META, limits=LIMITS, own=own)
    except PacelineError as error:
        assert error.stable_code.startswith(("trace.", "metadata.", "body.", "labels."))
    else:
        assert_sound(decoded.trace)

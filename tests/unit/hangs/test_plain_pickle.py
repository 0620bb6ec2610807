"""Pickles are read without being executed."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidTraceError
from app.hangs.plain_pickle import plain_pickle
from tests.support.equal_hashes import pickled_keys, pickled_memo
from tests.support.hanging import pickled_by_torch
from tests.support.nightly import drawn

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
    ),
    max_leaves=20,
)


@given(value=values, protocol=st.integers(2, pickle.HIGHEST_PROTOCOL))
@drawn(300)
def test_plain_values_are_those_that_were_pickled(value: object, protocol: int) -> None:
    # Before protocol 3, bytes are pickled as a call.
    if protocol >= 3 or "bytes" not in str(kinds(value)):
        assert plain_pickle(pickle.dumps(value, protocol=protocol)) == value


def kinds(value: object) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(kinds, value.values()), {"dict"})
    if isinstance(value, list | tuple):
        return set().union(*map(kinds, value), {"list"})
    return {type(value).__name__}


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_something_is_refused_by_opcode_and_offset(protocol: int) -> None:
    body = pickle.dumps({"entries": [Hostile()]}, protocol=protocol)
    with pytest.raises(InvalidTraceError, match=r"opcode (STACK_)?GLOBAL at byte \d+") as refused:
        plain_pickle(body)
    assert refused.value.stable_code == "hang.invalid_pickle"
    assert refused.value.faults[0].row is not None


def code_of_refusal(body: bytes) -> str | None:
    try:
        plain_pickle(body)
    except InvalidTraceError as error:
        return error.stable_code
    return None


@given(body=st.binary(max_size=200))
@drawn(1000)
def test_rubbish_is_refused_and_nothing_else(body: bytes) -> None:
    for start in (b"", b"\x80\x02", b"\x80\x02}q\x00("):
        assert code_of_refusal(start + body) in {None, "hang.invalid_pickle"}


@given(at=st.integers(0, 400), byte=st.integers(0, 255))
@drawn(600)
def test_a_damaged_dump_is_read_or_refused(at: int, byte: int) -> None:
    body = bytearray(pickle.dumps({"a": [1, (2.5, "x" * 40)], "b": {"c": None}}, protocol=2))
    body[at % len(body)] = byte
    assert code_of_refusal(bytes(body)) in {None, "hang.invalid_pickle"}


def test_a_pickle_that_is_cut_off_is_refused_with_where() -> None:
    body = pickle.dumps(["x" * 100] * 3, protocol=2)
    with pytest.raises(InvalidTraceError, match="at byte"):
        plain_pickle(body[:50])


def test_marks_within_one_another_are_bounded() -> None:
    with pytest.raises(InvalidTraceError, match="MARK"):
        plain_pickle(b"\x80\x02" + b"(" * 1000)


def test_a_number_of_many_digits_is_refused() -> None:
    with pytest.raises(InvalidTraceError, match="LONG"):
        plain_pickle(b"\x80\x02\x8b\xff\xff\xff\x0f" + b"\x01" * 1000)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_keys_with_equal_hashes_are_refused_at_the_first_that_is_too_large(protocol: int) -> None:
    with pytest.raises(InvalidTraceError, match="integer beyond 64 bits") as refused:
        plain_pickle(pickled_keys(protocol))
    (fault,) = refused.value.faults
    assert fault.row is not None
    assert fault.row < 250


def test_a_memo_with_equal_hashes_is_refused() -> None:
    with pytest.raises(InvalidTraceError, match=r"PUT at byte .* integer beyond 64 bits"):
        plain_pickle(pickled_memo())


def test_keys_are_no_containers() -> None:
    # {((((None,),),),): None}, whose key would be hashed recursively
    with pytest.raises(InvalidTraceError, match="SETITEM"):
        plain_pickle(b"\x80\x02}N" + b"\x85" * 100_000 + b"Ns.")


plain_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**31), 2**62),
        st.sampled_from(("frames", "name", "line", "train.py")),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(("name", "line", "state")), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(value=st.lists(plain_values, max_size=6), times=st.integers(1, 3))
@drawn(300)
def test_values_that_occur_over_and_over_are_those_that_pytorch_wrote(
    value: list[object], times: int
) -> None:
    assert plain_pickle(pickled_by_torch(value * times)) == value * times


# Programs of opcodes that build values, store them in the memo, read them and extend them.
opcodes = st.sampled_from(
    (
        *(
            b"](K\x01e",
            b"](h\x00e",
            b"}(h\x01K\x02u",
            b"}(h\x01h\x00u",
            b"](](h\x00eK\x01e",
            b"]",
            b"}",
        ),
        *(b"K\x01a", b"h\x00a", b"h\x01K\x03s", b"h\x01h\x02s", b"\x86", b"\x85", b"(", b"e", b"u"),
        *(b"q\x00", b"q\x01", b"q\x02", b"h\x02", b"h\x00", b"N", b"\x88", b"\x94", b"M\x01\x02"),
        *(b"j\x00\x00\x00\x00", b"r\x00\x00\x00\x00", b"X\x01\x00\x00\x00a", b"l", b"t", b"d"),
    )
)


@given(program=st.lists(opcodes, max_size=40))
@drawn(3000)
def test_whatever_adds_to_a_value_adds_to_that_one_alone(program: list[bytes]) -> None:
    body = b"\x80\x02(K\x07q\x00X\x01\x00\x00\x00kq\x01" + b"".join(program) + b"l."
    with suppress(InvalidTraceError, pickle.UnpicklingError, IndexError):
        # A program that the reader accepts has plain opcodes only, so `pickle` calls nothing. Texts
        # are compared, because values may contain themselves.
        assert repr(plain_pickle(body)) == repr(pickle.loads(body))  # noqa: S301

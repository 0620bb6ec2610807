# ruff: noqa: C901, PLR0911, PLR0912, PLR0915 - a compiled loop: no objects there
"""Compiled reader of plain NDJSON lines.

A plain line is one object with our keys, each at most once, with whole numbers, and with names in
ASCII without escapes. `readers.ndjson` compares the readers and their times.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.trace.columns import NATIVE, NULLABLE
from app.analysis.trace.limits import MAX_OP_NAMES
from app.analysis.trace.model import ABSENT
from app.analysis.trace.readers.ndjson_exact import COLUMNS

_KEYS: Final = tuple(NATIVE.columns.values())
# For each key: its characters as a little-endian number, the mask of their bits, and the length.
_WORD: Final = np.array([int.from_bytes(key.encode(), "little") for key in _KEYS], np.uint64)
_MASK: Final = np.array([(1 << 8 * len(key)) - 1 for key in _KEYS], np.uint64)
_LENGTH: Final = np.array([len(key) for key in _KEYS], np.uint64)
_OP: Final = tuple(NATIVE.columns).index("op")
_TENSOR: Final = tuple(NATIVE.columns).index("tp")
# Keys that may be null.
_NULLABLE: Final = np.array([field in NULLABLE for field in NATIVE.columns])
_REQUIRED: Final = sum(
    1 << number for number, field in enumerate(NATIVE.columns) if field not in NATIVE.optional
)
_SHORTEST_LINE: Final = len('{"rank":0,"dp":0,"pp":0,"step":0,"op":"","start_ns":0,"dur_ns":0}\n')
# Maximum number of digits of an int64. A larger number with the same number of digits overflows to
# a negative number, which is rejected.
_MOST_DIGITS: Final = 19
_NOT_PLAIN: Final = -1
_ONE: Final = np.uint64(1)
_EIGHT: Final = np.uint64(8)

_TAB, _FEED, _RETURN, _SPACE = b"\t\n\r "
_QUOTE, _COMMA, _MINUS, _ZERO, _NINE, _COLON = b'",-09:'
_BACKSLASH, _OPEN, _CLOSE, _N, _U, _L, _TILDE = b"\\{}nul~"


def read_plain(block: bytes) -> pa.RecordBatch | None:
    """Return the rows of a block as `ndjson_exact.COLUMNS`; None if a line is not plain.

    Missing microbatches and chunks are `ABSENT`.
    """
    text = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    values = np.empty((len(_KEYS), len(text) // _SHORTEST_LINE + 1), np.int64)
    names = np.zeros((MAX_OP_NAMES, 2), np.uint64)
    rows, name_count, with_tensor = _read(text, values, names)
    if rows <= 0 or with_tensor not in {0, rows}:
        return None
    arrays: list[pa.Array[Any]] = [pa.array(column[:rows]) for column in values]
    texts = pa.array(
        [
            block[first : first + length].decode("ascii")
            for first, length in names[:name_count].tolist()
        ]
    )
    arrays[_OP] = pa.DictionaryArray.from_arrays(values[_OP, :rows].astype(np.int32), texts)
    if not with_tensor:
        arrays[_TENSOR] = pa.nulls(rows, pa.int64())
    return pa.record_batch(arrays, names=COLUMNS.names)


@compiled  # pragma: no cover - coverage does not see compiled code
def _word(text: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Return eight bytes as a little-endian number; bytes beyond the text count as 0."""
    word = np.uint64(0)
    # The compiler turns this loop over eight bytes into a single load.
    if at + _EIGHT <= np.uint64(len(text)):
        for offset in range(_EIGHT):
            word |= np.uint64(text[at + offset]) << (offset * _EIGHT)
        return word
    for offset in range(np.uint64(len(text)) - at):
        word |= np.uint64(text[at + offset]) << (offset * _EIGHT)
    return word


@compiled  # pragma: no cover - as above
def _read(
    text: NDArray[np.uint8], values: NDArray[np.int64], names: NDArray[np.uint64]
) -> tuple[int, int, int]:
    """Fill `values`, shape (keys, rows), and `names`: start and length of each distinct name.

    `text` ends with a line feed, which stops every scan within a line, so no other bound is needed.
    Positions are unsigned because a signed index may count from the end, which costs a test at each
    access.

    Returns
    -------
    rows, names, rows_with_tp : int
        Counts; `_NOT_PLAIN` rows where a line is not plain.
    """
    count, at = np.uint64(len(text)), np.uint64(0)
    row, name_count, expected, with_tensor, latest = 0, 0, 0, 0, 0
    while at < count:
        if text[at] != _OPEN:
            return _NOT_PLAIN, 0, 0
        at += _ONE
        present = 0
        for key in range(len(_NULLABLE)):
            if _NULLABLE[key]:
                values[key, row] = ABSENT
        while True:
            while text[at] == _SPACE or text[at] == _TAB:
                at += _ONE
            if text[at] != _QUOTE:
                return _NOT_PLAIN, 0, 0
            at += _ONE
            # Try the key that followed on the previous line first: key order is mostly constant.
            key = _NOT_PLAIN
            word = _word(text, at)
            candidate = expected
            for _ in range(len(_LENGTH)):
                if word & _MASK[candidate] == _WORD[candidate]:
                    length = _LENGTH[candidate]
                    if text[at + length] == _QUOTE:
                        key = candidate
                        at += length + _ONE
                        break
                candidate += 1
                if candidate == len(_LENGTH):
                    candidate = 0
            if key == _NOT_PLAIN or present & (1 << key):
                return _NOT_PLAIN, 0, 0
            expected = key + 1
            if expected == len(_LENGTH):
                expected = 0
            while text[at] == _SPACE or text[at] == _TAB:
                at += _ONE
            if text[at] != _COLON:
                return _NOT_PLAIN, 0, 0
            at += _ONE
            while text[at] == _SPACE or text[at] == _TAB:
                at += _ONE
            present |= 1 << key
            if key == _OP:
                if text[at] != _QUOTE:
                    return _NOT_PLAIN, 0, 0
                at += _ONE
                first = at
                code = _NOT_PLAIN
                # Compare with the name of the previous line first: names mostly repeat.
                if name_count:
                    begin, length = names[latest, 0], names[latest, 1]
                    same = True
                    for offset in range(length):
                        if text[begin + offset] != text[first + offset]:
                            same = False
                            break
                    if same and text[first + length] == _QUOTE:
                        code = latest
                        at += length
                if code == _NOT_PLAIN:
                    while (
                        _SPACE <= text[at] <= _TILDE
                        and text[at] != _QUOTE
                        and text[at] != _BACKSLASH
                    ):
                        at += _ONE
                    if text[at] != _QUOTE:
                        return _NOT_PLAIN, 0, 0
                    code = name_count
                    for candidate in range(name_count):
                        begin, length = names[candidate, 0], names[candidate, 1]
                        if length != at - first:
                            continue
                        same = True
                        for offset in range(length):
                            if text[begin + offset] != text[first + offset]:
                                same = False
                                break
                        if same:
                            code = candidate
                            break
                    if code == name_count:
                        if name_count == len(names):
                            return _NOT_PLAIN, 0, 0
                        names[name_count, 0], names[name_count, 1] = first, at - first
                        name_count += 1
                    latest = code
                values[key, row] = code
                at += _ONE
            elif text[at] == _N:
                if not _NULLABLE[key] or not (
                    text[at + _ONE] == _U
                    and text[at + np.uint64(2)] == _L
                    and text[at + np.uint64(3)] == _L
                ):
                    return _NOT_PLAIN, 0, 0
                at += np.uint64(4)
            else:
                negative = text[at] == _MINUS
                if negative:
                    at += _ONE
                first = at
                number = 0
                while _ZERO <= text[at] <= _NINE:
                    number = number * 10 + (text[at] - _ZERO)
                    at += _ONE
                digits = at - first
                if digits == 0 or digits > _MOST_DIGITS or number < 0:
                    return _NOT_PLAIN, 0, 0
                if text[first] == _ZERO and digits > 1:
                    return _NOT_PLAIN, 0, 0
                values[key, row] = -number if negative else number
            while text[at] == _SPACE or text[at] == _TAB:
                at += _ONE
            if text[at] == _COMMA:
                at += _ONE
                continue
            if text[at] != _CLOSE:
                return _NOT_PLAIN, 0, 0
            at += _ONE
            break
        if present & _REQUIRED != _REQUIRED:
            return _NOT_PLAIN, 0, 0
        while text[at] == _SPACE or text[at] == _TAB or text[at] == _RETURN:
            at += _ONE
        if text[at] != _FEED:
            return _NOT_PLAIN, 0, 0
        at += _ONE
        row += 1
        if present & (1 << _TENSOR):
            with_tensor += 1
    return row, name_count, with_tensor


def warm_up() -> None:
    """Load the compiled reader from the cache, or compile it (seconds, once per machine)."""
    read_plain(b"{}\n")

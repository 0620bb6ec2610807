"""Codes of the operation names of one body: the known types, then others as they appear."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.trace.faults import Places, refuse, refuse_body
from app.analysis.trace.limits import MAX_DICTIONARY, MAX_FAULTS, MAX_OP_NAME_CHARS
from app.analysis.trace.model import KNOWN_OP_TYPES
from app.analysis.trace.operations.values import as_numpy

_INVALID: Final = -1


class OpNames:
    """Names seen so far; a name's position is its code.

    Parameters
    ----------
    places : Places
        Names the place of a faulty row.
    """

    def __init__(self, places: Places) -> None:
        # The known types keep their codes, so that columns mostly need no second translation.
        self.names: list[str] = list(KNOWN_OP_TYPES)
        self._places = places
        self._codes: dict[str, int] = {name: code for code, name in enumerate(self.names)}
        self._dictionary: pa.Array[Any] | None = None
        self._of_dictionary: NDArray[np.int16] = np.empty(0, np.int16)

    def codes(self, column: pa.DictionaryArray[Any, Any], first_row: int) -> NDArray[np.int16]:
        """Return the code of every row of `column`, which has no nulls.

        Raises
        ------
        InvalidTraceError
            `trace.bad_op_name`, `trace.too_many_op_names`, `trace.corrupt`.
        """
        dictionary = column.dictionary
        if self._dictionary is None or not dictionary.equals(self._dictionary):
            self._of_dictionary = self._enter(dictionary)
            self._dictionary = dictionary
        codes = _look_up(as_numpy(column.indices), self._of_dictionary)
        if codes is None:
            refuse_body("corrupt", "an operation name is outside of its dictionary")
        if self._of_dictionary.min() == _INVALID and codes.min() == _INVALID:
            rows = np.flatnonzero(codes == _INVALID)[:MAX_FAULTS].tolist()
            message = f"an operation's name must be 1 to {MAX_OP_NAME_CHARS} printable characters"
            refuse(
                self._places.fault("bad_op_name", message, first_row + row, "op") for row in rows
            )
        return codes

    def _enter(self, dictionary: pa.Array[Any]) -> NDArray[np.int16]:
        if len(dictionary) > MAX_DICTIONARY:
            refuse_body("too_many_op_names", f"over {MAX_DICTIONARY} names of operations")
        # Parquet's reader does not check that strings are UTF-8.
        raw: list[bytes | None] = _as_bytes(dictionary).to_pylist()
        codes = np.array([self._code(name) for name in raw], np.int16)
        if len(self.names) > MAX_DICTIONARY:
            refuse_body("too_many_op_names", f"over {MAX_DICTIONARY} names of operations")
        return codes

    def _code(self, raw: bytes | None) -> int:
        # At most four bytes a character.
        if not raw or len(raw) > 4 * MAX_OP_NAME_CHARS:
            return _INVALID
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            return _INVALID
        if len(name) > MAX_OP_NAME_CHARS or not name.isprintable() or name != name.strip():
            return _INVALID
        if name not in self._codes:
            self._codes[name] = len(self.names)
            self.names.append(name)
        return self._codes[name]


def _look_up(indices: NDArray[Any], table: NDArray[np.int16]) -> NDArray[np.int16] | None:
    """Return what a table has at each index; None where one is outside of it."""
    if indices.min() < 0 or indices.max() >= len(table):
        return None
    # The indices are in range, so that clipping only saves the time of another check.
    return table.take(indices, mode="clip")


def _as_bytes(strings: pa.Array[Any]) -> pa.Array[Any]:
    """Return the bytes of strings, unchecked.

    Seen as what they are: a cast would load all of Arrow's functions, which takes longer than to
    read a small trace.
    """
    if pa.types.is_string(strings.type):
        return strings.view(pa.binary())
    if pa.types.is_large_string(strings.type):
        return strings.view(pa.large_binary())
    return strings.cast(pa.large_binary())

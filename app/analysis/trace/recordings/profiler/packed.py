"""Rows of integers in memory, as differences in as few bytes as hold them.

Of what a profiler records of millions of kernels and operators, one follows the other closely in
time and by number: a difference takes one, two or four bytes where the value takes eight.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_BLOCK_ROWS: Final = 1 << 14
_WIDTHS: Final = (np.int8, np.int16, np.int32)


class PackedTable:
    """Rows of some integers of 64 bits each, to be read column by column.

    Parameters
    ----------
    columns : int
        How many integers a row has.
    block_rows : int
        Rows that are packed together.
    """

    def __init__(self, columns: int, *, block_rows: int = _BLOCK_ROWS) -> None:
        self._columns = columns
        self._block_rows = block_rows
        self._tail = array("q")
        self._blocks: list[tuple[_Packed, ...]] = []

    def __len__(self) -> int:
        return len(self._blocks) * self._block_rows + len(self._tail) // self._columns

    def add(self, *row: int) -> None:
        """Append a row: one value for each column."""
        self._tail.extend(row)
        if len(self._tail) == self._columns * self._block_rows:
            self._pack_tail()

    def extend(self, *columns: NDArray[np.int64]) -> None:
        """Append rows, given column by column."""
        rows = np.stack(columns, axis=1).ravel()
        full = self._columns * self._block_rows
        while len(rows):
            room = full - len(self._tail)
            self._tail.frombytes(rows[:room].tobytes())
            rows = rows[room:]
            if len(self._tail) == full:
                self._pack_tail()

    def _pack_tail(self) -> None:
        values = np.frombuffer(self._tail, np.int64).reshape(-1, self._columns)
        self._blocks.append(tuple(_pack(column) for column in values.T))
        self._tail = array("q")

    def read(self, *columns: int) -> Iterator[tuple[NDArray[np.int64], ...]]:
        """Yield the columns asked for, some thousands of rows at a time, in order."""
        for block in self._blocks:
            yield tuple(block[column].values() for column in columns)
        if self._tail:
            # Copied: an array whose memory is lent out cannot grow.
            rest = np.array(self._tail, np.int64).reshape(-1, self._columns)
            yield tuple(rest[:, column] for column in columns)


@dataclass(frozen=True, slots=True)
class _Packed:
    first: int
    steps: NDArray[np.signedinteger]

    def values(self) -> NDArray[np.int64]:
        values = np.empty(len(self.steps) + 1, np.int64)
        values[0] = self.first
        values[1:] = self.steps
        return np.cumsum(values, out=values)


def _pack(values: NDArray[np.int64]) -> _Packed:
    # A difference beyond 64 bits comes round, and so does the sum that undoes it.
    steps = np.diff(values)
    low, high = int(steps.min(initial=0)), int(steps.max(initial=0))
    for width in _WIDTHS:
        bounds = np.iinfo(width)
        if bounds.min <= low and high <= bounds.max:
            return _Packed(int(values[0]), steps.astype(width))
    return _Packed(int(values[0]), steps)

"""Compact storage of integer columns: rows of pulses, and the stage and host of each rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import zstandard

from app.analysis.generation import WRITES, require_readable
from app.analysis.pulse.columns import (
    ARRAYS,
    MEASURES,
    NO_BEAT,
    Pulses,
    Steps,
    joined,
)
from app.analysis.quantities import IntArray

# Level of compression. Most bytes are noise, which higher levels do not make smaller.
_LEVEL: Final = 1
_WIDTHS: Final = (1, 2, 4, 8)
_HEAD_BYTES: Final = 4


def pack(
    columns: Mapping[str, IntArray],
    *,
    steps: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """Return columns as bytes: each at the narrowest of 1 to 8 bytes, compressed with zstd.

    Parameters
    ----------
    columns : mapping of str to int64[…]
        Columns, which may differ in length.
    steps : sequence of str
        Names of columns that are stored as differences.
    more : mapping, optional
        JSON values that are stored with them.
    """
    head_columns, parts = [], []
    for name, values in columns.items():
        stepped = name in steps
        plain = np.diff(values, prepend=np.int64(0)) if stepped else values
        least = int(plain.min()) if len(plain) else 0
        # The subtraction wraps modulo 2⁶⁴, and so does the addition in `unpack`.
        above = plain.astype(np.int64).view(np.uint64) - np.uint64(least % (1 << 64))
        most = int(above.max()) if len(above) else 0
        width = next(width for width in _WIDTHS if most < 1 << (8 * width))
        narrow = above.astype(f"<u{width}").view(np.uint8).reshape(len(above), width)
        # Store all first bytes, then all second bytes and so on, since the high bytes hardly differ
        # and therefore compress well.
        parts.append(np.ascontiguousarray(narrow.T).tobytes())
        head_columns.append([name, len(values), least, width, stepped])
    head = json.dumps({"version": WRITES, "columns": head_columns, "more": more or {}}).encode()
    body = b"".join([len(head).to_bytes(_HEAD_BYTES, "little"), head, *parts])
    return zstandard.compress(body, _LEVEL)


def unpack(body: bytes) -> tuple[dict[str, IntArray], dict[str, Any]]:
    """Return the columns and the JSON values that `pack` stored.

    Raises
    ------
    NewerFormatError
        A later version packed the bytes.
    """
    plain = zstandard.decompress(body)
    start = _HEAD_BYTES + int.from_bytes(plain[:_HEAD_BYTES], "little")
    head = json.loads(plain[_HEAD_BYTES:start])
    require_readable(head["version"], "the stored data of a pulse are")
    columns = {}
    for name, size, least, width, stepped in head["columns"]:
        stop = start + size * width
        planes = np.frombuffer(plain[start:stop], np.uint8).reshape(width, size)
        narrow = np.ascontiguousarray(planes.T).view(f"<u{width}").reshape(size)
        values = (narrow.astype(np.uint64) + np.uint64(least % (1 << 64))).view(np.int64)
        columns[name] = np.cumsum(values) if stepped else values
        start = stop
    return columns, head["more"]


# Columns whose values are equal or grow steadily from row to row, so that their differences
# compress well.
_STEPPED: Final = ("step", "rank", "dp_rank", "pp_rank", "time_ns", "since_ns")


def to_block(rows: Pulses) -> bytes:
    """Return rows as a block of bytes, sorted by rank and step so that differences are small."""
    order = np.lexsort((rows.time_ns, rows.step, rows.rank))
    columns = {name: getattr(rows, name)[order] for name in ARRAYS}
    return pack(columns, steps=_STEPPED, more={"phases": list(rows.phases)})


def from_block(body: bytes) -> Pulses:
    """Return the rows of a block that `to_block` wrote, sorted by rank, step and time.

    Raises
    ------
    NewerFormatError
        A later version packed the block.
    """
    columns, more = unpack(body)
    return Pulses(**columns, phases=tuple(more["phases"]))


def rows_of(steps: Steps, which: slice) -> Pulses:
    """Return a row for each step in a slice and each rank that sent it."""
    there = ~np.isnan(steps.measures["step_ns"][which])
    step, rank = np.nonzero(there)
    columns = {
        "attempt": np.full(len(step), steps.attempt, np.int64),
        "step": steps.steps[which][step],
        "rank": steps.ranks[rank],
        "dp_rank": steps.dp_ranks[rank],
        "pp_rank": steps.pp_ranks[rank],
        "time_ns": steps.ended_ns[which][there],
        "phase": np.full(len(step), NO_BEAT, np.int64),
        "since_ns": np.zeros(len(step), np.int64),
    }
    measures = {
        name: np.rint(steps.measures[name][which][there]).astype(np.int64) for name in MEASURES
    }
    return Pulses(**(columns | measures), phases=())


def in_order(parts: list[Pulses]) -> Pulses:
    """Return the rows of several blocks together, sorted by time."""
    rows = joined(parts)
    return rows.take(np.argsort(rows.time_ns, kind="stable"))


UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The pipeline stage and the host of each rank.

    Parameters
    ----------
    ranks : int64[ranks]
        Global ranks, rising.
    stages : int64[ranks]
        Pipeline stage, or `UNKNOWN`.
    host_of : int64[ranks]
        Index into `hosts`, or `UNKNOWN`.
    hosts : tuple of str
        Host names, sorted.
    """

    ranks: IntArray
    stages: IntArray
    host_of: IntArray
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, ranks: IntArray, stages: IntArray, hosts: Mapping[int, str]) -> Self:
        """Return the places of ranks, which may be given in any order."""
        order = np.argsort(ranks, kind="stable")
        names = tuple(sorted({hosts[rank] for rank in ranks.tolist() if rank in hosts}))
        number = {name: index for index, name in enumerate(names)}
        host_of = [number.get(hosts.get(rank, ""), UNKNOWN) for rank in ranks[order].tolist()]
        return cls(ranks[order], stages[order], np.array(host_of, np.int64), names)

    def of_ranks(self, ranks: IntArray) -> Places:
        """Return the places of the given ranks; `UNKNOWN` for ranks that have no place."""
        at = np.minimum(np.searchsorted(self.ranks, ranks), max(0, len(self.ranks) - 1))
        if not len(self.ranks):
            nowhere = np.full(len(ranks), UNKNOWN)
            return Places(ranks, nowhere, nowhere, ())
        has_place = self.ranks[at] == ranks
        return Places(
            ranks,
            np.where(has_place, self.stages[at], UNKNOWN),
            np.where(has_place, self.host_of[at], UNKNOWN),
            self.hosts,
        )

    def to_bytes(self) -> bytes:
        """Return the places, packed as bytes; equal places give equal bytes."""
        columns = {"ranks": self.ranks, "stages": self.stages, "host_of": self.host_of}
        return pack(columns, steps=("ranks",), more={"hosts": list(self.hosts)})


def places_from(body: bytes | None) -> Places:
    """Return the places that `Places.to_bytes` packed; no ranks for None.

    Raises
    ------
    NewerFormatError
        A later version packed the bytes.
    """
    if body is None:
        none = np.empty(0, np.int64)
        return Places(none, none, none, ())
    columns, more = unpack(body)
    return Places(columns["ranks"], columns["stages"], columns["host_of"], tuple(more["hosts"]))

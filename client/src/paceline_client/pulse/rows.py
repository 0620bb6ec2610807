"""Rows and beats of the pulse, and the body with which a host sends the data of its ranks."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

# Maximum length in characters of a phase's name; the server truncates longer names.
_LONGEST_PHASE: Final = 200
_LEVEL: Final = 6
_GZIP: Final = 16 + zlib.MAX_WBITS


class Row(NamedTuple):
    """A completed step of a rank; durations are nanoseconds."""

    step: int
    rank: int
    dp_rank: int
    pp_rank: int
    time_ns: int  # the end of the step, since the epoch
    step_ns: int
    compute_ns: int
    wait_ns: int
    data_ns: int
    optimizer_ns: int
    gc_ns: int
    tokens: int


class Beat(NamedTuple):
    """The current operation of a rank, sent regularly even while no step ends."""

    step: int
    rank: int
    dp_rank: int
    pp_rank: int
    time_ns: int
    phase: str
    since_ns: int  # since the epoch


# Columns that both rows and beats have.
_KEYS: Final = Beat._fields[:5]
_MEASURES: Final = Row._fields[5:]


class HostData(NamedTuple):
    """The fields of a pulse body that are not columns of rows or beats."""

    files: Mapping[str, str] = MappingProxyType({})  # diagnostics of ranks without progress
    readings: Sequence[Mapping[str, Any]] = ()  # states of GPUs
    world: int | None = None  # number of the job's ranks; the server refuses rows of further ranks


_NO_HOST_DATA: Final = HostData()


def body_of(
    host: str, rows: Iterable[Row], beats: Iterable[Beat], data: HostData = _NO_HOST_DATA
) -> bytes:
    """Return the gzip-compressed body of a host's rows, beats and other data.

    Each column contains differences between successive values; rows are sorted by rank, which makes
    the differences small.
    """
    steps = sorted(rows, key=lambda row: (row.rank, row.step))
    last = list(beats)
    phases = list(dict.fromkeys(beat.phase[:_LONGEST_PHASE] for beat in last))
    numbers = {phase: number for number, phase in enumerate(phases)}
    no_beats = [None] * len(last)
    columns: dict[str, list[int | None]] = {}
    for name in _KEYS:
        columns[name] = _differences([getattr(line, name) for line in (*steps, *last)])
    for at, name in enumerate(_MEASURES, len(_KEYS)):
        columns[name] = [*_differences([row[at] for row in steps]), *no_beats]
    no_steps = [None] * len(steps)
    columns["phase"] = [
        *no_steps,
        *_differences([numbers[beat.phase[:_LONGEST_PHASE]] for beat in last]),
    ]
    columns["since_ns"] = [*no_steps, *_differences([beat.since_ns for beat in last])]
    head: dict[str, object] = {"pulse": 1, "host": host, "phases": phases}
    if data.world is not None:
        head["world"] = data.world
    if data.files:
        head["files"] = dict(data.files)
    if data.readings:
        head["hardware"] = list(data.readings)
    # Compressed column by column, so that Python's interpreter lock is held for one column at a
    # time.
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    parts = [compressor.compress(f'{json.dumps(head)[:-1]}, "columns": {{'.encode())]
    for number, (name, values) in enumerate(columns.items()):
        text = json.dumps(values, separators=(",", ":"))
        parts.append(compressor.compress(f'{"," if number else ""}"{name}":{text}'.encode()))
    parts.extend((compressor.compress(b"}}"), compressor.flush()))
    return b"".join(parts)


def _differences(values: Sequence[int]) -> list[int | None]:
    return [value - before for value, before in zip(values, (0, *values), strict=False)]


@dataclass
class Pending:
    """Data of one or several ranks that were not sent yet."""

    at_s: float  # when it was added, monotonic
    rows: list[Row]
    beats: list[Beat]
    files: dict[str, str] = field(default_factory=dict)
    # States of GPUs, each with the rank that computes on the GPU
    readings: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Counts:
    """Numbers of rows: of this rank, and of the host's other ranks that passed their rows to it."""

    rows: int = 0  # measured by this rank
    sent: int = 0
    handed_in: int = 0  # passed to the rank that sends for the host
    dropped: int = 0
    bytes: int = 0  # of the bodies sent


def files_of(pending: list[Pending]) -> dict[str, str]:
    """Return all pending texts by file name."""
    return {name: text for part in pending for name, text in part.files.items()}


def unsent(pending: list[Pending], sent: int, beats: list[Beat]) -> list[Pending]:
    """Return the pending data without the first `sent` rows, and with only the given beats.

    Files and readings are in the first body, so they are removed once any row was sent.
    """
    remaining = []
    has_files = not sent
    for part in pending:
        files = part.files if has_files else {}
        readings = part.readings if has_files else []
        rows = part.rows[sent:]
        sent = max(0, sent - len(part.rows))
        kept_beats = [beat for beat in part.beats if beat in beats]
        if rows or kept_beats or files or readings:
            remaining.append(Pending(part.at_s, rows, kept_beats, files, readings))
    return remaining

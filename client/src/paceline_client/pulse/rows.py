"""Rows of a pulse, and the body in which a host sends those of its ranks."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

# Of a phase's name; the server cuts longer ones.
_LONGEST_PHASE: Final = 200
# Fast: the columns of a second are some kilobytes.
_LEVEL: Final = 6
_GZIP: Final = 16 + zlib.MAX_WBITS


class Row(NamedTuple):
    """A step that a rank has ended; durations are nanoseconds."""

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
    """What a rank was in at a time, whether a step ends or not."""

    step: int
    rank: int
    dp_rank: int
    pp_rank: int
    time_ns: int
    phase: str
    since_ns: int  # since the epoch


# Columns that rows and beats have.
_KEYS: Final = Beat._fields[:5]
_MEASURES: Final = Row._fields[5:]


class Said(NamedTuple):
    """What a body says once, for all of its host.

    `files` are of ranks that stand still, `readings` what GPUs say of themselves; `world` is the
    number of the job's ranks: the server takes none beyond it.
    """

    files: Mapping[str, str] = MappingProxyType({})
    readings: Sequence[Mapping[str, Any]] = ()
    world: int | None = None


_NOTHING: Final = Said()


def body_of(host: str, rows: Iterable[Row], beats: Iterable[Beat], said: Said = _NOTHING) -> bytes:
    """Return the compressed body of a host's rows and beats, and of what else it says.

    Rows of one rank follow one another, so that differences from one to the next are small.
    """
    steps = sorted(rows, key=lambda row: (row.rank, row.step))
    last = list(beats)
    phases = list(dict.fromkeys(beat.phase[:_LONGEST_PHASE] for beat in last))
    numbers = {phase: number for number, phase in enumerate(phases)}
    nothing = [None] * len(last)
    columns: dict[str, list[int | None]] = {}
    for name in _KEYS:
        columns[name] = _differences([getattr(line, name) for line in (*steps, *last)])
    for at, name in enumerate(_MEASURES, len(_KEYS)):
        columns[name] = [*_differences([row[at] for row in steps]), *nothing]
    none_of_steps = [None] * len(steps)
    columns["phase"] = [
        *none_of_steps,
        *_differences([numbers[beat.phase[:_LONGEST_PHASE]] for beat in last]),
    ]
    columns["since_ns"] = [*none_of_steps, *_differences([beat.since_ns for beat in last])]
    head: dict[str, object] = {"pulse": 1, "host": host, "phases": phases}
    if said.world is not None:
        head["world"] = said.world
    if said.files:
        head["files"] = dict(said.files)
    if said.readings:
        head["hardware"] = list(said.readings)
    return _packed(head, columns)


def _packed(head: dict[str, object], columns: dict[str, list[int | None]]) -> bytes:
    """Return the document, written column by column.

    Python's interpreter lock is held for one column at a time.
    """
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    parts = [packer.compress(f'{json.dumps(head)[:-1]}, "columns": {{'.encode())]
    for number, (name, values) in enumerate(columns.items()):
        text = json.dumps(values, separators=(",", ":"))
        parts.append(packer.compress(f'{"," if number else ""}"{name}":{text}'.encode()))
    parts.extend((packer.compress(b"}}"), packer.flush()))
    return b"".join(parts)


def _differences(values: Sequence[int]) -> list[int | None]:
    return [value - before for value, before in zip(values, (0, *values), strict=False)]

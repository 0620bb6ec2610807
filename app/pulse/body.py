"""Reader and writer of the bodies of a pulse: JSON with columns of integer differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Row

from app.analysis.pulse.columns import (
    BEAT_COLUMNS,
    KEYS,
    LONGEST_PHASE,
    MEASURES,
    MOST_PHASES,
    MOST_RANKS,
    NO_BEAT,
    UNKNOWN_COLUMN,
    Pulses,
    joined,
    usable,
)
from app.analysis.pulse.detector import Detector
from app.analysis.pulse.gpu_readings import Reading
from app.analysis.quantities import BoolArray, IntArray
from app.analysis.trace.compression import read_text
from app.analysis.trace.limits import MIB, Limits
from app.errors import InvalidPulseError, InvalidTraceError, PacelineError
from app.hangs.files import FileKind, HangFile, read_hang_file

MOST_BYTES: Final = MIB
MOST_EXPANDED_BYTES: Final = 4 * MIB
MOST_ROWS: Final = 1 << 16
_LONGEST_HOST: Final = 255
UNKNOWN_FILE: Final = "hang.unknown_file"
_MOST_READINGS: Final = 256
# Code under which rows of ranks beyond the job's world size are counted.
UNKNOWN_RANK: Final = "pulse.unknown_rank"
_MOST_FILES: Final = 256
_LONGEST_FILE: Final = 64 * 1024
_LONGEST_NAME: Final = 32
# Largest absolute difference and value, so that sums fit into 64 bits.
_LARGEST: Final = float(1 << 62)

FileName = Annotated[str, Field(max_length=_LONGEST_NAME)]
FileText = Annotated[str, Field(max_length=_LONGEST_FILE)]
Column = Annotated[list[int | None], Field(max_length=MOST_ROWS)]


class PulseColumns(BaseModel):
    """Columns of equal length: the first value, then differences to the last value before.

    Null for missing values: measures of beats, `phase` and `since_ns` of steps. Other columns are
    counted and dropped.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    step: Column
    rank: Column
    dp_rank: Column
    pp_rank: Column
    time_ns: Column
    step_ns: Column
    compute_ns: Column
    wait_ns: Column
    data_ns: Column
    optimizer_ns: Column
    gc_ns: Column
    tokens: Column
    phase: Column | None = None
    since_ns: Column | None = None


MaybeNumber = Annotated[int | None, Field(ge=0, le=1 << 53)]


class GpuReading(BaseModel):
    """Readings of the GPU of a rank, about once a minute; null if it does not report one."""

    model_config = ConfigDict(extra="ignore", strict=True)

    rank: Annotated[int, Field(ge=0, le=1 << 31)]
    clock_mhz: MaybeNumber = Field(None, description="Clock of the multiprocessors.")
    most_clock_mhz: MaybeNumber = None
    temperature_c: MaybeNumber = None
    power_mw: MaybeNumber = None
    throttle: MaybeNumber = Field(None, description="Bits of NVML's `nvmlClocksEventReasons`.")
    ecc_corrected: MaybeNumber = None
    ecc_uncorrected: MaybeNumber = None
    memory_used: MaybeNumber = Field(None, description="Bytes.")
    xids: Annotated[
        list[Annotated[int, Field(ge=0, le=1 << 53)]],
        Field(max_length=16, description="Codes of the driver's errors since the job began."),
    ] = Field(default_factory=list)


class PulseBody(BaseModel):
    """The pulse of one host's ranks in one attempt of a job."""

    model_config = ConfigDict(extra="ignore", strict=True)

    pulse: Literal[1] = Field(description="The version of this document.")
    host: str = Field("", max_length=_LONGEST_HOST, description="Host of all ranks in the body.")
    world: Annotated[
        int | None, Field(ge=1, description="Number of ranks of the job; higher ranks are dropped.")
    ] = None
    phases: list[str] = Field(
        default_factory=list,
        max_length=MOST_PHASES,
        description="Names of the phases; `phase` is an index, from 0.",
    )
    columns: PulseColumns
    hardware: list[GpuReading] = Field(
        default_factory=list,
        max_length=_MOST_READINGS,
        description="Readings of the GPUs of the host's ranks.",
    )
    files: dict[FileName, FileText] = Field(
        default_factory=dict,
        max_length=_MOST_FILES,
        description=(
            "Files of ranks that stand still, if the last answer requested them: `stack_3.json` "
            "as py-spy writes it, `_dump_3.json` of the flight recorder, `process_3.json` of a "
            "rank that does not answer."
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class SentPulse:
    """The usable content of a body; `counts` has the number of unusable rows and files by code."""

    rows: Pulses
    host: str
    counts: Counter[str]
    files: tuple[HangFile, ...] = ()
    readings: tuple[GpuReading, ...] = ()


def read_pulse(body: bytes, attempt: int, world: int | None = None) -> SentPulse:
    """Read a body, plain or compressed with gzip or zstd; return its usable content.

    Parameters
    ----------
    world : int, optional
        Number of ranks of the job, if the body does not have it; rows beyond it are counted.

    Raises
    ------
    InvalidPulseError
        The body is no pulse: `pulse.invalid`, `pulse.uneven` (columns of several lengths),
        `pulse.too_large` (a value over 62 bits).
    InvalidTraceError, BodyTooLargeError
        The body cannot be decompressed, or is larger than allowed then.
    """
    limits = Limits(max_decompressed_bytes=MOST_EXPANDED_BYTES)
    text = b"".join(read_text(body, limits))
    try:
        sent = PulseBody.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise InvalidPulseError(f"{where}: {first['msg']}") from error
    given = sent.columns
    lists = {name: getattr(given, name) for name in (*KEYS[1:], *MEASURES, *BEAT_COLUMNS)}
    rows = len(given.step)
    for name, values in lists.items():
        if values is not None and len(values) != rows:
            message = f"{name} has {len(values)} values, step has {rows}"
            raise InvalidPulseError(message, code="pulse.uneven")
    none = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    columns = dict.fromkeys(lists, none)
    columns |= _summed({name: values for name, values in lists.items() if values is not None})
    columns["attempt"] = np.full(rows, attempt), np.ones(rows, np.bool_)
    phase, is_there = columns.pop("phase")
    named = is_there & (phase >= 0) & (phase < len(sent.phases))
    counts: Counter[str] = Counter()
    if given.model_extra:
        counts[UNKNOWN_COLUMN] += len(given.model_extra)
    phases = tuple(name[:LONGEST_PHASE] for name in sent.phases)
    files = tuple(_files(sent.files, counts))
    used = usable(columns, np.where(named, phase, NO_BEAT), phases, counts)
    ranks = sent.world or world
    unknown = used.rank >= (ranks or math.inf)
    if unknown.any():
        counts[UNKNOWN_RANK] += int(np.count_nonzero(unknown))
        used = used.take(~unknown)
    readings = tuple(reading for reading in sent.hardware if reading.rank < (ranks or math.inf))
    return SentPulse(used, sent.host, counts, files, readings)


def write_pulse(rows: Pulses, host: str = "") -> bytes:
    """Return the rows of one attempt as an uncompressed body."""
    beat = rows.phase != NO_BEAT
    everywhere = np.ones(len(rows), np.bool_)
    there = dict.fromkeys(KEYS[1:], everywhere)
    there |= dict.fromkeys(MEASURES, ~beat) | dict.fromkeys(BEAT_COLUMNS, beat)
    columns = PulseColumns.model_validate(
        {name: _differences(getattr(rows, name), has_value) for name, has_value in there.items()}
    )
    body = PulseBody(pulse=1, host=host, phases=list(rows.phases), columns=columns)
    return body.model_dump_json().encode()


def _files(sent: Mapping[str, str], counts: Counter[str]) -> Iterator[HangFile]:
    """Yield the readable files of hanging ranks; count the unreadable files by code."""
    for name, text in sent.items():
        try:
            files = read_hang_file(name, text.encode(errors="replace"))
        except InvalidTraceError as error:
            counts[error.stable_code] += 1
            continue
        if len(files) != 1 or files[0].kind is FileKind.NCCL_RAS:
            counts[UNKNOWN_FILE] += 1
        else:
            yield files[0]


def _summed(
    differences: Mapping[str, Sequence[int | None]],
) -> Mapping[str, tuple[IntArray, BoolArray]]:
    """Return the values of columns of equal length, and masks of the values that are not null."""
    shape = len(differences), -1
    flat = list(chain.from_iterable(differences.values()))
    # NumPy converts all columns in one call, because bodies are many and small. Null becomes NaN.
    try:
        rounded = np.array(flat, np.float64)
    except OverflowError:
        rounded = np.array([math.inf])
    if np.nanmax(np.abs(rounded), initial=0.0) > _LARGEST:
        for name, values in differences.items():
            if any(value is not None and abs(value) > _LARGEST for value in values):
                raise _too_large(name)
    has_value = ~np.isnan(rounded).reshape(shape)
    plain = np.array([value or 0 for value in flat], np.int64).reshape(shape)
    largest = np.abs(np.cumsum(plain, axis=1, dtype=np.float64)).max(axis=1, initial=0.0)
    for name, most in zip(differences, largest.tolist(), strict=True):
        if most > _LARGEST:
            raise _too_large(name)
    summed = np.where(has_value, np.cumsum(plain, axis=1), 0)
    return dict(zip(differences, zip(summed, has_value, strict=True), strict=True))


def _too_large(name: str) -> InvalidPulseError:
    return InvalidPulseError(f"{name} has a value over 62 bits", code="pulse.too_large")


def _differences(values: IntArray, has_value: BoolArray) -> list[int | None]:
    """Return the differences between successive known values; None for unknown values."""
    differences: list[int | None] = [None] * len(values)
    at = np.flatnonzero(has_value)
    for row, step in zip(at.tolist(), np.diff(values[at], prepend=0).tolist(), strict=True):
        differences[row] = step
    return differences


# No further body of a batch is read after this number of rows.
BATCH_ROWS: Final = 200_000
# Rows are dropped if their time differs from their arrival by more than this. The limit is a day,
# because clocks differ and bodies may wait at the sender.
WRONG_NS: Final = 86_400_000_000_000
WRONG_TIME: Final = "pulse.wrong_time"


@dataclass(slots=True, eq=False)
class BodyBatch:
    """The content of several bodies together.

    Parameters
    ----------
    bodies : int
        Number of processed bodies, readable or not.
    rows : Pulses or None
        All rows in the order of time; None without any.
    files : list of HangFile
        Stacks and recorder dumps of hanging ranks.
    readings : dict of int to Reading
        GPU readings by rank.
    """

    bodies: int = 0
    rows: Pulses | None = None
    files: list[HangFile] = field(default_factory=list)
    readings: dict[int, Reading] = field(default_factory=dict)


def read_bodies(
    detector: Detector,
    waiting: Sequence[Row[int, bytes | None, datetime]],
    attempt: int,
    world: int | None,
    counts: Counter[str],
) -> BodyBatch:
    """Read bodies until they have `BATCH_ROWS` rows; store the hosts of their ranks.

    Parameters
    ----------
    world : int or None
        Number of ranks of the job by its last session.
    counts : Counter
        Receives the number of dropped bodies and rows by code.
    """
    batch, parts, size = BodyBatch(), [], 0
    watch = detector.watch
    watched = frozenset[int]() if watch is None else frozenset(watch.ranks.tolist())
    if world is not None and max(watched, default=world) >= world:
        world = None  # the session is of another size, or no rank is known yet
    for row in waiting:
        if size >= BATCH_ROWS:
            break
        batch.bodies += 1
        try:
            sent = read_pulse(row.body or b"", attempt, world)
        except PacelineError as error:
            counts[error.stable_code] += 1
            continue
        counts.update(sent.counts)
        rows, came_ns = sent.rows, int(row.received_at.timestamp() * 1e9)
        wrong = np.abs(rows.time_ns - came_ns) > WRONG_NS
        if wrong.any():
            counts[WRONG_TIME] += int(np.count_nonzero(wrong))
            rows = rows.take(~wrong)
        parts.append(replace(rows, came_ns=np.full(len(rows), came_ns)))
        _note_hosts(detector, watched, rows, sent.host)
        batch.files += sent.files
        for reading in sent.readings:
            values = reading.model_dump(exclude={"rank", "xids"})
            batch.readings[reading.rank] = Reading(came_ns, **values, xids=tuple(reading.xids))
        size += len(rows)
    if size:
        merged = joined(parts)
        batch.rows = merged.take(np.argsort(merged.time_ns, kind="stable"))
    return batch


def _note_hosts(detector: Detector, watched: AbstractSet[int], rows: Pulses, host: str) -> None:
    """Store the host of a body's ranks in the detector, except for ranks already in its group.

    The peers of a watched rank depend on its host, which therefore stays.
    """
    if not host:
        return
    for rank in set(rows.rank.tolist()) - watched:
        if rank in detector.hosts or len(detector.hosts) < MOST_RANKS:
            detector.hosts[rank] = host

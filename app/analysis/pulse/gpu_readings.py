"""GPU readings (clocks, temperature, memory errors), compared with peers, for notices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Final, Self

import numpy as np

from app.analysis.pulse.columns import MOST_RANKS
from app.analysis.pulse.packing import pack, unpack

# Reasons for low clocks, by the bits of NVML's `nvmlClocksEventReasons`. Reasons that are no fault
# are left out: an idle GPU, a clock set by the user, a clock that follows other GPUs.
REASONS: Final[Mapping[int, str]] = {
    0x04: "its limit of power",
    0x08: "the hardware",
    0x20: "its temperature",
    0x40: "the hardware's limit of temperature",
    0x80: "the supply of power",
}
_POWER: Final = 0x04
# Maximum age of a reading, since readings are sent each minute.
LIVES_NS: Final = 180 * 1_000_000_000
# A clock is low below this share of the peers' median. A GPU is hot if its temperature exceeds the
# peers' median by this many kelvins.
_LOW_CLOCK: Final = 0.95
_HOT_C: Final = 10
# A GPU has many corrected memory errors if it has more than its peers' median plus this number.
_MANY_ERRORS: Final = 100
_NAMED: Final = 3
_COMPARED: Final = ("clock_mhz", "temperature_c", "ecc_corrected", "ecc_uncorrected")
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Reading:
    """Readings of a GPU; a field is None if the GPU does not report it.

    Parameters
    ----------
    at_ns : int
        Time at which the reading was received, nanoseconds since the epoch.
    throttle : int or None
        Bits as in `REASONS`.
    ecc_corrected, ecc_uncorrected : int or None
        Errors of the GPU's memory since the driver was loaded.
    memory_used : int or None
        Bytes.
    xids : tuple of int
        The last XID error codes of the driver since the job began.
    """

    at_ns: int
    clock_mhz: int | None = None
    most_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    throttle: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    memory_used: int | None = None
    xids: tuple[int, ...] = ()


_NUMBERS: Final = tuple(item.name for item in fields(Reading) if item.name != "xids")


def joined(before: Mapping[int, Reading], came: Mapping[int, Reading]) -> dict[int, Reading]:
    """Merge later readings into earlier ones; return the last recent reading of each rank.

    At most `MOST_RANKS` readings are kept, because a sender may name any rank.
    """
    merged = {**before, **came}
    newest_ns = max((reading.at_ns for reading in merged.values()), default=0)
    recent = [rank for rank, reading in merged.items() if newest_ns - reading.at_ns <= LIVES_NS]
    return {rank: merged[rank] for rank in sorted(recent)[:MOST_RANKS]}


def to_bytes(readings: Mapping[int, Reading]) -> bytes:
    """Return readings by rank, packed as bytes."""
    ranks = sorted(readings)
    columns = {"rank": np.array(ranks, np.int64)}
    for name in _NUMBERS:
        values = [getattr(readings[rank], name) for rank in ranks]
        numbers = [_UNKNOWN if value is None else value for value in values]
        columns[name] = np.array(numbers, np.int64)
    xids = {str(rank): list(readings[rank].xids) for rank in ranks if readings[rank].xids}
    return pack(columns, steps=("rank",), more={"xids": xids})


def from_bytes(body: bytes | None) -> dict[int, Reading]:
    """Return the readings by rank that `to_bytes` packed; no readings for None.

    Raises
    ------
    NewerFormatError
        A later version packed the bytes.
    """
    if body is None:
        return {}
    columns, more = unpack(body)
    lists = [columns[name].tolist() for name in _NUMBERS]
    readings = {}
    for rank, *values in zip(columns["rank"].tolist(), *lists, strict=True):
        numbers = {
            name: value for name, value in zip(_NUMBERS, values, strict=True) if value != _UNKNOWN
        }
        readings[rank] = Reading(**numbers, xids=tuple(more["xids"].get(str(rank), ())))
    return readings


def unlike_peers(
    ranks: Collection[int],
    readings: Mapping[int, Reading],
    hosts: Mapping[int, str],
    now_ns: int,
) -> str | None:
    """Return in words how the GPUs of blamed ranks differ from their peers; None if they do not.

    Peers are the other GPUs of the host or, if all of these are blamed, all other GPUs of the job.
    """
    recent = {
        rank: latest for rank, latest in readings.items() if now_ns - latest.at_ns <= LIVES_NS
    }
    by_host: dict[str, list[Reading]] = {}
    for rank in recent.keys() - ranks:
        by_host.setdefault(hosts.get(rank, ""), []).append(recent[rank])
    everywhere = _Peers.of([reading for some in by_host.values() for reading in some])
    of_host = {host: _Peers.of(some) for host, some in by_host.items() if host}
    parts = []
    for rank in sorted(set(ranks) & recent.keys()):
        differences = list(_differences(recent[rank], of_host.get(hosts.get(rank, ""), everywhere)))
        if differences:
            parts.append(f"the GPU of rank {rank} {', '.join(differences)}")
    more = len(parts) - _NAMED
    return "; ".join(parts[:_NAMED]) + (f"; and {more} more" if more > 0 else "") or None


@dataclass(frozen=True, slots=True)
class _Peers:
    """Summary of the readings of peer GPUs."""

    number: int
    usual: Mapping[str, float]  # median of each reported value
    common: int  # bits of `REASONS` that most GPUs have

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> Self:
        reported = {
            name: [value for reading in readings if (value := getattr(reading, name)) is not None]
            for name in _COMPARED
        }
        common = 0
        for bit in REASONS:
            common |= bit * (2 * sum(_has(reading, bit) for reading in readings) > len(readings))
        return cls(
            len(readings),
            {name: float(median(values)) for name, values in reported.items() if values},
            common,
        )


def _differences(own: Reading, peers: _Peers) -> Iterator[str]:
    usual = peers.usual
    clock = usual.get("clock_mhz")
    if own.clock_mhz is not None and clock is not None and own.clock_mhz < _LOW_CLOCK * clock:
        yield f"runs at {own.clock_mhz:,} MHz where its peers run at {clock:,.0f}"
    # Healthy GPUs under load reach their power limit, so that without peers the limit shows no
    # fault.
    bits = REASONS if peers.number else REASONS.keys() - {_POWER}
    reasons = [REASONS[bit] for bit in sorted(bits) if _has(own, bit) and not peers.common & bit]
    if reasons:
        yield f"is slowed down by {' and '.join(reasons)}"
    heat = usual.get("temperature_c")
    if own.temperature_c is not None and heat is not None and own.temperature_c >= heat + _HOT_C:
        yield f"has {own.temperature_c} °C, its peers {heat:.0f}"
    if (own.ecc_uncorrected or 0) > usual.get("ecc_uncorrected", 0):
        yield f"has {own.ecc_uncorrected:,} uncorrected errors of memory"
    if (own.ecc_corrected or 0) > usual.get("ecc_corrected", 0) + _MANY_ERRORS:
        yield f"has {own.ecc_corrected:,} corrected errors of memory"
    if own.xids:
        yield f"reported XID {', '.join(str(code) for code in dict.fromkeys(own.xids))}"


def _has(reading: Reading, bit: int) -> bool:
    return bool((reading.throttle or 0) & bit)

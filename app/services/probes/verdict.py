"""Whether a probe confirms that a device is slow: its figures against those of its like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, nonmember
from typing import Final

# Devices of a model that make a comparison: fewer have no spread to speak of.
ENOUGH: Final = 4
# Healthy devices of a model differ by a few percent; SuperBench (ATC 2024) takes 0.95 too.
SLOW_BELOW: Final = 0.95
# Tukey's fence: within it, so low a figure is among what the others do.
_FENCE: Final = 1.5


class Measure(StrEnum):
    """What a probe measures of a device; more is faster."""

    MATMUL = "matmul_tflops"
    MEMORY_COPY = "memory_copy_gbs"
    HOST_TO_DEVICE = "host_to_device_gbs"
    DEVICE_TO_HOST = "device_to_host_gbs"
    ALL_REDUCE = "all_reduce_gbs"


class ProbeOutcome(StrEnum):
    """What a probe says of a device, or of a host."""

    CONFIRMED = "confirmed"
    CLEARED = "cleared"
    # slower than most, and not than all of the others
    UNCLEAR = "unclear"
    # too few of its like were ever probed
    NO_PEERS = "no peers"

    # The worst first.
    RANKED = nonmember((CONFIRMED, UNCLEAR, CLEARED, NO_PEERS))


@dataclass(frozen=True, slots=True)
class Peers:
    """What other devices of a model reach in a measure."""

    count: int
    # low, high: the quartiles
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of a device; `ratio` is to the median of its peers, None without enough of them."""

    value: float
    ratio: float | None
    peers: int
    outcome: ProbeOutcome


@dataclass(frozen=True, slots=True)
class JudgedDevice:
    """A device of a probe."""

    index: str
    model: str
    gpu: str | None  # its UUID
    fault: str | None  # why it could not be measured
    measures: Mapping[Measure, Compared]
    outcome: ProbeOutcome

    @property
    def worst(self) -> tuple[Measure, Compared] | None:
        """Return the measure of the worst outcome, of these the least ratio; None without any."""
        known = [item for item in self.measures.items() if item[1].ratio is not None]
        return min(known, key=lambda item: _badness(item[1]), default=None)


def compare(value: float, peers: Peers | None) -> Compared:
    """Return a figure against its peers'.

    It is confirmed as slow below 0.95 of their median, where it is also outside of Tukey's fence:
    under the lower quartile by more than 1.5 times what lies between the quartiles.

    Examples
    --------
    >>> h100 = Peers(63, 640.0, 650.0, 655.0)
    >>> [compare(tflops, h100).outcome.value for tflops in (520.0, 645.0)]
    ['confirmed', 'cleared']
    >>> compare(520.0, Peers(63, 500.0, 650.0, 700.0)).outcome.value
    'unclear'
    """
    if peers is None or peers.count < ENOUGH:
        return Compared(value, None, 0 if peers is None else peers.count, ProbeOutcome.NO_PEERS)
    ratio = value / peers.median
    if ratio >= SLOW_BELOW:
        outcome = ProbeOutcome.CLEARED
    elif value < peers.low - _FENCE * (peers.high - peers.low):
        outcome = ProbeOutcome.CONFIRMED
    else:
        outcome = ProbeOutcome.UNCLEAR
    return Compared(value, ratio, peers.count, outcome)


def judge_device(
    index: str,
    model: str,
    gpu: str | None,
    fault: str | None,
    measures: Mapping[Measure, Compared],
) -> JudgedDevice:
    """Return what a probe says of a device; one that fails is confirmed."""
    outcomes = [one.outcome for one in measures.values()]
    outcome = ProbeOutcome.CONFIRMED if fault is not None else overall(outcomes)
    return JudgedDevice(index, model, gpu, fault, measures, outcome)


def overall(outcomes: Sequence[ProbeOutcome]) -> ProbeOutcome:
    """Return what outcomes say together: the worst that is known.

    Examples
    --------
    >>> overall([ProbeOutcome.CLEARED, ProbeOutcome.NO_PEERS]).value
    'cleared'
    """
    return min(outcomes, key=ProbeOutcome.RANKED.index, default=ProbeOutcome.NO_PEERS)


def badness(device: JudgedDevice) -> tuple[bool, int, float]:
    """Return by what the worst device sorts first: one that failed, else by its worst measure."""
    worst = device.worst
    known = (ProbeOutcome.RANKED.index(device.outcome), 1.0)
    return device.fault is None, *(known if worst is None else _badness(worst[1]))


def _badness(figure: Compared) -> tuple[int, float]:
    ratio = 1.0 if figure.ratio is None else figure.ratio
    return ProbeOutcome.RANKED.index(figure.outcome), ratio

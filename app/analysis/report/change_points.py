"""Lasting changes of a job's slowdown or step time over its sessions.

Each cut is judged by Student's t of mean logarithms (likelihood ratio for a normal mean: Hawkins,
J. Amer. Statist. Assoc. 72, 1977) in seeded windows (seeded binary segmentation: Kovács et al.,
Biometrika 110, 2023), with Bonferroni's correction; t shrinks by the autocorrelation of sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Sessions on each side of a change: fewer are a passing one, or none at all.
FEWEST: Final = 3
# How often a series without a change has one named, at most.
FALSE_ALARMS: Final = 0.01
# A change of a smaller share is not worth a sentence.
SMALLEST: Final = 0.03
# Sessions do not agree better than that, whatever a few of them say.
LEAST_SPREAD: Final = 0.003
# From that many sessions on their likeness is measured; a few cannot tell it from chance.
_ALIKE_FROM: Final = 10
# Of normal noise.
_MEDIAN_TO_DEVIATION: Final = 1.4826
# Each kind of window is shorter than the one before by that much.
_SHORTER: Final = math.sqrt(2)
# That many pairs of sessions, one of each side, are apart as the sides are: two slow ones of three
# are no level yet.
_APART: Final = 0.85
_MOST_ALIKE: Final = 0.9

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lasting:
    """A change that lasted."""

    position: int  # of the first session after it
    # before, after: medians of the sessions between it and the changes next to it
    before: float
    after: float
    p: float  # how likely so large a step is without any change, over all places for one

    @property
    def change(self) -> float:
        """Return the change as a share of what was before."""
        return self.after / self.before - 1


def lasting_changes(values: Sequence[float] | NDArray[np.float64]) -> tuple[Lasting, ...]:
    """Return the lasting changes of a series, the earliest first.

    Parameters
    ----------
    values : sequence of float
        One of each session, oldest first; all above 0.

    Examples
    --------
    >>> [found] = lasting_changes([1.01, 1.02, 1.01, 1.38, 1.37, 1.38])
    >>> found.position, found.before, found.after
    (3, 1.01, 1.38)
    """
    logs = np.log(np.asarray(values, np.float64))
    cuts = dict(_cuts(logs, 0))
    edges = [0, *sorted(cuts), len(values)]
    medians = [
        float(np.median(np.asarray(values[begin:end], np.float64)))
        for begin, end in pairwise(edges)
        if end > begin
    ]
    return tuple(
        Lasting(cut, medians[index], medians[index + 1], cuts[cut])
        for index, cut in enumerate(sorted(cuts))
    )


def _cuts(logs: FloatArray, offset: int) -> list[tuple[int, float]]:
    """Return where a series changes, and how likely that is by chance."""
    found: list[tuple[int, float]] = []
    least = _least_variance(logs)
    # Not by recursion: a series may be cut often.
    waiting = [(logs, offset)]
    while waiting:
        part, begin = waiting.pop()
        cut = _best_cut(part, least)
        if cut is None:
            continue
        place, p = cut
        found.append((begin + place, p))
        waiting += [(part[:place], begin), (part[place:], begin + place)]
    return found


def _best_cut(logs: FloatArray, least: float) -> tuple[int, float] | None:
    """Return the least likely cut of all windows, and how likely it is in any of them."""
    windows = list(_windows(logs.size))
    cuts = sum(end - begin - 2 * FEWEST + 1 for begin, end in windows)
    found = None
    for begin, end in windows:
        place, p = _cut(logs[begin:end], least)
        p = min(1.0, p * cuts)
        if p < (FALSE_ALARMS if found is None else found[1]):
            found = begin + place, p
    return found


def _least_variance(logs: FloatArray) -> float:
    """Return what the sessions of a window are apart at least: as neighbours mostly are.

    Few of them may agree by chance.
    """
    if logs.size < 2 * FEWEST:
        return LEAST_SPREAD**2
    apart = float(np.median(np.abs(np.diff(logs)))) * _MEDIAN_TO_DEVIATION / math.sqrt(2)
    return max(apart, LEAST_SPREAD) ** 2


def _windows(size: int) -> Iterator[tuple[int, int]]:
    """Return all of a series, and ever shorter windows that overlap by half.

    A change that was taken back hides from a cut of the whole.
    """
    length = float(size)
    while length >= 2 * FEWEST:
        whole = round(length)
        count = math.ceil(2 * (size / whole - 1)) + 1
        for index in range(count):
            begin = round(index * (size - whole) / max(1, count - 1))
            yield begin, begin + whole
        length /= _SHORTER


def _cut(logs: FloatArray, least: float) -> tuple[int, float]:
    """Return the best cut of a window, and how likely it is there by chance; 1 if it is none."""
    size = logs.size
    places = np.arange(FEWEST, size - FEWEST + 1)
    total, sums = float(logs.sum()), np.cumsum(logs)[places - 1]
    shifts = (total - sums) / (size - places) - sums / places
    between = places * (size - places) / size * shifts**2
    # The largest t is where most of the spread is between the sides.
    best = int(np.argmax(between))
    place, shift = int(places[best]), float(shifts[best])
    before, after = logs[:place], logs[place:]
    if abs(shift) < math.log1p(SMALLEST) or _apart(before, after, rises=shift > 0) < _APART:
        return place, 1.0
    rest = np.concatenate((before - before.mean(), after - after.mean()))
    freedom = size - 2
    variance = max(float(rest @ rest) / freedom, least) * _likeness(rest)
    t = abs(shift) / math.sqrt(variance * (1 / place + 1 / (size - place)))
    return place, _two_sided(t, freedom)


def _apart(before: FloatArray, after: FloatArray, *, rises: bool) -> float:
    """Return the share of pairs of sessions, one of each side, that are apart as the sides are."""
    low, high = (before, after) if rises else (after, before)
    return float(np.mean(high[:, None] > low[None, :]))


def _likeness(rest: FloatArray) -> float:
    """Return by how much the likeness of neighbours widens the spread of a mean."""
    if rest.size < _ALIKE_FROM or not rest.any():
        return 1.0
    alike = float(rest[1:] @ rest[:-1]) / float(rest @ rest)
    # Estimates from few sessions are too low by about that much.
    alike = min(max(alike + 4 / rest.size, 0.0), _MOST_ALIKE)
    return (1 + alike) / (1 - alike)


def _two_sided(t: float, freedom: int) -> float:
    """Return the chance of so large a t, either way (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle) ** 2
    odd = freedom % 2
    term = total = math.cos(angle) if odd else 1.0
    for index in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * (index - 1) / index
        total += term
    if odd:
        within = 2 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))
    else:
        within = math.sin(angle) * total
    return max(0.0, 1.0 - within)

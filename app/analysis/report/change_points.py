"""Lasting changes in the series of a job's slowdowns or step times over its sessions.

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

from app.analysis.quantities import FloatArray

FEWEST: Final = 3  # sessions on each side of a lasting change
FALSE_ALARMS: Final = 0.01  # probability of a change in a series without one
SMALLEST: Final = 0.03  # smallest relative change
LEAST_SPREAD: Final = 0.003  # lowest standard deviation of sessions, as a few may agree by chance
_ALIKE_FROM: Final = 10  # sessions from which their autocorrelation is estimated
_MEDIAN_TO_DEVIATION: Final = 1.4826  # for normal noise
_SHORTER: Final = math.sqrt(2)  # ratio of the lengths of successive windows
# A change needs this share of the pairs of a session before and a session after to differ in its
# direction: two slow sessions of three are no lasting change.
_APART: Final = 0.85
_MOST_ALIKE: Final = 0.9  # highest autocorrelation


@dataclass(frozen=True, slots=True)
class Lasting:
    """A lasting change in a series of sessions' values."""

    position: int  # index of the first session after it
    # before, after: median of the sessions since the previous change, and until the next change
    before: float
    after: float
    p: float  # probability of so large a step without a change, corrected for all places

    @property
    def change(self) -> float:
        """Return the change relative to the level before."""
        return self.after / self.before - 1


def lasting_changes(values: Sequence[float] | FloatArray) -> tuple[Lasting, ...]:
    """Return the lasting changes of a series, the earliest first.

    Parameters
    ----------
    values : sequence of float
        A positive value of each session, oldest first.

    Examples
    --------
    >>> [found] = lasting_changes([1.01, 1.02, 1.01, 1.38, 1.37, 1.38])
    >>> found.position, found.before, found.after
    (3, 1.01, 1.38)
    """
    logs = np.log(np.asarray(values, np.float64))
    least = _least_variance(logs)
    cuts: dict[int, float] = {}
    # A stack instead of recursion, as a series may have more cuts than the recursion limit.
    pending = [(logs, 0)]
    while pending:
        part, begin = pending.pop()
        cut = _best_cut(part, least)
        if cut is not None:
            place, p = cut
            cuts[begin + place] = p
            pending += [(part[:place], begin), (part[place:], begin + place)]
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


def _best_cut(logs: FloatArray, least: float) -> tuple[int, float] | None:
    """Return the most significant cut over all windows and its corrected p; None without cuts."""
    windows = list(_windows(logs.size))
    cuts = sum(end - begin - 2 * FEWEST + 1 for begin, end in windows)
    best = None
    for begin, end in windows:
        place, p = _cut(logs[begin:end], least)
        p = min(1.0, p * cuts)
        if p < (FALSE_ALARMS if best is None else best[1]):
            best = begin + place, p
    return best


def _least_variance(logs: FloatArray) -> float:
    """Return the lower bound of a window's variance, from differences of consecutive sessions.

    Without this bound, the sessions of a short window that are equal by chance would have no
    variance.
    """
    if logs.size < 2 * FEWEST:
        return LEAST_SPREAD**2
    apart = float(np.median(np.abs(np.diff(logs)))) * _MEDIAN_TO_DEVIATION / math.sqrt(2)
    return max(apart, LEAST_SPREAD) ** 2


def _windows(size: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the whole series, then of shorter windows that overlap by half.

    Shorter windows are needed as a change that was reverted does not show in a cut of the whole
    series.
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
    """Return the best cut of a window and its p; p is 1 if the sides do not differ enough."""
    size = logs.size
    places = np.arange(FEWEST, size - FEWEST + 1)
    total, sums = float(logs.sum()), np.cumsum(logs)[places - 1]
    shifts = (total - sums) / (size - places) - sums / places
    between = places * (size - places) / size * shifts**2
    # Student's t is largest at the cut with the largest variance between its sides.
    best = int(np.argmax(between))
    place, shift = int(places[best]), float(shifts[best])
    before, after = logs[:place], logs[place:]
    low, high = (before, after) if shift > 0 else (after, before)
    apart = float(np.mean(high[:, None] > low[None, :]))
    if abs(shift) < math.log1p(SMALLEST) or apart < _APART:
        return place, 1.0
    rest = np.concatenate((before - before.mean(), after - after.mean()))
    freedom = size - 2
    variance = max(float(rest @ rest) / freedom, least) * _inflation(rest)
    t = abs(shift) / math.sqrt(variance * (1 / place + 1 / (size - place)))
    return place, _two_sided(t, freedom)


def _inflation(rest: FloatArray) -> float:
    """Return the factor by which the sessions' autocorrelation increases the variance of a mean."""
    if rest.size < _ALIKE_FROM or not rest.any():
        return 1.0
    alike = float(rest[1:] @ rest[:-1]) / float(rest @ rest)
    # The autocorrelation estimated from few sessions is too low by about 4 / n.
    alike = min(max(alike + 4 / rest.size, 0.0), _MOST_ALIKE)
    return (1 + alike) / (1 - alike)


def _two_sided(t: float, freedom: int) -> float:
    """Return the two-sided p of Student's t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
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

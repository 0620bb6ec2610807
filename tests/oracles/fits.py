"""Readable implementations of robust fits, with which `least_squares` is compared.

They handle one series and one edge at a time, with NumPy's solvers in place of our own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from app.analysis.replay.robust_statistics import (
    FLOOR,
    HUBER,
    LEAST_WEIGHT,
    MAD_TO_SD,
    MOST_ROUNDS,
    ROUNDS,
    SETTLED,
    TOLERANCE,
)

# (DP rank, stage); a name and a number for what ranks are compared with.
Clock = tuple[int | str, int]
Pair = tuple[Clock, Clock]

SMALLEST = float(np.finfo(float).tiny)


def spread_of(values: Sequence[float]) -> float:
    """Return the median distance from the median."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def connected(clocks: Iterable[Clock], pairs: Iterable[Pair]) -> dict[Clock, Clock]:
    """Return for each clock the first of all clocks that pairs connect with it."""
    part: dict[Clock, Clock] = {clock: clock for clock in clocks}
    links = list(pairs)
    for pair in links:
        for clock in pair:
            part.setdefault(clock, clock)

    def place(clock: Clock) -> tuple[bool, str, int]:
        # Ranks are sorted before the references that they are compared with.
        return isinstance(clock[0], str), f"{clock[0]:>9}", clock[1]

    while True:
        before = dict(part)
        for one, other in links:
            part[one] = part[other] = min(part[one], part[other], key=place)
        if part == before:
            return part


def robust_line(
    times: Sequence[float], series: Sequence[float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return a line's value at time 0 and its slope, each with its standard error.

    Without times other than 0 there is no slope; unknown values are NaN.
    """
    points = [(t, y) for t, y in zip(times, series, strict=True) if not math.isnan(y)]
    t, y = np.array(points).T
    scale = MAD_TO_SD * spread_of(y.tolist())
    if not any(times):
        return (float(np.median(y)), scale / math.sqrt(len(y))), (0.0, 0.0)
    slope = first_slope(times, series)
    value = float(np.median(y - slope * t))
    for _ in range(ROUNDS):
        left = np.abs(y - value - slope * t)
        scale = MAD_TO_SD * float(np.median(left))
        limit = HUBER * max(scale, SMALLEST)
        weight = np.minimum(1.0, limit / np.maximum(left, limit))
        if len(set(t.tolist())) > 1:
            slope, value = (float(c) for c in np.polyfit(t, y, 1, w=np.sqrt(weight)))
        else:
            value = float(np.average(y, weights=weight) - slope * t[0])
    spacing = math.sqrt(float((t**2).sum())) or 1.0
    return (value, scale / math.sqrt(len(y))), (slope, scale / spacing)


def first_slope(times: Sequence[float], series: Sequence[float]) -> float:
    """Return the median slope between times half the window apart; 0 without such times."""
    in_order = sorted(zip(times, series, strict=True))
    half = len(in_order) // 2
    slopes = [
        (late[1] - early[1]) / (late[0] - early[0])
        for early, late in zip(in_order[:half], in_order[len(in_order) - half :], strict=True)
        if late[0] > early[0] and not math.isnan(late[1] - early[1])
    ]
    return median(slopes) if slopes else 0.0


def potentials(edges: Mapping[Pair, tuple[float, float]]) -> dict[Clock, float]:
    """Return clocks whose differences fit those of the edges best (Huber)."""
    if not edges:
        return {}
    clocks = sorted({clock for pair in edges for clock in pair}, key=str)
    part = connected(clocks, edges)
    place = {clock: i for i, clock in enumerate(clocks)}
    difference = np.array([value for value, _ in edges.values()])
    spread = np.array([error for _, error in edges.values()])
    usual = float(np.median(np.abs(difference)))
    base = np.sqrt(spread**2 + float(np.median(spread)) ** 2 + (FLOOR * usual) ** 2)
    base[base == 0] = 1.0
    base /= base.mean()
    incidence = np.zeros((len(edges), len(clocks)))
    for row, (one, other) in enumerate(edges):
        incidence[row, place[one]] += 1
        incidence[row, place[other]] -= 1
    weight = 1 / base**2
    potential = np.zeros(len(clocks))
    for _ in range(MOST_ROUNDS):
        before = potential
        root = np.sqrt(np.maximum(weight, LEAST_WEIGHT * weight.max()))
        potential = np.linalg.lstsq(incidence * root[:, None], difference * root, rcond=None)[0]
        # Differences do not determine one clock of each part.
        potential = potential - potential[[place[part[clock]] for clock in clocks]]
        if np.abs(potential - before).max() <= SETTLED * usual:
            break
        left = np.abs(difference - incidence @ potential) / base
        limit = HUBER * max(MAD_TO_SD * float(np.median(left)), TOLERANCE * usual, SMALLEST)
        weight = np.minimum(1.0, limit / np.maximum(left, limit)) / base**2
    found = dict(zip(clocks, potential.tolist(), strict=True))
    middle = {
        first: median(found[clock] for clock in clocks if part[clock] == first)
        for first in set(part.values())
    }
    return {clock: found[clock] - middle[part[clock]] for clock in clocks}

"""Who computes the columns that are handed over, and how work is levelled over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

import numpy as np

from app.analysis.mitigation.tensor.group import FloatArray, IntArray


def renumbered(rank: int, sender: int, ranks: int) -> int:
    """Return ν, a receiver's number among those of a sender: 1 … ranks − 1, cyclic from the sender.

    Examples
    --------
    Figure 4 of the paper, with three ranks of which the third straggles; both ranks from 0:

    >>> [renumbered(rank, 2, 3) for rank in (0, 1)]
    [1, 2]
    """
    return (rank + ranks - sender) % ranks


def slices(count: int, sender: int, receivers: IntArray, ranks: int) -> IntArray:
    """Return how many of a sender's units each rank computes, shape (ranks,).

    The receiver with the number ν of n computes [(ν − 1)·count/n, ν·count/n), rounded down. Where
    some ranks receive nothing, the others are numbered in the same order.

    Parameters
    ----------
    count : int
        Units that are handed over.
    receivers : int64 array, shape (n,)
        Ranks that take a part, without the sender; at least one.
    ranks : int
        Of the group.
    """
    in_order = sorted(receivers.tolist(), key=lambda rank: renumbered(rank, sender, ranks))
    bounds = np.arange(len(in_order) + 1) * count // len(in_order)
    taken = np.zeros(ranks, dtype=np.int64)
    taken[in_order] = np.diff(bounds)
    return taken


def routed(shed: IntArray, received: IntArray) -> IntArray:
    """Return who hands how many units to whom, from what each rank sheds and receives.

    Senders fill receivers one after the other, so that few pairs of ranks have something to do with
    each other.

    Parameters
    ----------
    shed, received : int64 arrays, shape (ranks,)
        With the same sum; no rank has both.

    Returns
    -------
    int64 array, shape (ranks, ranks)
        ``[sender, receiver]``.
    """
    ranks = len(shed)
    moved = np.zeros((ranks, ranks), dtype=np.int64)
    senders, receivers = np.flatnonzero(shed).tolist(), np.flatnonzero(received).tolist()
    remaining, room = shed.tolist(), received.tolist()
    at = 0
    for sender in senders:
        while remaining[sender]:
            receiver = receivers[at]
            part = min(remaining[sender], room[receiver])
            moved[sender, receiver] = part
            remaining[sender] -= part
            room[receiver] -= part
            if room[receiver] == 0:
                at += 1
    return moved


def apportioned(parts: Sequence[int], total: int) -> list[int]:
    """Return `total` divided in proportion to parts, by largest remainders, as jobs do.

    Examples
    --------
    >>> apportioned([5, 11], 8)
    [3, 5]
    """
    whole = sum(parts)
    counts = [part * total // whole for part in parts]
    remainders = sorted(range(len(parts)), key=lambda n: (-(parts[n] * total % whole), n))
    for number in remainders[: total - sum(counts)]:
        counts[number] += 1
    return counts


def levelled(fixed_s: FloatArray, unit_s: FloatArray, total: int, least: int = 1) -> IntArray:
    """Return how many of `total` units each rank computes for the slowest to be soonest done.

    Water-filling: min τ with Σ (τ − fixed)⁺ / unit_s = total, rounded down, and the rest goes
    one by one where it ends soonest. No other division in whole units ends sooner.

    Parameters
    ----------
    fixed_s, unit_s : float64 arrays, shape (ranks,)
        What a rank takes without any unit, and for each.
    total : int
        At least `least` × ranks.
    least : int
        Units that each rank computes at least.

    Returns
    -------
    int64 array, shape (ranks,)
    """
    level_s = _level(fixed_s + least * unit_s, unit_s, total - least * len(fixed_s))
    units = np.maximum(np.floor((level_s - fixed_s) / unit_s), least).astype(np.int64)
    while units.sum() > total:  # a floor that floating point has rounded up
        units[np.argmax(np.where(units > least, fixed_s + unit_s * units, -np.inf))] -= 1
    ends = [(end_s, rank) for rank, end_s in enumerate((fixed_s + unit_s * (units + 1)).tolist())]
    heapify(ends)
    for _ in range(total - int(units.sum())):
        end_s, rank = ends[0]
        units[rank] += 1
        heapreplace(ends, (end_s + float(unit_s[rank]), rank))
    return units


def _level(fixed_s: FloatArray, unit_s: FloatArray, total: float) -> float:
    """Return τ, where Σ (τ − fixed)⁺ / unit_s is the total."""
    order = np.argsort(fixed_s, kind="stable")
    fixed, speed = fixed_s[order], 1.0 / unit_s[order]
    # With the first n ranks under water: τ = (total + Σ fixed · speed) / Σ speed.
    levels = (total + np.cumsum(fixed * speed)) / np.cumsum(speed)
    above = np.append(fixed[1:], np.inf)
    return float(levels[np.argmax(levels <= above)])

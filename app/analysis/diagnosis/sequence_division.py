"""Uneven division of sequences among context-parallel ranks.

With causal attention a token attends to all tokens before it: with one contiguous piece for each
rank, the last piece takes longest in every group and step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Final

import numpy as np

from app.analysis.diagnosis.group_waits import Waiting, Waits, computing_ns, holders
from app.analysis.diagnosis.observation import Observation
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median

FEWEST: Final = 2
TELLING: Final = 3


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether sequences are divided unevenly."""

    # The same rank is late in this share of the groups: not that it is slow, but that it has
    # more to do.
    alike: float = 0.8
    # In a single group the other ranks wait differently long, by this share of the longest
    # wait: each has more to do than the one before.
    graded: float = 0.3
    # A group that seems to wait for a larger share of its computing time was not recorded
    # rightly.
    most: float = 0.95


THRESHOLDS: Final = Thresholds()


def cells(observation: Observation) -> int:
    """Return how many groups a job has."""
    return observation.layout.pp * observation.layout.dp


def is_division(observation: Observation, groups: Sequence[Waiting]) -> bool:
    """Return whether ranks have more to do than others: nearly everywhere the same one is late."""
    if cells(observation) >= FEWEST:
        places = [group.slowest for group in groups]
        most = max(places.count(place) for place in places)
        return most >= max(FEWEST, THRESHOLDS.alike * cells(observation))
    waiting_ns = np.sort(_waiting_ns(groups[0]))[1:]
    if len(groups[0].by_rank) < TELLING:
        return False
    return bool(np.ptp(waiting_ns) >= THRESHOLDS.graded * waiting_ns.max())


def as_divided_evenly(observation: Observation, groups: Sequence[Waiting]) -> list[Waiting]:
    """Return groups that wait as long as the last rank comes later than all do on average.

    What one rank does less the others do more. Further differences between ranks, from collective
    to collective and from group to group, are there when sequences are divided evenly, too, and
    make such groups wait. A single group does not show how groups differ.
    """
    typical = _typical(observation, groups)
    total_ns = computing_ns(observation)
    several = cells(observation) >= FEWEST
    return [
        replace(
            group,
            waits=replace(group.waits, wait_ns=beyond_ns),
            share=float(beyond_ns.sum()) / total_ns[group.cell[1], group.cell[0]],
            typical=typical,
            typical_known=several,
        )
        for group in groups
        for beyond_ns in [_lateness(group.waits).max(axis=1)]
    ]


def if_divided(group: Waiting) -> float:
    """Return how much longer a step without waiting is if one of two ranks has more to do.

    As the difference of the logarithms: divided evenly, both of them do half of that.
    """
    share = min(group.share, THRESHOLDS.most)
    return log((1 - share / 2) / (1 - share))


def division(observation: Observation, groups: Sequence[Waiting]) -> str:
    """Say why it is not that a rank is slow."""
    more = "more to do than the others, as a causal sequence's end has"
    if cells(observation) < FEWEST:
        return f"Its ranks wait longer the less they have to do; the last one has {more}"
    return (
        f"{len(groups)} of {cells(observation)} groups wait for the same one of their ranks: it "
        f"has {more}"
    )


def _waiting_ns(group: Waiting) -> FloatArray:
    """Return how long each rank waits for the last one on average, shape (ranks,)."""
    duration_ns = group.waits.duration_ns
    waiting: FloatArray = (duration_ns - duration_ns.min(axis=1, keepdims=True)).mean(axis=0)
    return waiting


def _lateness(waits: Waits) -> FloatArray:
    """Return how much later each rank comes than all do on average, (collectives, ranks), ns."""
    late: FloatArray = waits.duration_ns.mean(axis=1, keepdims=True) - waits.duration_ns
    return late


def _typical(observation: Observation, groups: Sequence[Waiting]) -> float:
    """Return the share of its computing time that an evenly divided group waits.

    What a rank takes is its share of the work, and chance: the latest by chance is waited for. The
    median counts, so that no pause decides it.
    """
    taken: dict[tuple[int, int], list[FloatArray]] = defaultdict(list)
    for group in groups:
        for kind, takes_ns in _by_kind(observation, group.waits):
            taken[kind].append(np.log(takes_ns))
    waits = []
    for parts in taken.values():
        level = np.concatenate(parts)
        chance = level - level.mean(axis=1, keepdims=True)
        waits.append((chance - chance.mean(axis=0)).max(axis=1))
    return float(median(np.concatenate(waits))) if waits else groups[0].typical


def _by_kind(
    observation: Observation, waits: Waits
) -> Iterator[tuple[tuple[int, int], FloatArray]]:
    """Yield what ranks take before collectives of a kind, shape (collectives, ranks), ns.

    Of a kind are those at the same place in computations of the same type. Of a computation each
    of its collectives has an equal part.
    """
    layout, (dp, _) = observation.layout, waits.cell
    nodes, steps = holders(observation, waits)
    place = _place_in_turn(nodes * np.int64(len(layout.steps)) + steps)
    part_ns = np.zeros(len(nodes))
    for node in np.unique(nodes[nodes >= 0]).tolist():
        mine = np.flatnonzero(nodes == node)
        many = np.bincount(steps[mine], minlength=len(layout.steps))
        part_ns[mine] = observation.recorded_ns[node][steps[mine], dp] / many[steps[mine]]
    takes_ns = part_ns[:, None] - (waits.duration_ns - waits.duration_ns.min(axis=1, keepdims=True))
    known = (takes_ns > 0).all(axis=1)
    kinds = np.stack([layout.nodes.op[nodes], place], axis=1)
    for op, nth in np.unique(kinds[known], axis=0).tolist():
        yield (op, nth), takes_ns[known & (kinds == (op, nth)).all(axis=1)]


def _place_in_turn(keys: IntArray) -> IntArray:
    """Return how often each key has come before."""
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=keys[order[0]] - 1))
    counted = np.arange(len(keys)) - np.repeat(first, np.diff(np.append(first, len(keys))))
    place = np.empty(len(keys), dtype=np.int64)
    place[order] = counted
    return place

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
from app.analysis.quantities import FloatArray
from app.analysis.replay.robust_statistics import median

FEWEST: Final = 2  # groups that can be compared with one another
TELLING: Final = 3  # ranks of a single group that show a graded division


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether sequences are divided unevenly."""

    # If the same rank is late in this share of the groups, it has more to compute and is not slow.
    alike: float = 0.8
    # In a single group, the division is uneven if the waits of the ranks other than the last differ
    # by this share of the longest wait: each rank has more to compute than the rank before it.
    graded: float = 0.3
    # Highest plausible share of waiting; a larger share is a recording error.
    most: float = 0.95


THRESHOLDS: Final = Thresholds()


def cells(observation: Observation) -> int:
    """Return the number of context-parallel groups of a job, one for each worker."""
    return observation.layout.pp * observation.layout.dp


def is_division(observation: Observation, groups: Sequence[Waiting]) -> bool:
    """Return whether sequences are divided unevenly: in nearly all groups the same rank is late."""
    if cells(observation) >= FEWEST:
        places = [group.slowest for group in groups]
        most = max(places.count(place) for place in places)
        return most >= max(FEWEST, THRESHOLDS.alike * cells(observation))
    if len(groups[0].by_rank) < TELLING:
        return False
    duration_ns = groups[0].waits.duration_ns
    mean_wait_ns = (duration_ns - duration_ns.min(axis=1, keepdims=True)).mean(axis=0)
    waiting_ns = np.sort(mean_wait_ns)[1:]
    return bool(np.ptp(waiting_ns) >= THRESHOLDS.graded * waiting_ns.max())


def as_divided_evenly(observation: Observation, groups: Sequence[Waiting]) -> list[Waiting]:
    """Return the groups with only the part of their wait that an even division removes.

    This part is the last rank's lateness relative to the mean of all ranks, as the work that the
    last rank loses goes to the other ranks. The variation among collectives and among groups
    remains; a single group does not show the variation among groups.
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
        for duration_ns in [group.waits.duration_ns]
        for beyond_ns in [(duration_ns.mean(axis=1, keepdims=True) - duration_ns).max(axis=1)]
    ]


def if_divided(group: Waiting) -> float:
    """Return the log ratio of a step with an even division to a step without waits, two ranks.

    With an even division, each of the two ranks computes half of the difference.
    """
    share = min(group.share, THRESHOLDS.most)
    return log((1 - share / 2) / (1 - share))


def division(observation: Observation, groups: Sequence[Waiting]) -> str:
    """Return the sentence that attributes the late rank to the division, not to slowness."""
    more = "more to do than the others, as a causal sequence's end has"
    if cells(observation) < FEWEST:
        return f"Its ranks wait longer the less they have to do; the last one has {more}"
    return (
        f"{len(groups)} of {cells(observation)} groups wait for the same one of their ranks: it "
        f"has {more}"
    )


def _typical(observation: Observation, groups: Sequence[Waiting]) -> float:
    """Return the wait of an evenly divided group, as a share of its computing time.

    A rank's time is its share of the work × a factor of chance, and the group waits for the rank
    that is latest by chance. The median over collectives excludes pauses.
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
    """Yield each kind of collective with the time of its ranks before it, (collectives, ranks), ns.

    A kind is an operation type and its place within the computation; each collective of a
    computation gets an equal part of the computation's time.
    """
    layout, (dp, _) = observation.layout, waits.cell
    nodes, steps = holders(observation, waits)
    # order of each collective among the collectives of its type within its computation
    keys = nodes * np.int64(len(layout.steps)) + steps
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=keys[order[0]] - 1))
    counted = np.arange(len(keys)) - np.repeat(first, np.diff(np.append(first, len(keys))))
    place = np.empty(len(keys), dtype=np.int64)
    place[order] = counted
    part_ns = np.zeros(len(nodes))
    for node in np.unique(nodes[nodes >= 0]).tolist():
        mine = np.flatnonzero(nodes == node)
        many = np.bincount(steps[mine], minlength=len(layout.steps))
        part_ns[mine] = observation.recorded_ns[node][steps[mine], dp] / many[steps[mine]]
    takes_ns = part_ns[:, None] - (waits.duration_ns - waits.duration_ns.min(axis=1, keepdims=True))
    complete = (takes_ns > 0).all(axis=1)
    kinds = np.stack([layout.nodes.op[nodes], place], axis=1)
    for op, nth in np.unique(kinds[complete], axis=0).tolist():
        yield (op, nth), takes_ns[complete & (kinds == (op, nth)).all(axis=1)]

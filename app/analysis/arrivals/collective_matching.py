"""Matching of collectives between a rank and its peers, by group, type and order.

Groups are the data-parallel ranks of a stage, those of them that share experts if the metadata have
``ep``, and the tensor- and context-parallel ranks of a (DP, PP) cell in which several ranks
recorded. A step in which ranks recorded different numbers of collectives is left out; if this is
true of all steps, the collectives before the difference count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.quantities import BoolArray, IntArray
from app.analysis.trace.model import (
    CONTEXT_TYPES,
    EXPERT_TYPES,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    SEPARATE_ALL_REDUCE,
    TENSOR_TYPES,
    Trace,
)
from app.analysis.trace.parallelism import expert_ranks, groups_of


class GroupKind(StrEnum):
    """Kind of a group of ranks: the dimension of parallelism in which its ranks differ."""

    DATA = "data"
    TENSOR = "tensor"
    CONTEXT = "context"
    EXPERT = "expert"


# Op types of the collectives of each kind of group.
TYPES: Final[dict[GroupKind, tuple[str, ...]]] = {
    GroupKind.DATA: (PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER, SEPARATE_ALL_REDUCE),
    GroupKind.TENSOR: TENSOR_TYPES,
    GroupKind.CONTEXT: CONTEXT_TYPES,
    GroupKind.EXPERT: EXPERT_TYPES,
}
# Largest number of differences between recorded collectives that a report lists.
MOST_PARTED: Final = 10


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that take part in the same collectives."""

    kind: GroupKind
    stage: int
    ranks: tuple[int, ...]  # global ranks that recorded, ascending


@dataclass(frozen=True, slots=True)
class Parting:
    """First collective of a step that a rank did not record although its peers did."""

    op: str
    """Operation type."""
    step: int
    """Number of the training step."""
    rank: int
    """Global rank that recorded the fewest collectives of this type in the step."""
    recorded: int
    """Number of collectives of this type that the rank recorded in the step, which is also the
    order of the first collective it lacks.
    """
    others: int
    """Largest number of collectives of this type that another rank of the group recorded in the
    step.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Collectives that several ranks recorded; a meeting is a collective in a single step.

    Rows are sorted by meeting, then by rank.
    """

    groups: tuple[Group, ...]
    group_of: IntArray  # (kinds, ranks): index of each global rank's group of a kind, -1 for none
    row: IntArray  # (rows,): rows of the trace
    meeting: IntArray  # (rows,): index of the meeting
    first: IntArray  # (meetings,): its first row here
    group: IntArray  # (meetings,): index into `groups`
    op: IntArray  # (meetings,): op code
    order: IntArray  # (meetings,): order within step and type
    step: IntArray  # (meetings,): training step
    partings: tuple[Parting, ...]

    def __len__(self) -> int:
        return len(self.first)


def kinds_of(trace: Trace) -> NDArray[np.int8]:
    """Return the `GroupKind` index of each op type, shape (types,); -1 for other types."""
    kinds = np.full(len(trace.op_names), -1, dtype=np.int8)
    for number, names in enumerate(TYPES.values()):
        kinds[[trace.op_names.index(name) for name in names]] = number
    return kinds


def meetings_of(trace: Trace, rows: IntArray) -> Meetings:
    """Return the collectives recorded by several ranks, matched by group, step, type and order.

    Parameters
    ----------
    rows : int64 array
        The rows of collectives to match; see `kinds_of`.
    """
    groups, group_of = _groups(trace)
    kind_of = kinds_of(trace)
    group = group_of[kind_of[trace.op[rows]], trace.rank[rows]]
    rows, group = rows[group >= 0], group[group >= 0]
    if not len(rows):
        return _none(groups, group_of)
    steps, step = np.unique(trace.step[rows], return_inverse=True)
    step = step.ravel()
    order = trace.order[rows].astype(np.int64)
    series = (group * len(steps) + step) * len(trace.op_names) + trace.op[rows]
    key = series * (int(order.max()) + 1) + order
    by_key = np.lexsort((trace.rank[rows], key))
    rows, key, series, order = rows[by_key], key[by_key], series[by_key], order[by_key]
    change, size = _sizes(key)
    partings: tuple[Parting, ...] = ()
    of_meeting = series[np.flatnonzero(change)]
    # Rows can be matched by order if all collectives of a series (group, step and type) were
    # recorded by equally many ranks.
    if not ((size[1:] == size[:-1]) | (of_meeting[1:] != of_meeting[:-1])).all():
        kept, partings = _agreeing(trace, rows, series, len(steps))
        rows, key, series, order = rows[kept], key[kept], series[kept], order[kept]
        if not len(rows):
            return _none(groups, group_of, partings)
        change, size = _sizes(key)
    several = np.repeat(size > 1, size)
    rows, series, order, change = rows[several], series[several], order[several], change[several]
    first = np.flatnonzero(change)
    of_series, op = np.divmod(series[first], len(trace.op_names))
    of_group, of_step = np.divmod(of_series, len(steps))
    return Meetings(
        groups=groups,
        group_of=group_of,
        row=rows,
        meeting=np.cumsum(change) - 1,
        first=first,
        group=of_group,
        op=op,
        order=order[first],
        step=steps[of_step],
        partings=partings,
    )


def _sizes(key: IntArray) -> tuple[BoolArray, IntArray]:
    """Return which rows begin a meeting, (rows,), and the number of rows of each meeting."""
    change = np.concatenate(([True], key[1:] != key[:-1]))
    return change, np.diff(np.flatnonzero(change), append=len(key))


def _none(
    groups: tuple[Group, ...], group_of: IntArray, partings: tuple[Parting, ...] = ()
) -> Meetings:
    empty = np.empty(0, dtype=np.int64)
    return Meetings(groups, group_of, empty, empty, empty, empty, empty, empty, empty, partings)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Place of each recorded rank in the job; arrays of shape (ranks,)."""

    rank: NDArray[np.int32]  # global, ascending
    dp: IntArray
    stage: IntArray
    member: IntArray  # index within its (DP, PP) cell


def places_of(trace: Trace) -> Places:
    """Return the place of each recorded rank: ranks of one member and stage are DP peers."""
    head = trace.stretches().first
    ranks, row = np.unique(trace.rank[head], return_index=True)
    stage, dp = trace.pp[head[row]].astype(np.int64), trace.dp[head[row]].astype(np.int64)
    cell = dp * trace.meta.sizes.pp + stage
    by_cell = np.lexsort((ranks, cell))
    starts = np.flatnonzero(np.diff(cell[by_cell], prepend=-1))
    member = np.empty(len(ranks), dtype=np.int64)
    member[by_cell] = np.arange(len(ranks)) - np.repeat(starts, np.diff(starts, append=len(ranks)))
    return Places(ranks, dp, stage, member)


def _groups(trace: Trace) -> tuple[tuple[Group, ...], IntArray]:
    """Return the groups, and the group of each (kind, global rank); -1 if it has none."""
    places = places_of(trace)
    ranks, stage = places.rank, places.stage
    group_of = np.full((len(GroupKind), int(ranks[-1]) + 1), -1, dtype=np.int64)
    groups: list[Group] = []

    def add(kind: GroupKind, members: NDArray[np.int32], of_stage: int) -> None:
        if len(members) > 1:
            group_of[list(GroupKind).index(kind), members] = len(groups)
            groups.append(Group(kind, of_stage, tuple(members.tolist())))

    experts = expert_ranks(trace) or 1
    peers = stage * (int(places.member.max()) + 1) + places.member
    for own_peers in np.unique(peers).tolist():
        mine = peers == own_peers
        members, of_stage, sharing = ranks[mine], int(stage[mine][0]), places.dp[mine] // experts
        add(GroupKind.DATA, members, of_stage)
        for number in np.unique(sharing).tolist() if experts > 1 else ():
            add(GroupKind.EXPERT, members[sharing == number], of_stage)
    cell = places.dp * trace.meta.sizes.pp + stage
    for own_cell in np.unique(cell[places.member > 0]).tolist():
        mine = cell == own_cell
        for kind in (GroupKind.TENSOR, GroupKind.CONTEXT):
            for members in groups_of(ranks[mine], trace.meta.sizes, TYPES[kind]):
                add(kind, members, int(stage[mine][0]))
    return tuple(groups), group_of


def _agreeing(
    trace: Trace, rows: IntArray, series: IntArray, steps: int
) -> tuple[BoolArray, tuple[Parting, ...]]:
    """Return which rows can be matched by order, and where the recorded numbers differ.

    A recorder that numbers lost operations leaves gaps, so that orders still match.

    Parameters
    ----------
    series : int64 array
        Group, step and type of each row, as one number.
    steps : int
        Number of steps.
    """
    rank, order = trace.rank[rows].astype(np.int64), trace.order[rows].astype(np.int64)
    own, of_own = np.unique(series * (int(rank.max()) + 1) + rank, return_inverse=True)
    of_own = of_own.ravel()
    count = np.bincount(of_own)
    reach = np.zeros(len(own), dtype=np.int64)
    np.maximum.at(reach, of_own, order + 1)
    of_series = own // (int(rank.max()) + 1)
    every, index = np.unique(of_series, return_inverse=True)
    index = index.ravel()
    most = np.zeros(len(every), dtype=np.int64)
    np.maximum.at(most, index, reach)
    short = (reach == count) & (count < most[index])
    kept = np.ones(len(rows), dtype=bool)
    if not short.any():
        return kept, ()
    fewest = most.copy()
    np.minimum.at(fewest, index[short], count[short])
    parted = fewest < most
    # Group and type as a single number, without the step
    types = len(trace.op_names)
    alike = every // (steps * types) * types + every % types
    agreed = np.isin(alike, alike[~parted])
    limit = np.where(parted & agreed, 0, fewest)
    kept = order < limit[index[of_own]]
    partings = []
    for part in np.flatnonzero(parted)[:MOST_PARTED].tolist():
        mine = np.flatnonzero((index == part) & short & (count == fewest[part]))[0]
        row = rows[np.flatnonzero(of_own == mine)[0]]
        partings.append(
            Parting(
                trace.op_names[trace.op[row]],
                int(trace.step[row]),
                int(trace.rank[row]),
                int(fewest[part]),
                int(most[part]),
            )
        )
    return kept, tuple(partings)

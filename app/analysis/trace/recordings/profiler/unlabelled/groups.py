"""What the process groups of a job without labels share out, and where a rank stands.

Gradients are reduced while a backward runs and never in a forward; tensor-parallel ranks reduce
activations in both. Groups whose description says what they are, as those of device meshes do, are
taken at their word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.recordings.profiler.groups import (
    DATA_DIMENSIONS,
    Cell,
    Dimension,
    Group,
    cell_of,
    dimension_of,
)
from app.analysis.trace.recordings.profiler.unlabelled.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Collective,
)
from app.analysis.trace.recordings.profiler.unlabelled.program import Part

_REDUCES: Final = (ALL_REDUCE, REDUCE_SCATTER)


@dataclass(frozen=True, slots=True)
class Roles:
    """What groups share out, by their names; None for a group that only has other collectives."""

    of_group: Mapping[str, Dimension | None]
    data: frozenset[str]  # groups whose ranks hold the same parameters or parts of them
    # experts: groups whose ranks exchange tokens, and are data-parallel ranks as well
    experts: frozenset[str] = frozenset()

    @property
    def exchanging(self) -> frozenset[str]:
        """Return the groups whose ranks exchange what they compute: what comes next needs it."""
        within = (Dimension.TENSOR, Dimension.CONTEXT)
        return self.experts | {group for group, role in self.of_group.items() if role in within}

    def is_data(self, one: Collective) -> bool:
        """Return whether a collective is one of data-parallel ranks."""
        return one.group in self.data


def roles_of(found: Iterable[tuple[Collective, Part]], world: int | None = None) -> Roles:
    """Tell groups apart by what they do in which part of a step.

    Where all ranks of the `world` reduce gradients together, those that exchange tokens are among
    them: they share out experts and no sequences.
    """
    done: dict[str, Counter[tuple[str, Part]]] = {}
    described: dict[str, str] = {}
    sizes: dict[str, int | None] = {}
    for one, part in found:
        done.setdefault(one.group, Counter())[one.name, part] += 1
        described.setdefault(one.group, one.description)
        sizes.setdefault(one.group, one.size)
    roles: dict[str, Dimension | None] = {}
    for group, counts in done.items():
        named = dimension_of(described[group])
        roles[group] = named or _role(counts)
    data = {group for group, role in roles.items() if role in DATA_DIMENSIONS}
    if not data:
        # A loop of its own reduces gradients after the backward.
        data = {g for g, counts in done.items() if roles[g] is None and _synchronizes(counts)}
    experts: set[str] = set()
    # Where no sizes are recorded, all ranks count as data-parallel ones.
    if any(sizes[group] in {world, None} for group in data):
        experts = {
            group
            for group, counts in done.items()
            if dimension_of(described[group]) is None and any(n == ALL_TO_ALL for n, _ in counts)
        }
        roles |= dict.fromkeys(experts - data)
    return Roles(roles, frozenset(data), frozenset(experts))


def _role(counts: Counter[tuple[str, Part]]) -> Dimension | None:
    forward = sum(counts[name, Part.FORWARD] for name in _REDUCES)
    backward = sum(counts[name, Part.BACKWARD] for name in _REDUCES)
    if forward and backward:
        return Dimension.TENSOR
    if backward:
        shards = counts[ALL_GATHER, Part.FORWARD] + counts[REDUCE_SCATTER, Part.BACKWARD]
        return Dimension.SHARD if shards else Dimension.DATA
    if any(name == ALL_TO_ALL for name, _ in counts):
        return Dimension.CONTEXT
    return None


def _synchronizes(counts: Counter[tuple[str, Part]]) -> bool:
    return any(name in (*_REDUCES, ALL_GATHER) for name, _ in counts)


def place(  # noqa: PLR0913, PLR0917 - all that says where a rank stands
    rank: int,
    world: int,
    groups: Sequence[Group],
    roles: Roles,
    sizes: Mapping[str, int],
    meta: SessionMeta | None,
) -> Cell:
    """Return where a rank stands in a job of one pipeline stage.

    Parameters
    ----------
    groups : sequence of Group
        With the ranks that they have.
    sizes : mapping of str to int
        Ranks of each group, as its collectives say.
    meta : SessionMeta or None
        What was given with the recording.

    Raises
    ------
    InvalidMetadataError
        See `cell_of`.
    """
    if meta is not None or any(dimension_of(group.description) for group in groups):
        return cell_of(rank, world, groups, (), meta)
    known = {group.name: group for group in groups if rank in group.ranks}
    data = [known[name] for name in sorted(roles.data) if name in known]
    data = [group for group in data if len(group.ranks) > 1]
    if any(len(group.ranks) == world for group in data) or not data:
        return _without_ranks(rank, world, roles, sizes)
    data.sort(key=lambda group: len(group.ranks))
    # Of ranks that shard and ranks that replicate one group is a slice across the others.
    kept: list[Group] = []
    for group in reversed(data):
        if all(len(set(group.ranks) & set(other.ranks)) == 1 for other in kept):
            kept.append(group)
    dp, dp_rank = 1, 0
    for group in sorted(kept, key=lambda group: group.ranks[1] - group.ranks[0], reverse=True):
        dp_rank = dp_rank * len(group.ranks) + group.ranks.index(rank)
        dp *= len(group.ranks)
    if world % dp:
        return _without_ranks(rank, world, roles, sizes)
    return Cell(Sizes(dp=dp, pp=1, tp=world // dp), dp_rank, 0)


def _without_ranks(rank: int, world: int, roles: Roles, sizes: Mapping[str, int]) -> Cell:
    """Place a rank by the sizes of groups alone: the innermost ranks are no data-parallel ones."""
    inner = 1
    for group, role in roles.of_group.items():
        size = sizes.get(group, 1)
        if role in {Dimension.TENSOR, Dimension.CONTEXT} and size < world and world % size == 0:
            inner = max(inner, size)
    return Cell(Sizes(dp=world // inner, pp=1, tp=inner), rank // inner, 0)

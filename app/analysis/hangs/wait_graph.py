"""Wait-for graph between ranks and their pending collective operations.

A rank waits for its first pending operation. An operation waits for the ranks that have not entered
it, and for those whose own first pending operation is another one. Operations are nodes between
ranks, so that a group of 16,384 ranks has as many edges and not their square.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.analysis.hangs.state import JobState, Pending, RankState


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that ranks wait for first.

    Parameters
    ----------
    waiting : tuple of int
        The ranks of which it is the first pending one.
    absent : tuple of int
        Ranks that have not entered it.
    behind : tuple of int
        Ranks that have entered it, but wait for another operation first.
    beyond : tuple of int
        Ranks that have completed it.
    certain : bool
        Whether recorded numbers say that the absent ones have not entered it; otherwise it is only
        nowhere in what they recorded.
    names : tuple of str
        What the waiting ranks call it; more than one where they do not agree.
    """

    first: Pending
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    behind: tuple[int, ...]
    beyond: tuple[int, ...]
    certain: bool
    names: tuple[str, ...]

    @property
    def awaited(self) -> tuple[int, ...]:
        """Return the ranks that it waits for."""
        return self.absent + self.behind


def operations_of(job: JobState) -> tuple[Operation, ...]:
    """Return the operations that ranks wait for first, in the order of their first rank."""
    # A collective is one operation for all of its ranks, a transfer is one for each end.
    waiting: dict[tuple[int, int], list[int]] = {}
    operations = []
    for rank, state in sorted(job.ranks.items()):
        front = state.front
        if front is None:
            continue
        if front.peer is None:
            waiting.setdefault((front.group, front.number), []).append(rank)
        else:
            operations.append(_transfer(job, state, front, front.peer))
    numbered = _numbered(job)
    operations += [_collective(job, ranks, numbered) for ranks in waiting.values()]
    return tuple(sorted(operations, key=lambda one: one.waiting))


def _numbered(job: JobState) -> frozenset[int]:
    """Return the groups whose numbers count collectives only: transfers have numbers of their own.

    Recorders write down one number a group, the larger of both.
    """
    transferring = {
        one.group for state in job.ranks.values() for one in state.pending if one.peer is not None
    }
    return frozenset(range(len(job.groups))) - transferring


def _collective(job: JobState, waiting: Sequence[int], numbered: frozenset[int]) -> Operation:
    fronts = {rank: job.ranks[rank].pending[0] for rank in waiting}
    first = fronts[waiting[0]]
    absent, behind, beyond = [], [], []
    certain = True
    for rank in job.groups[first.group].ranks:
        if rank in fronts:
            continue
        state = job.ranks.get(rank)
        if state is not None and any(_same(one, first) for one in state.pending):
            behind.append(rank)
            continue
        passed = state is not None and _has_passed(state, first, numbered)
        if passed:
            beyond.append(rank)
        else:
            absent.append(rank)
            certain &= state is not None and first.group in (state.reached.keys() & numbered)
    return Operation(
        first=first,
        waiting=tuple(waiting),
        absent=tuple(absent),
        behind=tuple(behind),
        beyond=tuple(beyond),
        certain=certain,
        names=tuple(sorted({front.name for front in fronts.values()})),
    )


def _same(one: Pending, other: Pending) -> bool:
    return one.peer is None and (one.group, one.number) == (other.group, other.number)


def _has_passed(state: RankState, operation: Pending, numbered: frozenset[int]) -> bool:
    """Return whether a rank without a pending operation has entered it, and is beyond it."""
    reached = state.reached.get(operation.group)
    if reached is not None and operation.group in numbered:
        return reached.enqueued >= operation.number
    return any(
        one.group == operation.group and one.peer is None and one.number > operation.number
        for one in state.pending
    )


def _transfer(job: JobState, waiting: RankState, first: Pending, peer: int) -> Operation:
    """Return the first pending send or receive of a rank: its peer has it pending, or not yet."""
    rank, state = waiting.rank, job.ranks.get(peer)
    meets = state is not None and any(
        one.peer == rank and one.group == first.group and one.is_send != first.is_send
        for one in state.pending
    )
    return Operation(
        first=first,
        waiting=(rank,),
        absent=() if meets else (peer,),
        behind=(peer,) if meets else (),
        beyond=(),
        certain=state is not None,
        names=(first.name,),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Who waits for whom."""

    operations: tuple[Operation, ...]
    # by rank: which operation it waits for first
    of_rank: Mapping[int, int]

    @classmethod
    def of(cls, job: JobState) -> Waits:
        """Return the wait-for graph of a job."""
        operations = operations_of(job)
        of_rank = {rank: number for number, one in enumerate(operations) for rank in one.waiting}
        return cls(operations, of_rank)

    def awaited(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that a rank waits for, directly."""
        number = self.of_rank.get(rank)
        return () if number is None else self.operations[number].awaited

    def sinks(self) -> tuple[int, ...]:
        """Return the ranks that are waited for, or have something pending, and wait for no rank."""
        known = set(self.of_rank).union(*(one.awaited for one in self.operations))
        return tuple(sorted(rank for rank in known if not self.awaited(rank)))

    def distances(self, targets: Iterable[int]) -> dict[int, int]:
        """Return how many operations away each rank is that waits for some, through others too.

        The targets themselves are 0 away.
        """
        awaiting: dict[int, list[int]] = {}
        for number, one in enumerate(self.operations):
            for rank in one.awaited:
                awaiting.setdefault(rank, []).append(number)
        found = dict.fromkeys(targets, 0)
        queue, seen = deque(found), set[int]()
        while queue:
            rank = queue.popleft()
            for number in awaiting.get(rank, ()):
                if number in seen:
                    continue
                seen.add(number)
                for waiting in self.operations[number].waiting:
                    if waiting not in found:
                        found[waiting] = found[rank] + 1
                        queue.append(waiting)
        return found

    def cycles(self) -> list[tuple[int, ...]]:
        """Return ranks that wait for one another and for no sink, each cycle once."""
        explained = set(self.distances(self.sinks()))
        found = []
        for first in self.of_rank:
            if first in explained:
                continue
            rank, path = first, dict[int, None]()
            while rank not in path:
                path[rank] = None
                # none of them leads to a sink, or it would be explained
                rank = self.awaited(rank)[0]
            ranks = list(path)
            cycle = tuple(ranks[ranks.index(rank) :])
            found.append(cycle)
            explained |= self.distances(cycle).keys()
        return found

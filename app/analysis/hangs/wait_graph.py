"""The wait-for graph of ranks and their pending operations.

A rank waits for its first pending operation. An operation waits for the ranks that have not entered
it, and for the ranks whose first pending operation is another operation. Operations are nodes, so
that a group of n = 16,384 ranks has n edges and not n².
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.analysis.hangs.state import JobState, Pending, RankState


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation that is the first pending operation of some ranks.

    Parameters
    ----------
    waiting : tuple of int
        Ranks whose first pending operation it is.
    absent : tuple of int
        Ranks that have not entered the operation.
    behind : tuple of int
        Ranks that have entered the operation, but wait for another operation first.
    beyond : tuple of int
        Ranks that have completed the operation.
    certain : bool
        Whether recorded sequence numbers show that the absent ranks have not entered the operation;
        otherwise the operation is only missing in their records.
    names : tuple of str
        Names of the operation on the waiting ranks; several if the ranks disagree.
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
        """Return the ranks that the operation waits for."""
        return self.absent + self.behind


def operations_of(job: JobState) -> tuple[Operation, ...]:
    """Return the first pending operations of all ranks, ordered by their waiting ranks."""
    # A collective is one operation for all ranks of its group; a send and its receive are two
    # operations.
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
    # In a group with transfers, sequence numbers do not identify collectives: recorders keep a
    # single number for each group, the larger of the numbers of collectives and transfers.
    transferring = {
        pending.group
        for state in job.ranks.values()
        for pending in state.pending
        if pending.peer is not None
    }
    numbered = frozenset(range(len(job.groups))) - transferring
    operations += [_collective(job, ranks, numbered) for ranks in waiting.values()]
    return tuple(sorted(operations, key=lambda operation: operation.waiting))


def _collective(job: JobState, waiting: Sequence[int], numbered: frozenset[int]) -> Operation:
    """Return the collective in which some ranks wait."""
    fronts = {rank: job.ranks[rank].pending[0] for rank in waiting}
    first = fronts[waiting[0]]
    absent, behind, beyond = [], [], []
    certain = True
    for rank in job.groups[first.group].ranks:
        if rank in fronts:
            continue
        state = job.ranks.get(rank)
        if state is not None and any(
            pending.peer is None and (pending.group, pending.number) == (first.group, first.number)
            for pending in state.pending
        ):
            behind.append(rank)
            continue
        if state is not None and _has_passed(state, first, numbered):
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


def _has_passed(state: RankState, operation: Pending, numbered: frozenset[int]) -> bool:
    """Return whether a rank without this operation pending has completed it."""
    reached = state.reached.get(operation.group)
    if reached is not None and operation.group in numbered:
        return reached.enqueued >= operation.number
    return any(
        pending.group == operation.group
        and pending.peer is None
        and pending.number > operation.number
        for pending in state.pending
    )


def _transfer(job: JobState, waiting: RankState, first: Pending, peer: int) -> Operation:
    """Return a rank's first pending send or receive; its peer is behind or has not entered it."""
    rank, state = waiting.rank, job.ranks.get(peer)
    meets = state is not None and any(
        pending.peer == rank and pending.group == first.group and pending.is_send != first.is_send
        for pending in state.pending
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
    """The wait-for graph of a job."""

    operations: tuple[Operation, ...]
    of_rank: Mapping[int, int]  # by rank: index of its first pending operation

    @classmethod
    def of(cls, job: JobState) -> Waits:
        """Return the wait-for graph of a job."""
        operations = operations_of(job)
        of_rank = {rank: n for n, operation in enumerate(operations) for rank in operation.waiting}
        return cls(operations, of_rank)

    def awaited(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that a rank waits for directly."""
        number = self.of_rank.get(rank)
        return () if number is None else self.operations[number].awaited

    def sinks(self) -> tuple[int, ...]:
        """Return the ranks, awaited or with a pending operation, that wait for no rank."""
        ranks = set(self.of_rank).union(*(operation.awaited for operation in self.operations))
        return tuple(sorted(rank for rank in ranks if not self.awaited(rank)))

    def distances(self, targets: Iterable[int]) -> dict[int, int]:
        """Return each rank's distance in operations to the nearest target it waits for, by rank.

        A rank waits for a target directly or through other ranks; the distance of a target is 0.
        """
        awaiting: dict[int, list[int]] = {}
        for number, operation in enumerate(self.operations):
            for rank in operation.awaited:
                awaiting.setdefault(rank, []).append(number)
        distance = dict.fromkeys(targets, 0)
        queue, seen = deque(distance), set[int]()
        while queue:
            rank = queue.popleft()
            for number in awaiting.get(rank, ()):
                if number in seen:
                    continue
                seen.add(number)
                for waiting in self.operations[number].waiting:
                    if waiting not in distance:
                        distance[waiting] = distance[rank] + 1
                        queue.append(waiting)
        return distance

    def cycles(self) -> list[tuple[int, ...]]:
        """Return the cycles of ranks that wait for one another and for no sink, each cycle once."""
        explained = set(self.distances(self.sinks()))
        cycles = []
        for first in self.of_rank:
            if first in explained:
                continue
            rank, path = first, dict[int, None]()
            while rank not in path:
                path[rank] = None
                # An unexplained rank waits only for unexplained ranks, so any awaited rank
                # continues the path.
                rank = self.awaited(rank)[0]
            ranks = list(path)
            cycle = tuple(ranks[ranks.index(rank) :])
            cycles.append(cycle)
            explained |= self.distances(cycle).keys()
        return cycles

"""The wait-for graph of ranks and their pending operations.

A rank waits for its first pending operation. An operation waits for the ranks that have not entered
it, for the ranks whose first pending operation is another operation, and for the ranks that call it
differently under the same number. Operations are nodes, so that a group of n = 16,384 ranks has n
edges and not n².
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.analysis.hangs.stacks import calling, is_wait
from app.analysis.hangs.state import Frame, JobState, Pending, RankState, Tensors, elements

# Operations whose inputs, and whose outputs, may differ between ranks: uneven exchanges, and
# operations whose tensors only one rank has.
_UNEVEN_INPUTS: Final = re.compile(r"all_?to_?all|gather$|(?<!reduce_)scatter$", re.IGNORECASE)
_UNEVEN_OUTPUTS: Final = re.compile(r"all_?to_?all|(?<!all_)gather$|scatter$", re.IGNORECASE)
_TWO_SIDES: Final = 2


@dataclass(frozen=True, slots=True)
class Call:
    """What a rank passes to a collective, as far as the ranks of the group must agree on it."""

    name: str
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation that is the first pending operation of some ranks.

    Ranks that call a collective differently under the same number have an operation each.

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
    unclear : tuple of int
        Ranks of which nothing shows whether they have entered the operation.
    unlike : tuple of int
        Ranks that have entered the operation with another call, or whose device has not started it.
    certain : bool
        Whether recorded sequence numbers show that the absent ranks have not entered the operation;
        otherwise the operation is only missing in their records.
    call : Call or None
        The call of the waiting ranks if other ranks call differently.
    """

    first: Pending
    waiting: tuple[int, ...]
    absent: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    beyond: tuple[int, ...] = ()
    unclear: tuple[int, ...] = ()
    unlike: tuple[int, ...] = ()
    certain: bool = True
    call: Call | None = None

    @property
    def awaited(self) -> tuple[int, ...]:
        """Return the ranks that the operation waits for."""
        return self.absent + self.behind + self.unlike


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
            operations.append(_batch(job, state))
    # In a group with transfers, sequence numbers do not identify collectives: recorders keep a
    # single number for each group, the larger of the numbers of collectives and transfers.
    transferring = {
        pending.group
        for state in job.ranks.values()
        for pending in state.pending
        if pending.peer is not None
    }
    numbered = frozenset(range(len(job.groups))) - transferring
    for ranks in waiting.values():
        operations += _by_call(job, _collective(job, ranks, numbered))
    return tuple(sorted(operations, key=lambda operation: operation.waiting))


def _collective(job: JobState, waiting: Sequence[int], numbered: frozenset[int]) -> Operation:
    """Return the collective in which some ranks wait."""
    fronts = {rank: job.ranks[rank].pending[0] for rank in waiting}
    # The names of recorders come before those of RAS.
    named = [rank for rank in waiting if fronts[rank].name]
    recorded = [rank for rank in named if job.ranks[rank].is_recorded]
    first = fronts[(recorded or named or waiting)[0]]
    lines = {calling(stack) for rank in waiting if (stack := job.ranks[rank].called_at)}
    absent, behind, beyond, unclear = [], [], [], []
    certain = True
    for rank in job.groups[first.group].ranks:
        if rank in fronts:
            continue
        state = job.ranks.get(rank)
        if state is None:
            absent.append(rank)
            certain = False
        elif any(
            pending.peer is None and (pending.group, pending.number) == (first.group, first.number)
            for pending in state.pending
        ):
            behind.append(rank)
        elif _has_passed(state, first, numbered):
            # RAS counts launched operations, but not completed ones.
            if state.is_recorded:
                beyond.append(rank)
        elif first.group in (state.reached.keys() & numbered):
            absent.append(rank)
        elif _is_elsewhere(state, lines):
            absent.append(rank)
            certain = False
        else:
            unclear.append(rank)
    return Operation(
        first=first,
        waiting=tuple(waiting),
        absent=tuple(absent),
        behind=tuple(behind),
        beyond=tuple(beyond),
        unclear=tuple(unclear),
        certain=certain,
    )


def _by_call(job: JobState, operation: Operation) -> Iterator[Operation]:
    """Yield a collective once for each different call, or once for devices that have not begun.

    The calls of ranks without a recorder are unknown: if others disagree, these ranks wait for the
    ranks that call otherwise than most.
    """
    fronts = {
        rank: job.ranks[rank].pending[0]
        for rank in operation.waiting
        if job.ranks[rank].is_recorded
    }
    calls = _calls(fronts)
    if len(calls) > 1:
        usual = max(calls.values(), key=len)
        others = tuple(sorted(fronts.keys() - set(usual)))
        # Of several other sides each waits for one rank of the usual side: with all of its ranks,
        # the graph would have n² edges.
        awaited = tuple(usual) if len(calls) == _TWO_SIDES else tuple(usual[:1])
        for call, ranks in calls.items():
            unlike = others if ranks is usual else awaited
            yield replace(
                operation, first=fronts[ranks[0]], waiting=tuple(ranks), unlike=unlike, call=call
            )
        unknown = tuple(rank for rank in operation.waiting if rank not in fronts)
        if unknown:
            yield replace(operation, waiting=unknown, unlike=others)
        return
    idle = tuple(rank for rank, front in fronts.items() if front.has_started is False)
    started = tuple(rank for rank, front in fronts.items() if front.has_started)
    if idle and len(idle) < len(started) and not operation.awaited:
        yield replace(operation, first=fronts[started[0]], waiting=started, unlike=idle)
        yield replace(operation, first=fronts[idle[0]], waiting=idle)
        return
    yield operation


def _calls(fronts: Mapping[int, Pending]) -> Mapping[Call, Sequence[int]]:
    """Return the ranks by their calls of one collective, the first rank's call first.

    Tensors are compared by their numbers of elements, as shapes do not matter to NCCL. What is
    unknown of a rank is not compared.
    """
    names = {front.name for front in fronts.values()}
    tensors = [front.tensors for front in fronts.values()]
    has_names = all(names)
    has_inputs = all(each.inputs for each in tensors) and not any(map(_UNEVEN_INPUTS.search, names))
    has_outputs = all(each.outputs for each in tensors)
    has_outputs &= not any(map(_UNEVEN_OUTPUTS.search, names))
    has_dtypes = all(each.dtypes for each in tensors)
    calls: dict[object, tuple[Call, list[int]]] = {}
    for rank, front in fronts.items():
        compared = Tensors(
            front.tensors.inputs if has_inputs else (),
            front.tensors.outputs if has_outputs else (),
            front.tensors.dtypes if has_dtypes else (),
        )
        call = Call(front.name if has_names else "", compared)
        counts = elements(compared.inputs), elements(compared.outputs)
        alike = call.name, *counts, compared.dtypes
        calls.setdefault(alike, (call, []))[1].append(rank)
    return dict(calls.values())


def _is_elsewhere(state: RankState, lines: Collection[Frame]) -> bool:
    """Return whether a rank without an operation pending is not in it, by its record or stack.

    Parameters
    ----------
    lines : collection of Frame
        The lines of the program that call the operation, as far as known.
    """
    if state.is_recorded:
        return True
    if not state.stack:
        return False
    return not is_wait(state.stack[0]) or (bool(lines) and calling(state.stack) not in lines)


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


def _batch(job: JobState, waiting: RankState) -> Operation:
    """Return the transfer that keeps a rank's first batch of transfers waiting.

    Transfers of a batch run at the same time, so the rank waits for all of their peers: first for
    those that have not entered theirs.
    """
    transfers = [_transfer(job, waiting, pending) for pending in waiting.batch]
    return min(transfers, key=_urgency)


def _urgency(transfer: Operation) -> tuple[bool, bool, bool, bool]:
    return not transfer.absent, not transfer.behind, not transfer.unlike, bool(transfer.beyond)


def _transfer(job: JobState, waiting: RankState, pending: Pending) -> Operation:
    """Return a rank's pending transfer, and whether its peer has entered it or is behind."""
    rank, peer = waiting.rank, pending.peer
    own = Operation(pending, (rank,))
    if peer is None or peer == rank:
        return own

    def meets(other: Pending) -> bool:
        is_opposite = other.is_send != pending.is_send
        return other.peer == rank and other.group == pending.group and is_opposite

    state = job.ranks.get(peer)
    if state is None:
        return replace(own, absent=(peer,), certain=False)
    met = [other for other in state.batch if meets(other)]
    if met:
        is_unlike = len(met) == 1 and _is_unlike(pending.tensors, met[0].tensors)
        call = Call(pending.name, pending.tensors)
        return replace(own, unlike=(peer,), call=call) if is_unlike else own
    if any(map(meets, state.pending)):
        return replace(own, behind=(peer,))
    if _has_finished(waiting, pending, state):
        return replace(own, beyond=(peer,))
    is_absent = _is_elsewhere(state, set())
    return replace(own, absent=(peer,)) if is_absent else replace(own, unclear=(peer,))


def _is_unlike(sent: Tensors, received: Tensors) -> bool:
    """Return whether the two ends of a transfer have other sizes or types, as far as known."""
    sizes = elements(sent.inputs), elements(received.inputs)
    if not all(sizes) or not (len(sizes[0]) == len(sizes[1]) == 1):
        return False
    has_dtypes = bool(sent.dtypes and received.dtypes)
    return sizes[0] != sizes[1] or (has_dtypes and sent.dtypes != received.dtypes)


def _has_finished(waiting: RankState, pending: Pending, peer: RankState) -> bool:
    """Return whether the peer of a pending transfer has finished its own part of it.

    Each rank numbers its transfers itself. So the peer's last transfer must have the same number,
    and the one before it must have the number of the last transfer that the waiting rank finished.
    """
    theirs = peer.finished.get((pending.group, waiting.rank, not pending.is_send), ())
    own = waiting.finished.get((pending.group, peer.rank, pending.is_send), ())
    if not pending.number or theirs[-1:] != (pending.number,):
        return False
    return not own or not theirs[:-1] or own[-1] == theirs[-2]


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

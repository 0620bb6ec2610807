"""The state of a stopped job: pending operations, stacks, hosts and GPUs of its ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its global ranks, ordered by their numbers within the group.

    Parameters
    ----------
    is_listed : bool
        Whether a recorder lists the ranks; otherwise they are those that used the group.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    is_listed: bool = True

    @property
    def called(self) -> str:
        """Return the words for the group: its description and name."""
        return f"{self.description} ({self.name})" if self.description else f"group {self.name}"


@dataclass(frozen=True, slots=True)
class Frame:
    """A stack frame: function, file and line of code."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Tensors:
    """Shapes and types of the tensors of an operation; empty if unknown.

    Parameters
    ----------
    dtypes : tuple of str
        Distinct types, sorted.
    """

    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()


NO_TENSORS: Final = Tensors()


def elements(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the number of elements of each shape: 1 for a scalar.

    Examples
    --------
    >>> elements([(2, 512), ()])
    (1024, 1)
    """
    return tuple(map(math.prod, shapes))


@dataclass(frozen=True, slots=True)
class Pending:
    """An operation that a rank has enqueued but not completed.

    Parameters
    ----------
    group : int
        Index into the groups of the job.
    number : int
        Sequence number among the collectives of the group, or its sends and receives.
    name : str
        Empty if unknown.
    peer : int or None
        The global rank at the other end of a send or a receive; None for a collective. The rank
        itself if the recorder does not say which ranks a batch of transfers connects.
    has_started : bool or None
        Whether the device has started the operation; None if unknown.
    called_at : tuple of Frame
        Stack of the call, the innermost frame first; empty if unknown.
    """

    group: int
    number: int
    name: str
    peer: int | None = None
    is_send: bool = False
    tensors: Tensors = NO_TENSORS
    has_started: bool | None = None
    called_at: tuple[Frame, ...] = ()
    since_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """Sequence numbers of the last operations of a group that a rank enqueued and completed."""

    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True)
class RankState:
    """The recorded state of a rank.

    Parameters
    ----------
    pending : tuple of Pending
        In the order of enqueueing.
    reached : mapping of int to Reached
        By index of the group, as far as recorded.
    stack : tuple of Frame
        The training thread, the innermost frame first; empty if unknown.
    finished : mapping of (int, int, bool) to tuple of int
        By group, peer and whether the rank sent: the numbers of the rank's last two finished
        transfers, the latest last.
    is_recorded : bool
        Whether the rank's pending operations are known; without them a rank with none pending may
        still wait in one.
    """

    rank: int
    pending: tuple[Pending, ...] = ()
    reached: Mapping[int, Reached] = field(default_factory=dict)
    stack: tuple[Frame, ...] = ()
    is_recorded: bool = True
    finished: Mapping[tuple[int, int, bool], tuple[int, ...]] = field(default_factory=dict)

    @property
    def front(self) -> Pending | None:
        """Return the rank's first pending operation; None without pending operations."""
        return self.pending[0] if self.pending else None

    @property
    def batch(self) -> tuple[Pending, ...]:
        """Return the transfers that the rank has begun together and waits for first."""
        first = self.front
        if first is None or first.peer is None:
            return ()
        if not first.number:
            # Recorders before PyTorch 2.4 do not number transfers.
            return (first,)
        key = first.group, first.number
        return tuple(
            pending
            for pending in self.pending
            if pending.peer is not None and (pending.group, pending.number) == key
        )

    @property
    def called_at(self) -> tuple[Frame, ...]:
        """Return the stack in which the rank called its first pending operation, if known."""
        if self.stack or self.front is None:
            return self.stack
        return self.front.called_at


@dataclass(frozen=True, slots=True)
class Process:
    """A host's report on the process of a rank that sends no report itself.

    Parameters
    ----------
    state : str
        The letter of ``/proc/PID/stat``; empty if the process no longer exists.
    wait_channel : str
        The kernel function in which it waits; empty if unknown.
    """

    pid: int
    state: str
    wait_channel: str = ""

    @property
    def words(self) -> str:
        """Return the clause about the state of the process.

        Examples
        --------
        >>> Process(7, "T").words, Process(7, "").words
        ('process 7 is stopped (a signal or a debugger)', 'process 7 has ended')
        """
        if self.state in ("", "X", "Z"):
            return f"process {self.pid} has ended"
        if self.state in ("T", "t"):
            return f"process {self.pid} is stopped (a signal or a debugger)"
        where = f" in {self.wait_channel}" if self.wait_channel else ""
        if self.state == "D":
            return f"process {self.pid} waits for a disk or a driver{where}"
        does = "computes" if self.state == "R" else f"sleeps{where}"
        return (
            f"process {self.pid} is alive and {does}, but none of its threads says anything: one "
            "may hold the interpreter's lock"
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Host and GPU of a rank."""

    host: str | None = None
    gpu: str | None = None

    @property
    def words(self) -> str:
        """Return the words for host and GPU: ``node-104 GPU 1``; empty if unknown.

        Examples
        --------
        >>> Place("node-104", "1").words, Place("node-104").words, Place().words
        ('node-104 GPU 1', 'node-104', '')
        """
        at = [self.host] if self.host else []
        if self.gpu:
            at.append(f"GPU {self.gpu}" if self.gpu.isdecimal() else self.gpu)
        return " ".join(at)


NOWHERE: Final = Place()


@dataclass(frozen=True, slots=True)
class JobState:
    """The recorded state of all ranks of a job.

    Parameters
    ----------
    places : mapping of int to Place
        By rank, also for ranks without a state.
    processes : mapping of int to Process
        By rank, for ranks that report nothing themselves.
    silent : frozenset of int
        Ranks that stopped reporting; other ranks without a state are unknown.
    notes : tuple of str
        Sentences about files, or parts of them, that are left out.
    """

    groups: tuple[Group, ...]
    ranks: Mapping[int, RankState]
    places: Mapping[int, Place] = field(default_factory=dict)
    processes: Mapping[int, Process] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()

    def place(self, rank: int) -> Place:
        """Return the host and GPU of a rank, as far as known."""
        return self.places.get(rank, NOWHERE)

    @property
    def world(self) -> tuple[int, ...]:
        """Return all ranks that have a state or are in a group, ascending."""
        in_groups = {rank for group in self.groups for rank in group.ranks}
        return tuple(sorted(in_groups | self.ranks.keys() | self.silent))

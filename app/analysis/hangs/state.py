"""What is known of each rank of a job that stands still, from files or from the live job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Group:
    """A process group; ranks are global ones, in the order of the group's own numbers."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def called(self) -> str:
        """Return its name as people read it."""
        return f"{self.description} ({self.name})" if self.description else f"group {self.name}"


@dataclass(frozen=True, slots=True)
class Pending:
    """An operation that a rank has enqueued and that is not over.

    Parameters
    ----------
    group : int
        Index into the groups of the job.
    number : int
        Counts the collectives of the group, or its sends and receives.
    peer : int or None
        Of a send or a receive the global rank at its other end.
    size : tuple of int
        Shape of the first input, as far as it is known.
    """

    group: int
    number: int
    name: str
    peer: int | None = None
    is_send: bool = False
    size: tuple[int, ...] = ()
    since_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """The numbers of the last operations of a group that a rank has enqueued and completed."""

    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of code that a thread is in."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class RankState:
    """What is known of a rank.

    Parameters
    ----------
    pending : tuple of Pending
        In the order in which they were enqueued.
    reached : mapping of int to Reached
        By index of the group, where it is known.
    stack : tuple of Frame
        Of the thread that trains, the innermost first; empty where it is not known.
    """

    rank: int
    pending: tuple[Pending, ...] = ()
    reached: Mapping[int, Reached] = field(default_factory=dict)
    stack: tuple[Frame, ...] = ()

    @property
    def front(self) -> Pending | None:
        """Return what it waits for first; None where it has nothing pending."""
        return self.pending[0] if self.pending else None


@dataclass(frozen=True, slots=True)
class Process:
    """What a host says of the process of a rank that says nothing itself.

    Parameters
    ----------
    state : str
        The letter of ``/proc/PID/stat``; empty where there is no such process any more.
    wait_channel : str
        Where it waits in the kernel; empty where that is not known.
    """

    pid: int
    state: str
    wait_channel: str = ""

    @property
    def words(self) -> str:
        """Return how it is, in words.

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
    """Where a rank is."""

    host: str | None = None
    gpu: str | None = None

    @property
    def words(self) -> str:
        """Return it as people name it: ``node-104 GPU 1``; empty where nothing is known.

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
    """What is known of all ranks of a job.

    Parameters
    ----------
    places : mapping of int to Place
        By rank, also of ranks of which nothing else is known.
    processes : mapping of int to Process
        By rank, of ranks that say nothing themselves.
    silent : frozenset of int
        Ranks that are known to say nothing any more; of others without a state nothing is known.
    """

    groups: tuple[Group, ...]
    ranks: Mapping[int, RankState]
    places: Mapping[int, Place] = field(default_factory=dict)
    processes: Mapping[int, Process] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()

    def place(self, rank: int) -> Place:
        """Return where a rank is, as far as that is known."""
        return self.places.get(rank, NOWHERE)

    @property
    def world(self) -> tuple[int, ...]:
        """Return all ranks that are known or belong to a group, rising."""
        named = {rank for group in self.groups for rank in group.ranks}
        return tuple(sorted(named | self.ranks.keys() | self.silent))

"""Events kept of one rank's profiler recording, packed in memory.

A file of a gigabyte has millions of events, most of them operators of the framework. Kept are
named ranges, the ends of transfers and collectives, and a few integers of each launch, operator
and kernel, stored as differences of one, two or four bytes instead of eight.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.limits import Limits
from app.analysis.trace.model import BETWEEN_STEPS
from app.analysis.trace.recordings.labels import (
    NO_OPERATION,
    Label,
    OwnRangesReader,
    parse_between,
    parse_label,
    parse_overlapped,
    parse_step,
)
from app.analysis.trace.recordings.profiler.process_groups import Group
from app.errors import BodyTooLargeError

# ---- Rows of integers in memory, as differences in as few bytes as hold them -------------------
# Of what a profiler records of millions of kernels and operators, one follows the other closely in
# time and by number: a difference takes one, two or four bytes where the value takes eight.


_BLOCK_ROWS: Final = 1 << 14
_WIDTHS: Final = (np.int8, np.int16, np.int32)


class PackedTable:
    """Rows of some integers of 64 bits each, to be read column by column.

    Parameters
    ----------
    columns : int
        How many integers a row has.
    block_rows : int
        Rows that are packed together.
    """

    def __init__(self, columns: int, *, block_rows: int = _BLOCK_ROWS) -> None:
        self._columns = columns
        self._block_rows = block_rows
        self._tail = array("q")
        self._blocks: list[tuple[_Packed, ...]] = []

    def __len__(self) -> int:
        return len(self._blocks) * self._block_rows + len(self._tail) // self._columns

    def add(self, *row: int) -> None:
        """Append a row: one value for each column."""
        self._tail.extend(row)
        if len(self._tail) == self._columns * self._block_rows:
            self._pack_tail()

    def extend(self, *columns: NDArray[np.int64]) -> None:
        """Append rows, given column by column."""
        rows = np.stack(columns, axis=1).ravel()
        full = self._columns * self._block_rows
        while len(rows):
            room = full - len(self._tail)
            self._tail.frombytes(rows[:room].tobytes())
            rows = rows[room:]
            if len(self._tail) == full:
                self._pack_tail()

    def _pack_tail(self) -> None:
        values = np.frombuffer(self._tail, np.int64).reshape(-1, self._columns)
        self._blocks.append(tuple(_pack(column) for column in values.T))
        self._tail = array("q")

    def read(self, *columns: int) -> Iterator[tuple[NDArray[np.int64], ...]]:
        """Yield the columns asked for, some thousands of rows at a time, in order."""
        for block in self._blocks:
            yield tuple(block[column].values() for column in columns)
        if self._tail:
            # Copied: an array whose memory is lent out cannot grow.
            rest = np.array(self._tail, np.int64).reshape(-1, self._columns)
            yield tuple(rest[:, column] for column in columns)


@dataclass(frozen=True, slots=True)
class _Packed:
    first: int
    steps: NDArray[np.signedinteger]

    def values(self) -> NDArray[np.int64]:
        values = np.empty(len(self.steps) + 1, np.int64)
        values[0] = self.first
        values[1:] = self.steps
        return np.cumsum(values, out=values)


def _pack(values: NDArray[np.int64]) -> _Packed:
    # A difference beyond 64 bits comes round, and so does the sum that undoes it.
    steps = np.diff(values)
    low, high = int(steps.min(initial=0)), int(steps.max(initial=0))
    for width in _WIDTHS:
        bounds = np.iinfo(width)
        if bounds.min <= low and high <= bounds.max:
            return _Packed(int(values[0]), steps.astype(width))
    return _Packed(int(values[0]), steps)


# Ranges and collectives are objects; 50 steps of 64 layers with tensor parallelism have 10^5.
_MAX_KEPT: Final = 1_000_000
_DEVICE_COLLECTIVE: Final = re.compile(r"(?:nccl|rccl|xccl)[A-Za-z]*_?([A-Za-z]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Span:
    """A range on the host: its ends in ns, and the event that it is."""

    start: int
    end: int
    event: int


@dataclass(frozen=True, slots=True)
class Half:
    """What of a range that runs a forward and a backward is either."""

    thread: int  # that of the range, which runs the forward; autograd's runs the backward
    backward: bool


@dataclass(frozen=True, slots=True)
class Labelled:
    """A labelled range."""

    label: Label
    span: Span
    step: int | None = None  # of the training, where its name says it
    half: Half | None = None  # where the same range runs something else as well


@dataclass(frozen=True, slots=True)
class Work:
    """A transfer or a collective of a process group."""

    name: str  # of the collective, without punctuation: ``allgather``, ``send``
    # group, description: name of the process group and what its maker calls it, "" where neither
    # is recorded
    group: str
    description: str
    seq: int | None  # its number in the group, where that is recorded
    span: Span
    on_device: bool  # it is a kernel
    # correlation, external: what a kernel names its launch and its operator by, -1 where it does
    # not
    correlation: int = -1
    external: int = -1
    size: int | None = None  # ranks of the group, where that is recorded
    peer: int | None = None  # the rank at the other end of a transfer, where that is recorded


@dataclass(frozen=True, slots=True)
class Mark:
    """A range on the host that a framework names itself, such as ``FSDP::pre_forward (0)``."""

    name: str
    span: Span
    thread: int


@dataclass(frozen=True, slots=True)
class Issue:
    """What the host called to start a collective or a transfer."""

    name: str  # as in `Work`
    group: str
    description: str
    seq: int | None
    span: Span
    thread: int
    external: int  # by which its kernel names it, -1 where it has none
    size: int | None = None
    peer: int | None = None  # as in `Work`


class Activity(IntEnum):
    """What a device did."""

    KERNEL = 0
    COPY = 1
    SET = 2


class Kernels:
    """What the device did: ends in ns, what launched it, its work, its stream, and which kind."""

    START, DURATION, CORRELATION, EXTERNAL, WORK, STREAM, ACTIVITY = range(7)
    COLUMNS: Final = 7

    def __init__(self) -> None:
        self.table = PackedTable(self.COLUMNS)

    def __len__(self) -> int:
        return len(self.table)

    def add(  # noqa: PLR0913, PLR0917 - the columns of a kernel
        self,
        span: Span,
        correlation: int,
        external: int,
        work: int,
        stream: int = 0,
        activity: Activity = Activity.KERNEL,
    ) -> None:
        """Add one; `work` is its index into `Scan.works` if it is of a process group, else -1."""
        duration = span.end - span.start
        self.table.add(span.start, duration, correlation, external, work, stream, activity)


class Links:
    """What started when on which thread, and the number by which kernels name it."""

    START, NUMBER, THREAD = range(3)

    def __init__(self) -> None:
        self.table = PackedTable(3)

    def __len__(self) -> int:
        return len(self.table)

    def add(self, start: int, number: int, thread: int = 0) -> None:
        """Add one."""
        self.table.add(start, number, thread)


class Ranges:
    """Ranges on the host of which nothing but time and thread matters."""

    START, DURATION, THREAD = range(3)

    def __init__(self) -> None:
        self.table = PackedTable(3)

    def __len__(self) -> int:
        return len(self.table)

    def add(self, span: Span, thread: int) -> None:
        """Add one."""
        self.table.add(span.start, span.end - span.start, thread)


@dataclass(slots=True)
class Scan:
    """What is kept of a recording; times count from `base_ns`."""

    base_ns: int = 0
    rank: int | None = None
    world: int | None = None
    host: str | None = None
    gpu: str | None = None
    groups: list[Group] = field(default_factory=list)
    # Groups of another rank of the job, whose sizes are those of this one's.
    others_groups: list[Group] = field(default_factory=list)
    labelled: list[Labelled] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    optimizers: list[Span] = field(default_factory=list)
    # What the rank does between steps, by operation type.
    between: list[tuple[str, Span]] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    # issues: calls of process groups. marks: what frameworks name. Both only where nothing is
    # labelled are they read.
    issues: list[Issue] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    # What autograd ran, node by node.
    gradients: Ranges = field(default_factory=Ranges)
    # Operators that no other operator called, and where the last of them ends on each thread.
    outer: Ranges = field(default_factory=Ranges)
    busy_until: dict[int, int] = field(default_factory=dict)
    threads: dict[object, int] = field(default_factory=dict)
    ends: int = 0  # where the last of the profiler's own steps ends
    kernels: Kernels = field(default_factory=Kernels)
    launches: Links = field(default_factory=Links)
    operators: Links = field(default_factory=Links)
    # Ranges that look like labels and are none that can be read.
    strange: int = 0
    # Actions that run a forward and a backward, which nothing tells apart.
    not_apart: int = 0
    copies: int = 0  # labelled ranges that were left out since they stand there twice
    # What finds ranges of the job's own; those that are steps, with the number where that is said;
    # and those that a profiler shows on the device's track only.
    own: OwnRangesReader | None = None
    own_steps: list[tuple[int, int | None]] = field(default_factory=list)
    labelled_on_device: list[Labelled] = field(default_factory=list)

    @property
    def holds_nothing(self) -> bool:
        """Whether nothing ran: no operator, no kernel and no range but the profiler's steps."""
        said = self.labelled or self.works or self.issues or self.marks or self.optimizers
        return not said and not len(self.outer) and not len(self.kernels)

    def thread(self, name: object) -> int:
        """Return the number of a thread or a stream that a recording names in whatever way."""
        return self.threads.setdefault(name, len(self.threads))

    def take_operator(self, span: Span, thread: int) -> None:
        """Take an operator of a thread; they come in the order in which they started."""
        if span.start >= self.busy_until.get(thread, span.start):
            self.outer.add(span, thread)
            self.busy_until[thread] = span.end

    def take_range(self, name: str, span: Span, thread: int | None = None) -> None:
        """Take a range whose name begins like a label.

        Parameters
        ----------
        thread : int or None
            That it is of, where those of launches are known as well.
        """
        step = parse_step(name)
        label, between = parse_label(name), parse_between(name)
        if step is not None:
            self.steps.append((span.start, step))
            self.ends = max(self.ends, span.end)
        elif label is not None:
            self.labelled.append(Labelled(label, span))
        elif between is not None:
            self.between.append((between, span))
        elif halves := parse_overlapped(name):
            self._take_halves(halves, span, thread)
        elif not NO_OPERATION.fullmatch(name):
            self.strange += 1

    def take_own(self, name: str, span: Span, *, on_device: bool = False) -> bool:
        """Take a range of the job's own; return whether a pattern matches its name.

        Parameters
        ----------
        on_device : bool
            The range is that of what it launched, on the device's track.
        """
        found = None if self.own is None else self.own.find(name, span.event)
        if found is None:
            return False
        label = found.label
        if on_device:
            if label is not None:
                self.labelled_on_device.append(Labelled(label, span, found.step))
            return True
        if label is None or found.step is not None:
            self.own_steps.append((span.start, found.step))
        if label is not None and label.op in BETWEEN_STEPS:
            self.between.append((label.op, span))
        elif label is not None:
            self.labelled.append(Labelled(label, span, found.step))
        return True

    def _take_halves(self, halves: tuple[Label, Label], span: Span, thread: int | None) -> None:
        if thread is None:
            self.not_apart += 1
            return
        self.labelled += [
            Labelled(label, span, half=Half(thread, backward=label is halves[1]))
            for label in halves
        ]

    def leave_out_copies(self) -> None:
        """Leave out labelled ranges that stand in the recording twice, and count them.

        They do where files were put together that hold the same events.
        """
        known: dict[object, Labelled] = {}
        for one in self.labelled:
            known.setdefault((one.label, one.step, one.span.start, one.span.end), one)
        self.copies = len(self.labelled) - len(known)
        self.labelled = list(known.values())

    def check_counts(self, limits: Limits) -> None:
        """Refuse a recording of which too much would be kept.

        Raises
        ------
        BodyTooLargeError
            `body.too_many_rows`.
        """
        events = len(self.operators) + len(self.kernels) + len(self.gradients) + len(self.outer)
        if events > limits.max_rows:
            message = f"the recording has over {limits.max_rows} operators and kernels"
            raise BodyTooLargeError(message, code="body.too_many_rows")
        ranges = len(self.labelled) + len(self.between) + len(self.steps)
        ranges += len(self.own_steps) + len(self.labelled_on_device)
        ranges += len(self.marks) + len(self.issues) + len(self.threads)
        if ranges + len(self.works) > _MAX_KEPT:
            message = f"the recording has over {_MAX_KEPT} labelled ranges and collectives"
            raise BodyTooLargeError(message, code="body.too_many_rows")


def plain_name(name: str) -> str:
    """Return a collective's name without punctuation: ``_allgather_base`` is ``allgather``."""
    return name.lower().replace("_", "").replace("base", "").replace("intotensor", "")


def collective_of(kernel: str) -> str | None:
    """Return the collective that a kernel of a process group's backend runs, None for others.

    Examples
    --------
    >>> collective_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'allreduce'
    """
    found = _DEVICE_COLLECTIVE.match(kernel)
    return None if found is None else plain_name(found[1])

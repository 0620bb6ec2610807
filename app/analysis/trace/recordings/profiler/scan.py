"""Reduced form of one rank's profiler recording, packed in memory.

A file of a gigabyte has millions of events, most of them operators of the framework. A scan keeps
named ranges, transfers and collectives as objects, and a few integers of each launch, operator and
kernel. Consecutive integers are close in time and number, so their differences take one, two or
four bytes instead of eight.
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

_BLOCK_ROWS: Final = 1 << 14
_WIDTHS: Final = (np.int8, np.int16, np.int32)


class PackedTable:
    """Rows of 64-bit integers, appended by row and read by column.

    Parameters
    ----------
    columns : int
        Integers in a row.
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
        """Append a row: one value per column."""
        self._tail.extend(row)
        if len(self._tail) == self._columns * self._block_rows:
            self._pack_tail()

    def extend(self, *columns: NDArray[np.int64]) -> None:
        """Append several rows, given as one array per column."""
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
        """Yield the given columns in order, some thousands of rows at a time."""
        for block in self._blocks:
            yield tuple(block[column].values() for column in columns)
        if self._tail:
            # Copied because an `array` cannot grow while a NumPy view of its memory exists.
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
    # A difference beyond 64 bits wraps around; the sum that restores the values wraps back.
    steps = np.diff(values)
    low, high = int(steps.min(initial=0)), int(steps.max(initial=0))
    for width in _WIDTHS:
        bounds = np.iinfo(width)
        if bounds.min <= low and high <= bounds.max:
            return _Packed(int(values[0]), steps.astype(width))
    return _Packed(int(values[0]), steps)


# Maximum number of ranges and collectives of a scan, which are kept as Python objects. A recording
# of 50 steps with 64 tensor-parallel layers has about 100,000.
_MAX_KEPT: Final = 1_000_000
_DEVICE_COLLECTIVE: Final = re.compile(r"(?:nccl|rccl|xccl)[A-Za-z]*_?([A-Za-z]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time in ns, and the index of its event in the recording."""

    start: int
    end: int
    event: int


@dataclass(frozen=True, slots=True)
class Half:
    """Half (forward or backward) of a range that runs both directions."""

    thread: int  # thread of the range and its forward; autograd's thread runs the backward
    backward: bool


@dataclass(frozen=True, slots=True)
class Labelled:
    """A recorded range and the label in its name."""

    label: Label
    span: Span
    step: int | None = None  # training step if the name contains it
    half: Half | None = None  # set if the range has a second label


@dataclass(frozen=True, slots=True)
class Work:
    """A transfer or a collective of a process group (PyTorch's "work")."""

    name: str  # name without punctuation: ``allgather``, ``send``
    # group, description: name and description of the process group, "" if not recorded
    group: str
    description: str
    seq: int | None  # sequence number in the group; None if not recorded
    span: Span
    on_device: bool  # a kernel; else a backend's range on the host
    # correlation, external: ids of the kernel's launch and of its operator, -1 if not recorded
    correlation: int = -1
    external: int = -1
    size: int | None = None  # number of ranks of the group
    peer: int | None = None  # other rank of a transfer


# Beginnings of the names of ranges that only a training records, and of those that `ScheduleGPipe`
# writes for the microbatches of a pipeline, with their numbers.
TRAINING_MARKS: Final = (
    "FSDP::",
    "FullyShardedDataParallel.",
    "DistributedDataParallel.forward",
    "Optimizer.zero_grad#",
)
PIPELINE_MARKS: Final = ("Forward ", "Backward ")


@dataclass(frozen=True, slots=True)
class Mark:
    """A range that a framework records on the host, such as ``FSDP::pre_forward (0)``."""

    name: str
    span: Span
    thread: int


@dataclass(frozen=True, slots=True)
class Issue:
    """A call on the host that starts a collective or a transfer."""

    name: str  # as in `Work`
    group: str
    description: str
    seq: int | None
    span: Span
    thread: int
    external: int  # id with which the kernel refers to the call, -1 if none
    size: int | None = None
    peer: int | None = None  # as in `Work`


class Activity(IntEnum):
    """Kind of work on a device stream."""

    KERNEL = 0
    COPY = 1
    SET = 2


class Kernels:
    """Table of device activities: times in ns, ids of launch and operator, work, stream, kind."""

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
        """Add an activity; `work` is its index into `Scan.works`, -1 without a process group."""
        duration = span.end - span.start
        self.table.add(span.start, duration, correlation, external, work, stream, activity)


class Links:
    """Table of launches or operators: start in ns, id to which kernels refer, thread."""

    START, NUMBER, THREAD = range(3)

    def __init__(self) -> None:
        self.table = PackedTable(3)

    def __len__(self) -> int:
        return len(self.table)

    def add(self, start: int, number: int, thread: int = 0) -> None:
        """Append a launch or an operator."""
        self.table.add(start, number, thread)


class Ranges:
    """Table of host ranges whose names are not kept: times in ns and thread."""

    START, DURATION, THREAD = range(3)

    def __init__(self) -> None:
        self.table = PackedTable(3)

    def __len__(self) -> int:
        return len(self.table)

    def add(self, span: Span, thread: int) -> None:
        """Append a range."""
        self.table.add(span.start, span.end - span.start, thread)


@dataclass(slots=True)
class Scan:
    """Reduced recording of one rank; times in ns since `base_ns`."""

    base_ns: int = 0
    rank: int | None = None
    world: int | None = None
    host: str | None = None
    gpu: str | None = None
    groups: list[Group] = field(default_factory=list)
    # Process groups of another rank of the job; this rank's groups have the same sizes.
    others_groups: list[Group] = field(default_factory=list)
    labelled: list[Labelled] = field(default_factory=list)
    # (start, step number) of each step that the profiler marks, and the end of the last marked
    # step.
    steps: list[tuple[int, int]] = field(default_factory=list)
    ends: int = 0
    optimizers: list[Span] = field(default_factory=list)
    # (operation type, span) of work between steps.
    between: list[tuple[str, Span]] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    # issues: calls that launch collectives; marks: annotated ranges of frameworks (DDP, FSDP). Both
    # are used only if the recording has no labels.
    issues: list[Issue] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    # gradients: ranges in which autograd ran a node of the backward graph; nodes: operators of the
    # nodes, which are within these ranges where both are recorded
    gradients: Ranges = field(default_factory=Ranges)
    nodes: Ranges = field(default_factory=Ranges)
    # outer: operators that lie in no other operator; busy_until: end of the last such operator by
    # thread
    outer: Ranges = field(default_factory=Ranges)
    busy_until: dict[int, int] = field(default_factory=dict)
    threads: dict[object, int] = field(default_factory=dict)
    kernels: Kernels = field(default_factory=Kernels)
    launches: Links = field(default_factory=Links)
    operators: Links = field(default_factory=Links)
    # Number of ranges whose name has a label's prefix but cannot be parsed.
    unknown_labels: int = 0
    # Number of actions with a forward and a backward on an unknown thread; their halves cannot be
    # separated.
    overlapped_actions: int = 0
    copies: int = 0  # number of labelled ranges dropped as copies
    # own: matcher of the job's labels; own_steps: (start, captured number or None) of the steps
    # that it matched; labelled_on_device: matched ranges that the profiler shows only on the
    # device's track
    own: OwnRangesReader | None = None
    own_steps: list[tuple[int, int | None]] = field(default_factory=list)
    labelled_on_device: list[Labelled] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the scan has no operator, kernel or range other than the profiler's steps."""
        objects = self.labelled or self.works or self.issues or self.marks or self.optimizers
        return not objects and not len(self.outer) and not len(self.kernels)

    def thread(self, name: object) -> int:
        """Return the number of a thread or stream for its name in the recording."""
        return self.threads.setdefault(name, len(self.threads))

    def add_operator(self, span: Span, thread: int) -> None:
        """Add an operator unless it lies in another operator of its thread.

        Operators must be added in the order of their starts.
        """
        if span.start >= self.busy_until.get(thread, span.start):
            self.outer.add(span, thread)
            self.busy_until[thread] = span.end

    def add_range(self, name: str, span: Span, thread: int | None = None) -> None:
        """Add a range whose name has the prefix of a label.

        Parameters
        ----------
        thread : int or None
            Thread of the range; None if the threads of launches are not recorded.
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
            if thread is None:
                self.overlapped_actions += 1
                return
            self.labelled += [
                Labelled(half, span, half=Half(thread, backward=half is halves[1]))
                for half in halves
            ]
        elif not NO_OPERATION.fullmatch(name):
            self.unknown_labels += 1

    def add_own_range(self, name: str, span: Span, *, on_device: bool = False) -> bool:
        """Add a range if a pattern of the job matches its name; return whether a pattern matches.

        Parameters
        ----------
        on_device : bool
            Whether the range is on the device's track, where it spans the launched kernels.
        """
        match = None if self.own is None else self.own.find(name, span.event)
        if match is None:
            return False
        label = match.label
        if on_device:
            if label is not None:
                self.labelled_on_device.append(Labelled(label, span, match.step))
            return True
        if label is None or match.step is not None:
            self.own_steps.append((span.start, match.step))
        if label is not None and label.op in BETWEEN_STEPS:
            self.between.append((label.op, span))
        elif label is not None:
            self.labelled.append(Labelled(label, span, match.step))
        return True

    def use_nodes(self) -> None:
        """Take the operators of autograd's nodes for its ranges where these are not recorded."""
        if not len(self.gradients):
            self.gradients = self.nodes
        self.nodes = Ranges()

    def drop_copies(self) -> None:
        """Drop and count copies of labelled ranges, since merged files may hold an event twice."""
        unique: dict[object, Labelled] = {}
        for item in self.labelled:
            unique.setdefault((item.label, item.step, item.span.start, item.span.end), item)
        self.copies = len(self.labelled) - len(unique)
        self.labelled = list(unique.values())

    def check_counts(self, limits: Limits) -> None:
        """Refuse a recording whose scan takes too much memory.

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
    """Return a collective's name without punctuation: "allgather" for ``_allgather_base``."""
    return name.lower().replace("_", "").replace("base", "").replace("intotensor", "")


def collective_of(kernel: str) -> str | None:
    """Return the collective that an NCCL, RCCL or XCCL kernel runs; None for other kernels.

    Examples
    --------
    >>> collective_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'allreduce'
    """
    named = _DEVICE_COLLECTIVE.match(kernel)
    return None if named is None else plain_name(named[1])

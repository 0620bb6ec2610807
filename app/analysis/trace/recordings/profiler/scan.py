"""What is kept of a profiler's recording of one rank.

A file of a gigabyte has some millions of events, most of them operators of the framework. Kept are
the labelled ranges, the ends of transfers and collectives, and of each launch and kernel a few
numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from app.analysis.trace.limits import Limits
from app.analysis.trace.recordings.labels import (
    NO_OPERATION,
    Label,
    parse_between,
    parse_label,
    parse_step,
)
from app.analysis.trace.recordings.profiler.groups import Group
from app.analysis.trace.recordings.profiler.packed import PackedTable
from app.errors import BodyTooLargeError

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
class Labelled:
    """A labelled range."""

    label: Label
    span: Span


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


class Kernels:
    """Kernels of the device: ends in ns, what launched them, their works."""

    START, DURATION, CORRELATION, EXTERNAL, WORK = range(5)

    def __init__(self) -> None:
        self.table = PackedTable(5)

    def __len__(self) -> int:
        return len(self.table)

    def add(self, span: Span, correlation: int, external: int, work: int) -> None:
        """Add one; `work` is its index into `Scan.works` if it is of a process group, else -1."""
        self.table.add(span.start, span.end - span.start, correlation, external, work)


class Links:
    """What started when on the host, and the number by which kernels name it."""

    START, NUMBER = range(2)

    def __init__(self) -> None:
        self.table = PackedTable(2)

    def __len__(self) -> int:
        return len(self.table)

    def add(self, start: int, number: int) -> None:
        """Add one."""
        self.table.add(start, number)


@dataclass(slots=True)
class Scan:
    """What is kept of a recording; times count from `base_ns`."""

    base_ns: int = 0
    rank: int | None = None
    world: int | None = None
    host: str | None = None
    gpu: str | None = None
    groups: list[Group] = field(default_factory=list)
    labelled: list[Labelled] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    optimizers: list[Span] = field(default_factory=list)
    # What the rank does between steps, by operation type.
    between: list[tuple[str, Span]] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    kernels: Kernels = field(default_factory=Kernels)
    launches: Links = field(default_factory=Links)
    operators: Links = field(default_factory=Links)
    # Ranges that look like labels and are none that can be read.
    strange: int = 0

    def take_range(self, name: str, span: Span) -> None:
        """Take a range whose name begins like a label."""
        step = parse_step(name)
        label, between = parse_label(name), parse_between(name)
        if step is not None:
            self.steps.append((span.start, step))
        elif label is not None:
            self.labelled.append(Labelled(label, span))
        elif between is not None:
            self.between.append((between, span))
        elif not NO_OPERATION.fullmatch(name):
            self.strange += 1

    def check_counts(self, limits: Limits) -> None:
        """Refuse a recording of which too much would be kept.

        Raises
        ------
        BodyTooLargeError
            `body.too_many_rows`.
        """
        if len(self.operators) + len(self.kernels) > limits.max_rows:
            message = f"the recording has over {limits.max_rows} operators and kernels"
            raise BodyTooLargeError(message, code="body.too_many_rows")
        ranges = len(self.labelled) + len(self.between) + len(self.steps)
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

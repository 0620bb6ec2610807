"""Jobs as users write them, recorded with PyTorch's profiler, and their faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.real_jobs.jobs import Place

# Number of recorded steps. The profiler warms up in one more step before.
ACTIVE_STEPS: Final = 5
WARMUP_STEPS: Final = 1
# The first steps of a launch create connections and buffers.
SKIPPED_STEPS: Final = 2
MICROBATCHES: Final = 4
HIDDEN: Final = 64
BATCH_SIZE: Final = 8
SLOW_RANK: Final = 1
SLOW_FACTOR: Final = 1.6
LATE_BATCH_S: Final = 0.06
# Largest bandwidth of a slow link in bytes per second; an activation has 32 KiB.
SLOW_BYTES_A_SECOND: Final = 1_000_000


class Kind(Enum):
    """The structure of a training script."""

    DDP = "ddp"
    FSDP2 = "fsdp2"
    ACCUMULATION = "accumulation"  # DDP with `no_sync` in all microbatches but the last
    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved"

    @property
    def stages(self) -> int:
        """Number of ranks of a pipeline."""
        return 2 if self.is_pipeline else 1

    @property
    def replicas(self) -> int:
        """Number of data-parallel ranks of a stage."""
        return 2

    @property
    def is_pipeline(self) -> bool:
        """Whether ranks are stages."""
        return self in {Kind.ONE_F_ONE_B, Kind.GPIPE, Kind.INTERLEAVED}

    @property
    def world(self) -> int:
        """Number of processes."""
        return self.stages * self.replicas

    def place(self, rank: int) -> Place:
        """Return the place of a rank; `init_device_mesh` numbers it with the pipeline first."""
        return Place(rank % self.replicas, rank // self.replicas)


class Trouble(Enum):
    """The fault in the steps of a recording."""

    NONE = "none"
    SLOW_RANK = "slow_rank"  # its layers take `SLOW_FACTOR` times as long
    SLOW_LOADER = "slow_loader"  # its batches come `LATE_BATCH_S` later
    SLOW_LINK = "slow_link"  # what it sends is limited to `SLOW_BYTES_A_SECOND`

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes that a report may name first."""
        return _CAUSES[self]


_CAUSES: Final[Mapping[Trouble, tuple[str, ...]]] = {
    Trouble.NONE: (),
    Trouble.SLOW_RANK: ("slow_worker",),
    Trouble.SLOW_LOADER: ("data_loading",),
    Trouble.SLOW_LINK: ("network",),
}

TROUBLES: Final[Mapping[Kind, tuple[Trouble, ...]]] = {
    Kind.DDP: (Trouble.SLOW_RANK, Trouble.SLOW_LOADER),
    Kind.FSDP2: (Trouble.SLOW_RANK, Trouble.SLOW_LOADER),
    Kind.ACCUMULATION: (Trouble.SLOW_RANK,),
    Kind.ONE_F_ONE_B: (Trouble.SLOW_RANK, Trouble.SLOW_LINK),
    Kind.GPIPE: (Trouble.SLOW_RANK,),
    Kind.INTERLEAVED: (Trouble.SLOW_RANK,),
}


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of a launch that the profiler records in one file a rank."""

    number: int
    trouble: Trouble

    @property
    def name(self) -> str:
        """Name of the folder of its files."""
        return f"{self.number}-{self.trouble.value}"

    @property
    def first_step(self) -> int:
        """First step of the launch that belongs to it; the profiler warms up in it."""
        return SKIPPED_STEPS + self.number * (WARMUP_STEPS + ACTIVE_STEPS)

    @property
    def steps(self) -> range:
        """Steps whose times count; the first recorded one follows the start of the profiler."""
        first = self.first_step + WARMUP_STEPS
        return range(first + 1, first + ACTIVE_STEPS)


def windows_of(kind: Kind) -> tuple[Window, ...]:
    """Return the windows of a launch: a healthy one before, between and after the others.

    Changes of the machine's speed then affect both kinds.
    """
    turns = [Trouble.NONE]
    for trouble in TROUBLES[kind]:
        turns += [trouble, Trouble.NONE]
    return tuple(Window(number, trouble) for number, trouble in enumerate(turns))


def window_at(kind: Kind, step: int) -> Window | None:
    """Return the window of a step, None before the first and after the last one."""
    number = (step - SKIPPED_STEPS) // (WARMUP_STEPS + ACTIVE_STEPS)
    windows = windows_of(kind)
    return windows[number] if 0 <= number < len(windows) else None

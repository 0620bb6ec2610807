"""The kinds of job: a framework, its layout, and how it communicates and is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

MICROBATCHES: Final = 8


class Framework(Enum):
    """The framework that runs the schedule."""

    HAND_WRITTEN = "hand_written"
    TORCH = "torch_pipelining"
    MEGATRON = "megatron"


class Schedule(Enum):
    """The order of a rank's computations."""

    ONE_F_ONE_B = "1F1B"
    INTERLEAVED = "Interleaved1F1B"
    ZB_V = "ZBVZeroBubble"


class Sharding(Enum):
    """The synchronization of a stage's data-parallel ranks."""

    NONE = "none"  # a collective of the job's own after the last backward
    FSDP2 = "FSDP2"
    DDP = "DDP"


class Posting(Enum):
    """The time at which transfers are posted."""

    BLOCKING = "blocking"  # what is posted together is waited for at once
    WINDOWED = "windowed"  # a receive follows the previous computation of its direction
    OVERLAPPED = "overlapped"  # as the framework does it, in parallel with computation


class Ends(Enum):
    """The time that the recorder takes for the end of a transfer."""

    DONE = "done"  # when it is complete
    WAITED = "waited"  # when the job's own wait for it returns


@dataclass(frozen=True, slots=True)
class Job:
    """A kind of job; one launch runs many scenarios of it.

    Parameters
    ----------
    name : str
        Short, the first part of its scenarios' names.
    says : str
        What it is, for people.
    chunks : int
        Model chunks (virtual stages) of a rank.
    wire_s : float
        Time that every transfer takes once both ends are posted.
    ends_in_barrier : bool
        A collective over all ranks (gradient clipping) ends each step.
    layers : int
        Layers of a chunk.
    says_layers : bool
        The recording's metadata have `layers`.
    """

    name: str
    says: str
    framework: Framework
    dp: int = 2
    pp: int = 2
    chunks: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    sharding: Sharding = Sharding.NONE
    posting: Posting = Posting.OVERLAPPED
    ends: Ends = Ends.DONE
    wire_s: float = 0.0
    ends_in_barrier: bool = True
    layers: int = 1
    says_layers: bool = True

    @property
    def world(self) -> int:
        """Number of processes."""
        return self.dp * self.pp

    def place(self, rank: int) -> Place:
        """Return the place of a rank; data-parallel ranks are consecutive."""
        return Place(rank % self.dp, rank // self.dp)

    def rank(self, dp: int, pp: int) -> int:
        """Return the rank at a place."""
        return pp * self.dp + dp

    def stage(self, pp: int, chunk: int) -> int:
        """Return the virtual stage, in the order of the model, of a rank's chunk."""
        if self.schedule is Schedule.ZB_V and chunk:
            return 2 * self.pp - 1 - pp
        return chunk * self.pp + pp


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's coordinates."""

    dp: int
    pp: int


def _hand_written(name: str, says: str, **how: object) -> Job:
    known: dict[str, object] = {"posting": Posting.BLOCKING} | how
    return Job(name, f"hand-written 1F1B, {says}", Framework.HAND_WRITTEN, **known)  # type: ignore[arg-type]


def _torch(name: str, says: str, **how: object) -> Job:
    return Job(name, f"torch.distributed.pipelining {says}", Framework.TORCH, **how)  # type: ignore[arg-type]


def _megatron(name: str, says: str, **how: object) -> Job:
    known: dict[str, object] = {"says_layers": False} | how
    return Job(name, f"megatron-core, {says}", Framework.MEGATRON, **known)  # type: ignore[arg-type]


_VIRTUAL: Final[Mapping[str, object]] = {"chunks": 2, "schedule": Schedule.INTERLEAVED}

JOBS: Final[Mapping[str, Job]] = {
    job.name: job
    for job in (
        _hand_written("hwC", "blocking p2p, an all-reduce over all ranks ends the step"),
        _hand_written("hwL", "blocking fused p2p, 16 ms on the wire a transfer", wire_s=0.016),
        _hand_written(
            "hwS",
            "blocking p2p, no collective over all ranks: steps of stages overlap",
            ends_in_barrier=False,
        ),
        _hand_written(
            "hwW",
            "receives posted after the previous computation of their direction, 8 ms on the wire",
            posting=Posting.WINDOWED,
            wire_s=0.008,
        ),
        _hand_written(
            "hwE",
            "receives as before, ends of sends taken at work.wait() at the end of the step",
            posting=Posting.WINDOWED,
            ends=Ends.WAITED,
        ),
        _hand_written("hw4", "blocking p2p, PP 4, DP 1", dp=1, pp=4),
        _hand_written(
            "hwS4",
            "blocking p2p, PP 4, DP 1, no collective over all ranks",
            dp=1,
            pp=4,
            ends_in_barrier=False,
        ),
        _torch("tpS", "Schedule1F1B"),
        _torch("tp4", "Schedule1F1B, PP 4, DP 1", dp=1, pp=4),
        _torch("tpI", "ScheduleInterleaved1F1B, 2 chunks a stage", **_VIRTUAL),
        _torch(
            "tpI4",
            "ScheduleInterleaved1F1B, 4 chunks a stage",
            chunks=4,
            schedule=Schedule.INTERLEAVED,
        ),
        _torch(
            "tpIw",
            "ScheduleInterleaved1F1B, ends of transfers taken at work.wait()",
            ends=Ends.WAITED,
            **_VIRTUAL,
        ),
        _torch("tpZ", "ScheduleZBVZeroBubble", chunks=2, schedule=Schedule.ZB_V),
        _torch(
            "tpF",
            "Schedule1F1B with FSDP2: all-gathers inside of computation, recorded",
            sharding=Sharding.FSDP2,
        ),
        _torch(
            "tpF2",
            "Schedule1F1B with FSDP2, two sharded layers a stage",
            sharding=Sharding.FSDP2,
            layers=2,
        ),
        _torch("tpIF", "ScheduleInterleaved1F1B with FSDP2", sharding=Sharding.FSDP2, **_VIRTUAL),
        _torch(
            "tpD",
            "Schedule1F1B with DDP: the all-reduce lies inside of the last backward, recorded",
            sharding=Sharding.DDP,
        ),
        _megatron("mc", "1F1B, recorded by its timers", posting=Posting.BLOCKING),
        _megatron(
            "mc4", "1F1B, recorded by its timers, PP 4, DP 1", posting=Posting.BLOCKING, dp=1, pp=4
        ),
        _megatron(
            "mcV",
            "virtual stages, blocking p2p, recorded by its timers",
            posting=Posting.BLOCKING,
            **_VIRTUAL,
        ),
        _megatron("mcO", "virtual stages, overlapped p2p", **_VIRTUAL),
    )
}

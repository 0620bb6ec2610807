"""Jobs of data-parallel ranks on GPUs, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto


class Sharding(Enum):
    """How parameters lie on the ranks, by what PyTorch calls it."""

    DDP = auto()
    FSDP = auto()
    HSDP = auto()


class Naming(Enum):
    """What a file says of its collectives."""

    FULL = auto()  # with the kernel: PyTorch 2.4 and later
    RECORDS = auto()  # with the record of the call, which the kernel names by its external id
    RANGES = auto()  # nothing but the kernel's name and a range of the backend
    GENERIC = auto()  # as RECORDS, with RCCL's kernels of one name


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong; durations in ns."""

    slow_rank: int | None = None
    slow_factor: float = 1.5
    loading_ns: int = 0  # more than the loader usually takes
    loading_rank: int | None = None  # None for all
    link: float = 1.0  # how much longer transfers take
    late_rank: int | None = None  # whose host launches late
    launch_ns: int = 0  # what each launch takes there


@dataclass(frozen=True, slots=True)
class GpuJob:
    """A training; durations in ns."""

    sharding: Sharding = Sharding.DDP
    ranks: int = 4
    replicas: int = 1  # of a sharded model
    layers: int = 6
    kernels: int = 3  # of a layer's forward
    steps: int = 6
    rounds: int = 1  # of gradient accumulation
    forward_ns: int = 4_000_000  # of a layer
    transfer_ns: int = 900_000  # of a layer's parameters or gradients
    optimizer_ns: int = 3_000_000
    loader_ns: int = 300_000
    lead_ns: int = 5_000_000  # how far hosts run ahead at most
    hosts: int = 2
    clock_ns: int = 0  # how far the clocks of two hosts next to each other are apart
    naming: Naming = Naming.FULL
    named_mesh: bool = True
    clips: bool = False
    numbered: bool = True  # the profiler numbers the steps
    recomputes: bool = False  # forwards again in backwards: activation checkpointing
    faults: Faults = Faults()
    seed: int = 0

    def healthy(self) -> GpuJob:
        """Return the job with nothing wrong."""
        return replace(self, faults=Faults())

    def host_of(self, rank: int) -> int:
        """Return the host of a rank."""
        return rank * self.hosts // self.ranks

    @property
    def shards(self) -> int:
        """Return among how many ranks parameters are divided."""
        return self.ranks // self.replicas

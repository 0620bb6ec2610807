"""Parameters of a simulated data-parallel training on GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

MS: Final = 1_000_000  # ns
US: Final = 1_000  # ns


class Mode(Enum):
    """How ranks share a model."""

    DDP = "DDP"
    FSDP1 = "FSDP1"
    FSDP2 = "FSDP2"


class Writer(Enum):
    """A generation of PyTorch's profiler, by what its files contain of a collective."""

    OLD = "1.13"  # names of kernels, times in whole µs since 1970
    GROUPS = "2.3"  # fields of record_param_comms on calls and kernels, times after a base
    NUMBERED = "2.8"  # also sequence numbers


class Place(Enum):
    """Where in a step a host pauses."""

    BEGIN = "begin"  # before the loader
    FORWARD = "forward"  # in the middle of it
    BACKWARD = "backward"  # in the middle of it
    END = "end"  # after the optimizer


@dataclass(frozen=True, slots=True)
class Pause:
    """A host launches nothing for a while, and records nothing of it."""

    step: int  # 0 is the first recorded one
    rank: int
    place: Place
    pause_ns: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What makes a training slow; by default nothing does."""

    slow_rank: int | None = None
    slow_factor: float = 1.0  # time of each computing kernel of `slow_rank` ÷ that of a peer
    loading_rank: int | None = None
    loading_ns: int = 0  # added to each batch of `loading_rank`
    network_factor: float = 1.0  # time of each transfer ÷ the usual one, on all ranks
    network_steps: frozenset[int] | None = None  # recorded steps with `network_factor`; None: all
    pauses: tuple[Pause, ...] = ()
    # standard deviation of the logarithm of a batch's length, drawn for each rank and step: kernels
    # take as many times as long; recorded batches have a mean length of 1
    lengths: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A training: its model, its devices, its network, and its fault."""

    mode: Mode
    ranks: int = 8
    buckets: int = 4  # all-reduced buckets of DDP; sharded units of FSDP
    streams: int = 1  # streams that run collectives
    steps: int = 4  # recorded ones
    layers: int = 12
    forward_ns: int = 50 * MS  # computing of a step's forward; the backward takes twice that
    exchange: float = 0.5  # time of a step's transfers ÷ computing of its backward
    host_ns: int = 18 * US  # host time of an operator
    synchronized: bool = True  # each step ends with `loss.item()`
    copies_back: bool = False  # DDP copies reduced buckets into gradients
    coalesced: bool = False  # DDP reduces two buckets with one kernel
    clipping: bool = False  # FSDP reduces the norm of gradients before the optimizer
    compiled: bool = False  # `torch.compile`: an operator a layer, whose kernels Triton wrote
    gap_ns: int = 0  # between collectives of a stream that follow one another at once
    noise: float = 0.01  # standard deviation of the logarithm of a kernel's duration
    seed: int = 0
    fault: Fault = field(default_factory=Fault)

    def healthy(self) -> Job:
        """Return the same training without its fault: the same random numbers, for each kernel."""
        return replace(self, fault=Fault())


@dataclass(frozen=True, slots=True)
class Style:
    """How the files of a training are written."""

    writer: Writer = Writer.NUMBERED
    clock_ns: int = 2 * MS  # largest difference of a host's clock from the true time
    drift_ppm: float = 1.0  # largest difference of a clock's speed from the true one
    memory: bool = False  # `profile_memory=True`
    compressed: bool = False  # `.json.gz`
    named_by_host: bool = False  # names of `tensorboard_trace_handler`
    cut_rank: int | None = None  # its last step lacks the kernels after its middle

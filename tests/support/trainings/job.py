"""Descriptions of trainings: the kind, the writer of the files and the fault."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto


class Kind(Enum):
    """The kind of parallelism and training loop."""

    DDP = auto()
    DDP_HALVES = auto()  # a communication hook sends half precision
    DDP_LOW_RANK = auto()  # PowerSGD: two all-reduces a bucket, with work in between
    DDP_ZERO = auto()  # ZeroRedundancyOptimizer: each rank broadcasts its part after the step
    DDP_SCALED = auto()  # GradScaler: the host waits for whether gradients are finite
    DDP_COMPILED = auto()  # torch.compile: Triton's kernels, no operators
    DDP_GRAPHS = auto()  # kernels of one cudaGraphLaunch
    DDP_TWO_OPTIMIZERS = auto()
    DDP_ADVERSARIAL = auto()  # two models, each with a forward, a backward and an optimizer
    DDP_EVALUATES = auto()  # after every third step
    SHARDED_GRADIENTS = auto()  # reduce-scatters, and parameters gathered after the optimizer
    FSDP1 = auto()
    FSDP2 = auto()
    FSDP_CLIPS = auto()  # the norm is reduced, and the host waits for it
    FSDP_RECOMPUTES = auto()
    FSDP_OFFLOADS = auto()  # activations go to the host and come back
    FSDP_COMPILED = auto()
    HSDP = auto()
    TENSOR = auto()  # within data-parallel replicas
    TENSOR_SHARDED = auto()  # within FSDP
    CONTEXT = auto()  # ranks that share a sequence gather keys and values
    EXPERTS = auto()  # tokens go to the ranks of their experts and back


class Writer(Enum):
    """The profiler that wrote a file."""

    NOW = auto()  # kernels say their groups
    RECORDS = auto()  # PyTorch 2.1 to 2.3: the records of calls say the groups
    OLD = auto()  # PyTorch 1.12 to 2.0: ranges of the backend
    ROCM = auto()
    XPU = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of a training; none by default."""

    slow_rank: int | None = None
    slow_factor: float = 1.3
    late_rank: int | None = None
    late_factor: float = 1.0  # how long calls of its host take; of all where no rank is named
    loading_rank: int | None = None
    loading_ns: int = 0
    link: tuple[int, ...] = ()  # the ranks whose link is slow
    link_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Training:
    """A training; durations in ns."""

    kind: Kind
    ranks: int = 4
    inner: int = 1  # tensor-, context- or expert-parallel ranks, or shards of a replica
    layers: int = 4
    kernels: int = 4  # of a layer's forward
    steps: int = 6
    rounds: int = 1
    layer_ns: int = 3_000_000  # a layer's forward
    transfer_ns: int = 900_000  # of a layer's gradients or parameters
    lead_ns: int = 1_000_000_000
    operators: int = 3  # that do nothing but take the host's time, a layer
    copies: bool = True  # batches go from the host to the device
    late_buckets: int = 0  # of DDP; reduced by a callback after the nodes of a backward
    zeroes_late: bool = False  # gradients are zeroed between the batch and the forward
    latency_ns: int = 5_000  # from a launch to its start on an idle device
    fault: Fault = field(default_factory=Fault)
    seed: int = 1

    def healthy(self) -> Training:
        """Return the same training without a fault."""
        return replace(self, fault=Fault())


@dataclass(frozen=True, slots=True)
class Style:
    """The style in which files are written."""

    writer: Writer = Writer.NOW
    arguments: bool = True  # kernels of collectives have their launch and stream only without
    groups_listed: bool = True
    groups_named: bool = False  # as dimensions of a mesh
    rank_said: bool = True
    numbered: bool = True  # steps
    windows: tuple[tuple[int, int], ...] = ()  # steps that are recorded, all by default
    noise: bool = False  # Python's stack, shapes and memory
    clock_ns: int = 0  # how far each host is ahead of the one before

"""Specification of a whole job's plan: model shape, nodes and global batch.

`app.plans.specs.job` validates outside input.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.analysis.planning.transformer import Accelerator, Transformer

# Sequences in one microbatch that are searched.
MICROBATCHES: Final = (1, 2, 4, 8, 16)
# Model chunks a stage that are searched.
INTERLEAVES: Final = (1, 2, 3, 4, 5, 6, 8)
# Bytes of gradients: fp32, as Megatron-Core accumulates them.
GRADIENT_BYTES: Final = 4


class Recompute(StrEnum):
    """What is computed again in the backward pass instead of being stored."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The sizes of a plan; `pp` is that of its longest pipeline, `dp` counts its pipelines."""

    tp: int
    """Tensor-parallel size: devices of a stage, inside a node."""
    pp: int
    """Stages of the longest pipeline."""
    dp: int
    """Pipelines: data-parallel size."""
    microbatch: int
    """Sequences of a microbatch."""
    recompute: Recompute
    """What is computed again in the backward pass: ``none``, ``selective`` (attention scores) or
    ``full`` (every block)."""
    interleave: int
    """Model chunks a stage; 1 is plain 1F1B."""


@dataclass(frozen=True, slots=True)
class FixedParallelism:
    """What of the sizes is given; None is searched."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    microbatch: int | None = None
    recompute: Recompute | None = None
    interleave: int | None = None


@dataclass(frozen=True, slots=True)
class JobDevice:
    """Nodes of one type; all nodes of a job have as many devices.

    `efficiency` is what matrix products reach of the device's peak, a fraction;
    `link_gbytes_per_s` what one device sends to the others of its node, decimal gigabytes a second,
    None where that takes no time.
    """

    accelerator: Accelerator
    nodes: int
    efficiency: float
    link_gbytes_per_s: float | None
    price_per_gpu_hour: float | None = None

    @property
    def name(self) -> str:
        """Return the type's name."""
        return self.accelerator.name


@dataclass(frozen=True, slots=True)
class AsItRuns:
    """How a job runs today: its measured iteration and its sizes; None is not known."""

    iteration_ms: float
    sizes: FixedParallelism
    session: str | None = None  # that was measured


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The question: which sizes, on these nodes, for this batch.

    `inter_node_gbytes_per_s` is what one node sends to others, shared evenly by its devices,
    decimal gigabytes a second; None where that takes no time.
    """

    transformer: Transformer
    devices: tuple[JobDevice, ...]
    gpus_per_node: int
    global_batch: int
    inter_node_gbytes_per_s: float | None = None
    fixed: FixedParallelism = FixedParallelism()
    allow_idle: bool = False
    shard_optimizer: bool = True
    gradient_bytes: int = GRADIENT_BYTES
    losses: int = 0
    as_it_runs: AsItRuns | None = None

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return sum(device.nodes for device in self.devices)

    @property
    def gpus(self) -> int:
        """Return the number of devices."""
        return self.nodes * self.gpus_per_node

"""Specification of a whole job's plan: model shape, nodes and global batch.

`app.plans.specs.job` validates specifications from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.analysis.planning.transformer import Accelerator, Transformer

# Numbers of sequences per microbatch that the search tries.
MICROBATCHES: Final = (1, 2, 4, 8, 16)
# Numbers of model chunks per stage that the search tries.
INTERLEAVES: Final = (1, 2, 3, 4, 5, 6, 8)
# Bytes per gradient: Megatron-Core accumulates gradients in fp32.
GRADIENT_BYTES: Final = 4


class Recompute(StrEnum):
    """Kinds of activations that are recomputed in the backward pass instead of stored."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Parallel sizes of a plan."""

    tp: int
    """Tensor-parallel size: devices of a stage, inside a node."""
    pp: int
    """Stages of the longest pipeline."""
    dp: int
    """Number of pipelines: the data-parallel size."""
    microbatch: int
    """Sequences of a microbatch."""
    recompute: Recompute
    """Recomputation in the backward pass: ``none``, ``selective`` (attention scores) or ``full``
    (every block)."""
    interleave: int
    """Model chunks a stage; 1 is plain 1F1B."""


@dataclass(frozen=True, slots=True)
class FixedParallelism:
    """Fixed parallel sizes; a size that is None is searched."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    microbatch: int | None = None
    recompute: Recompute | None = None
    interleave: int | None = None


@dataclass(frozen=True, slots=True)
class JobDevice:
    """Nodes of one device type; all nodes of a job have the same number of devices.

    `efficiency` is the share of the device's peak that matrix products reach. `link_gbytes_per_s`
    is the bandwidth from one device to the other devices of its node, in decimal gigabytes per
    second; None if transfers take no time.
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
    """Measured iteration and sizes of the job as it runs today; unknown values are None."""

    iteration_ms: float
    sizes: FixedParallelism
    session: str | None = None  # the measured session


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Planning problem of a whole job: model, nodes, batch and fixed sizes.

    `inter_node_gbytes_per_s` is the bandwidth from a node to other nodes, shared evenly by the
    node's devices, in decimal gigabytes per second; None if transfers take no time.
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

"""Specification of a plan: layers, devices and network, given or measured in a session.

Times are ms of one microbatch, sizes bytes, speeds relative. `app.plans.specs.spec` validates
outside input. Measured workers within `EVEN` of the others count as healthy; each slow one is a
device type of its own; the slowest DP rank counts at each pipeline position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

# ---- What is to be planned: a model's layers, a cluster's devices, their network ---------------
# Times are milliseconds of one microbatch, sizes bytes, speeds relative. These types are trusted:
# `app.plans.specs.spec` checks what comes from outside.


# Weights, gradients and the optimizer's state, as a multiple of the parameters' bytes (Oobleck).
WEIGHT_STATES: Final = 6
# Where only the forward pass was profiled (Oobleck's profiler).
BACKWARD_PER_FORWARD: Final = 3.0

Objective = Literal["simulated", "t_std", "t_oobleck"]
Method = Literal["optimal", "ditto", "greedy", "exhaustive"]
# The first one of each is the default.
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
METHODS: Final[tuple[Method, ...]] = get_args(Method)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the model on the device that was profiled.

    `output_bytes` is the tensor that the next layer reads; `stored_activation_bytes` is what its
    forward pass keeps of one microbatch for its backward pass.
    """

    forward_ms: float
    backward_ms: float
    parameter_bytes: float = 0.0
    output_bytes: float = 0.0
    stored_activation_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of every layer on one type, where a speed does not say it all."""

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DeviceType:
    """Nodes with equal devices in equal number.

    `memory_bytes` is what one device has, None where it does not limit; `times` overrides what
    `speed` says.
    """

    name: str
    nodes: int
    gpus_per_node: int
    speed: float = 1.0
    memory_bytes: float | None = None
    times: LayerTimes | None = None

    @property
    def gpus(self) -> int:
        """Return the number of devices of this type."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Network:
    """What moving data takes; what is absent takes no time."""

    # intra_node_gbytes_per_s, inter_node_gbytes_per_s: decimal gigabytes a second between two
    # stages inside one node, and across nodes
    intra_node_gbytes_per_s: float | None = None
    inter_node_gbytes_per_s: float | None = None
    # For each layer: number of devices → time of its all-reduce, once in each direction.
    allreduce_in_node_ms: tuple[Mapping[int, float], ...] = ()
    # For each layer: time of its all-reduce across nodes; only Ditto's folding reads it.
    allreduce_across_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """A planning problem."""

    layers: tuple[Layer, ...]
    profiled_speed: float  # a type's time is the layer's time × `profiled_speed` / the type's speed
    devices: tuple[DeviceType, ...]
    microbatches: int  # microbatches of one iteration (N_b)
    network: Network = field(default_factory=Network)
    allow_idle: bool = False  # devices may be left unused; else every one is in a stage
    # A stage may be replicated over whole nodes, which share its microbatches by their speed.
    replicate: bool = False
    fold_with_communication: bool = False  # Ditto's folding counts communication
    # ``paper``: Algorithm 1; ``code``: with the rule that the authors' program adds
    greedy_rule: str = "paper"

    def times_of(self, device: DeviceType) -> LayerTimes:
        """Return the times of every layer on one device of a type."""
        if device.times is not None:
            return device.times
        factor = self.profiled_speed / device.speed
        return LayerTimes(
            forward_ms=tuple(layer.forward_ms * factor for layer in self.layers),
            backward_ms=tuple(layer.backward_ms * factor for layer in self.layers),
        )

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return sum(device.nodes for device in self.devices)

    @property
    def gpus(self) -> int:
        """Return the number of devices."""
        return sum(device.gpus for device in self.devices)


# ---- A session's measured layers and workers as a planning problem -----------------------------
# Workers whose speed is within `EVEN` of the others count as healthy; each slow one is a device
# type of its own. One template serves all DP ranks, so at each position of the pipeline the slowest
# of them counts, unless a single DP rank is planned for.


FloatArray = NDArray[np.float64]

# Noise of a healthy worker's typical time.
EVEN: Final = 0.05
HEALTHY: Final = "healthy"


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSession:
    """What a session says of its model and its workers."""

    # An embedding and a head are layers of their own, before and after the others.
    layers: tuple[Layer, ...]
    speeds: FloatArray  # (dp, pp): of workers; 1 is that of their peers
    microbatches: int  # of a step


def spec_of_session(session: MeasuredSession, *, dp_rank: int | None = None) -> Spec:
    """Return the planning problem of a session.

    Parameters
    ----------
    dp_rank : int, optional
        Plan for this DP rank alone.
    """
    return Spec(
        layers=session.layers,
        profiled_speed=1.0,
        devices=_devices(session.speeds, dp_rank),
        microbatches=session.microbatches,
    )


def _devices(speeds: FloatArray, dp_rank: int | None) -> tuple[DeviceType, ...]:
    """Return the workers of a pipeline as device types; a tensor-parallel group is one device."""
    by_stage = speeds.min(axis=0) if dp_rank is None else speeds[dp_rank]
    slow = [int(stage) for stage in np.flatnonzero(by_stage < 1 - EVEN)]
    healthy = len(by_stage) - len(slow)
    devices = [DeviceType(HEALTHY, healthy, 1)] if healthy else []
    devices += [
        DeviceType(f"stage {stage}'s worker", 1, 1, speed=float(by_stage[stage])) for stage in slow
    ]
    return tuple(devices)

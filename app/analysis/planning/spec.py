"""Specification of a planning problem: layers, devices, network; written or from a session.

Times are ms for one microbatch, sizes are bytes, speeds are relative. `app.plans.specs.spec`
validates specifications from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import numpy as np

from app.analysis.quantities import FloatArray

# Bytes of weights, gradients and optimizer state ÷ bytes of parameters (Oobleck).
WEIGHT_STATES: Final = 6
# Assumed backward ÷ forward time if only the forward pass was profiled, as by Oobleck's profiler.
BACKWARD_PER_FORWARD: Final = 3.0
# Workers are healthy if their speed is within this share of their peers' speed, which is the noise
# of a healthy worker's typical time.
EVEN: Final = 0.05
HEALTHY: Final = "healthy"

Objective = Literal["simulated", "t_std", "t_oobleck"]
Method = Literal["optimal", "ditto", "greedy", "exhaustive"]
# The first objective and the first method are the defaults.
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
METHODS: Final[tuple[Method, ...]] = get_args(Method)


@dataclass(frozen=True, slots=True)
class Layer:
    """Layer of the model, with its times on the profiled device.

    `output_bytes` is the size of the layer's output for one microbatch; `stored_activation_bytes`
    is the size of the activations kept for the backward pass.
    """

    forward_ms: float
    backward_ms: float
    parameter_bytes: float = 0.0
    output_bytes: float = 0.0
    stored_activation_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of every layer on one device type, ms."""

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DeviceType:
    """Nodes of one type, each with the same number of equal devices.

    `memory_bytes` is the memory of one device, None if memory is unlimited; `times` overrides the
    times scaled by `speed`.
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
    """Bandwidths and times of communication; communication without a value takes no time."""

    # Bandwidth between two stages inside a node and across nodes, decimal gigabytes per second.
    intra_node_gbytes_per_s: float | None = None
    inter_node_gbytes_per_s: float | None = None
    # For each layer: time of its all-reduce in each direction, ms, by number of devices.
    allreduce_in_node_ms: tuple[Mapping[int, float], ...] = ()
    # For each layer: time of its all-reduce across nodes, ms; only Ditto's folding uses it.
    allreduce_across_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """Specification of a planning problem."""

    layers: tuple[Layer, ...]
    profiled_speed: float  # time on a type = layer's time × `profiled_speed` / the type's speed
    devices: tuple[DeviceType, ...]
    microbatches: int  # microbatches of one iteration (N_b)
    network: Network = field(default_factory=Network)
    allow_idle: bool = False  # devices may be in no stage
    # Whether a stage may be replicated over whole nodes, which share its microbatches in proportion
    # to their speed.
    replicate: bool = False
    fold_with_communication: bool = False  # Ditto's folding includes communication
    # Rule of Ditto's Algorithm 1: as in the ``paper``, or with the rule that the authors' ``code``
    # adds
    greedy_rule: str = "paper"

    def times_of(self, device: DeviceType) -> LayerTimes:
        """Return the times of every layer on one device of a device type, ms."""
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


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSession:
    """Layers and workers of a session, as measured."""

    layers: tuple[Layer, ...]  # embedding and head are the first and the last layer
    speeds: FloatArray  # (dp, pp): speed of workers; 1 is the speed of their peers
    microbatches: int  # microbatches of a step


def spec_of_session(session: MeasuredSession, *, dp_rank: int | None = None) -> Spec:
    """Return the planning problem of a session; each slow worker gets its own device type.

    All DP ranks use the same template, so at each pipeline position the slowest DP rank's speed
    counts. A tensor-parallel group is one device.

    Parameters
    ----------
    dp_rank : int, optional
        Plan for this DP rank alone.
    """
    by_stage = session.speeds.min(axis=0) if dp_rank is None else session.speeds[dp_rank]
    slow = [int(stage) for stage in np.flatnonzero(by_stage < 1 - EVEN)]
    healthy = len(by_stage) - len(slow)
    devices = [DeviceType(HEALTHY, healthy, 1)] if healthy else []
    devices += [
        DeviceType(f"stage {stage}'s worker", 1, 1, speed=float(by_stage[stage])) for stage in slow
    ]
    return Spec(
        layers=session.layers,
        profiled_speed=1.0,
        devices=tuple(devices),
        microbatches=session.microbatches,
    )

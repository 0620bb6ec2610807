"""Layer costs of a transformer from its shape: a roofline for each layer, calibrated if measured.

A layer takes the longer of its arithmetic at the device's peak and its memory traffic at the
device's bandwidth, each at an efficiency; backward is twice the forward pass's arithmetic and
traffic. Blocks count 2 operations for each weight and token, and 4·s·h a token for attention.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final, Self

from app.analysis.planning.spec.catalogue import CATALOGUE, find_device
from app.analysis.planning.spec.model import Layer, LayerTimes

EFFICIENCY: Final = 0.5
TRAFFIC_EFFICIENCY: Final = 0.8
BACKWARD_WORK: Final = 2.0
# Bytes that a block's forward pass keeps of each token and hidden unit, for 2-byte numbers, with
# attention that keeps no scores (Korthikanti et al., arXiv:2205.05198).
STORED_PER_TOKEN: Final = 34.0
MS: Final = 1e3


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device to predict times for."""

    name: str
    peak_flops: float
    bytes_per_s: float
    memory_bytes: float | None
    efficiency: float = EFFICIENCY

    @classmethod
    def known(
        cls,
        name: str,
        peak_tflops: float | None = None,
        memory_gbytes_per_s: float | None = None,
        efficiency: float = EFFICIENCY,
    ) -> Self:
        """Return the device of the catalogue that `name` means, or what is said of it here.

        Raises
        ------
        LookupError
            The catalogue does not have it, and too little is said of it.
        """
        known = find_device(name)
        peak = peak_tflops or (known.peak_tflops if known else None)
        traffic = memory_gbytes_per_s or (known.memory_gbytes_per_s if known else None)
        if peak is None or traffic is None:
            names = ", ".join(device.name for device in CATALOGUE)
            raise LookupError(
                f"{name} is not in the catalogue ({names}): it needs peak_tflops and "
                "memory_gbytes_per_s"
            )
        memory = known.memory_bytes if known else None
        return cls(name, peak * 1e12, traffic * 1e9, memory, efficiency)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """What a layer's forward pass does for one microbatch, and what it holds."""

    flops: float
    traffic_bytes: float
    parameter_bytes: float
    output_bytes: float
    stored_bytes: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A layer's measured times on a device type."""

    device: str
    layer: int
    forward_ms: float
    backward_ms: float | None


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder: embedding, `layers` blocks, head.

    With `experts`, a block's feed-forward part has as many copies, of which each token uses
    `active_experts`.
    """

    layers_count: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    microbatch: int
    intermediate: int
    kv_heads: int
    gated: bool = False
    experts: int = 1
    active_experts: int = 1
    number_bytes: int = 2
    measured: tuple[Measured, ...] = ()

    def work(self) -> tuple[LayerWork, ...]:
        """Return the work of every layer."""
        tokens, h, size = self.sequence * self.microbatch, self.hidden, self.number_bytes
        activation = float(tokens * h * size)
        table = float(self.vocabulary * h * size)
        embedding = LayerWork(0.0, 3 * activation, table, activation, activation)
        attention = h * h * 2 + 2 * h * (h * self.kv_heads // self.heads)
        feed_forward = (3 if self.gated else 2) * h * self.intermediate
        used = attention + feed_forward * self.active_experts
        held = float((attention + feed_forward * self.experts) * size)
        stored = STORED_PER_TOKEN * tokens * h * size / 2
        block = LayerWork(
            flops=2.0 * tokens * used + 4.0 * tokens * self.sequence * h,
            traffic_bytes=used * size + stored,
            parameter_bytes=held,
            output_bytes=activation,
            stored_bytes=stored,
        )
        logits = float(tokens * self.vocabulary * size)
        head = LayerWork(
            flops=2.0 * tokens * h * self.vocabulary,
            traffic_bytes=table + activation + logits,
            parameter_bytes=table,
            output_bytes=logits,
            stored_bytes=activation + logits,
        )
        return (embedding, *(block for _ in range(self.layers_count)), head)

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers' sizes; their times are each device's own."""
        return tuple(
            Layer(0.0, 0.0, one.parameter_bytes, one.output_bytes, one.stored_bytes)
            for one in self.work()
        )

    def times_on(self, accelerator: Accelerator) -> LayerTimes:
        """Return what each layer takes on one device."""
        forward, backward = self._factors(accelerator)
        plain = [roofline_ms(one, accelerator) for one in self.work()]
        return LayerTimes(
            tuple(ms * forward for ms in plain),
            tuple(ms * BACKWARD_WORK * backward for ms in plain),
        )

    def _factors(self, accelerator: Accelerator) -> tuple[float, float]:
        """Return measured over predicted time, forward and backward; 1 without a measurement."""
        work = self.work()
        own = [one for one in self.measured if one.device == accelerator.name]
        if not own:
            return 1.0, 1.0
        forward = [m.forward_ms / roofline_ms(work[m.layer], accelerator) for m in own]
        backward = [
            m.backward_ms / (BACKWARD_WORK * roofline_ms(work[m.layer], accelerator))
            for m in own
            if m.backward_ms is not None
        ]
        median_ms = statistics.median(forward)
        return median_ms, statistics.median(backward) if backward else median_ms


def roofline_ms(work: LayerWork, accelerator: Accelerator) -> float:
    """Return how long a forward pass takes on a device."""
    arithmetic = work.flops / (accelerator.peak_flops * accelerator.efficiency)
    traffic = work.traffic_bytes / (accelerator.bytes_per_s * TRAFFIC_EFFICIENCY)
    return max(arithmetic, traffic) * MS

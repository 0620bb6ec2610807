"""Layer costs of a transformer from its shape: a roofline for each layer, calibrated if measured.

A layer takes the longer of its arithmetic at the device's peak and its memory traffic at the
device's bandwidth, each at an efficiency; backward is twice the forward pass's arithmetic and
traffic. Blocks count 2 operations for each weight and token, and 4·s·h a token for attention.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from app.analysis.planning.spec.catalogue import CATALOGUE, find_device
from app.analysis.planning.spec.model import Layer, LayerTimes
from app.analysis.planning.spec.reading import Reader, join

EFFICIENCY: Final = 0.5
TRAFFIC_EFFICIENCY: Final = 0.8
BACKWARD_WORK: Final = 2.0
# Bytes that a block's forward pass keeps of each token and hidden unit, for 2-byte numbers, with
# attention that keeps no scores (Korthikanti et al., arXiv:2205.05198).
STORED_PER_TOKEN: Final = 34.0
MS: Final = 1e3

_SHAPE: Final = (
    "layers", "hidden", "heads", "vocabulary", "sequence", "microbatch", "intermediate",
    "kv_heads", "gated", "experts", "active_experts", "number_bytes", "measured",
)  # fmt: skip
_REQUIRED: Final = ("layers", "hidden", "heads", "vocabulary", "sequence", "microbatch")
_MEASURED: Final = ("type", "layer", "forward_ms", "backward_ms")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device to predict times for."""

    name: str
    peak_flops: float
    bytes_per_s: float
    memory_bytes: float | None
    efficiency: float = EFFICIENCY

    @classmethod
    def read(cls, reader: Reader, path: str, name: str, row: Mapping[str, Any]) -> Self | None:
        """Return the device of the catalogue that `name` means, or the one that `row` describes."""
        known = find_device(name)
        described = {
            key: reader.number(join(path, key), row[key], above=True)
            for key in ("peak_tflops", "memory_gbytes_per_s")
            if key in row
        }
        share = reader.number(
            join(path, "efficiency"), row.get("efficiency", EFFICIENCY), above=True, high=1.0
        )
        peak = described.get("peak_tflops", known.peak_tflops if known else None)
        traffic = described.get("memory_gbytes_per_s", known.memory_gbytes_per_s if known else None)
        if peak is None or traffic is None or share is None:
            names = ", ".join(device.name for device in CATALOGUE)
            reader.fault(
                f"{path}.type",
                "unknown_type",
                f"{name} is not in the catalogue ({names}): it needs peak_tflops and "
                "memory_gbytes_per_s",
            )
            return None
        return cls(name, peak * 1e12, traffic * 1e9, known.memory_bytes if known else None, share)


@dataclass(frozen=True, slots=True)
class Work:
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

    def work(self) -> tuple[Work, ...]:
        """Return the work of every layer."""
        tokens, h, size = self.sequence * self.microbatch, self.hidden, self.number_bytes
        activation = float(tokens * h * size)
        table = float(self.vocabulary * h * size)
        embedding = Work(0.0, 3 * activation, table, activation, activation)
        attention = h * h * 2 + 2 * h * (h * self.kv_heads // self.heads)
        feed_forward = (3 if self.gated else 2) * h * self.intermediate
        used = attention + feed_forward * self.active_experts
        held = float((attention + feed_forward * self.experts) * size)
        stored = STORED_PER_TOKEN * tokens * h * size / 2
        block = Work(
            flops=2.0 * tokens * used + 4.0 * tokens * self.sequence * h,
            traffic_bytes=used * size + stored,
            parameter_bytes=held,
            output_bytes=activation,
            stored_bytes=stored,
        )
        logits = float(tokens * self.vocabulary * size)
        head = Work(
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
        middle = statistics.median(forward)
        return middle, statistics.median(backward) if backward else middle


def roofline_ms(work: Work, accelerator: Accelerator) -> float:
    """Return how long a forward pass takes on a device."""
    arithmetic = work.flops / (accelerator.peak_flops * accelerator.efficiency)
    traffic = work.traffic_bytes / (accelerator.bytes_per_s * TRAFFIC_EFFICIENCY)
    return max(arithmetic, traffic) * MS


def read_transformer(reader: Reader, path: str, value: object) -> Transformer | None:
    """Return the transformer that a mapping describes."""
    row = reader.mapping(path, value, _SHAPE, _REQUIRED)
    if row is None:
        return None
    numbers = {
        key: reader.whole(join(path, key), row[key], low=1, high=998 if key == "layers" else 10**9)
        for key in _SHAPE
        if key in row and key not in {"gated", "measured"}
    }
    gated = reader.flag(join(path, "gated"), row.get("gated", False))
    found = {key: number for key, number in numbers.items() if number is not None}
    if any(key not in found for key in _REQUIRED):
        return None
    if found.get("active_experts", 1) > found.get("experts", 1):
        reader.fault(
            join(path, "active_experts"), "conflict", "there are fewer experts than active ones"
        )
    measured = tuple(_measured(reader, join(path, "measured"), row, found["layers"] + 2))
    return Transformer(
        layers_count=found["layers"],
        hidden=found["hidden"],
        heads=found["heads"],
        vocabulary=found["vocabulary"],
        sequence=found["sequence"],
        microbatch=found["microbatch"],
        intermediate=found.get("intermediate", 4 * found["hidden"]),
        kv_heads=found.get("kv_heads", found["heads"]),
        gated=bool(gated),
        experts=found.get("experts", 1),
        active_experts=found.get("active_experts", 1),
        number_bytes=found.get("number_bytes", 2),
        measured=measured,
    )


def _measured(reader: Reader, path: str, row: Mapping[str, Any], layers: int) -> list[Measured]:
    if "measured" not in row:
        return []
    found = []
    for place, item in reader.items(path, row["measured"], 10_000):
        one = reader.mapping(place, item, _MEASURED, ("type", "layer", "forward_ms"))
        if one is None or any(key not in one for key in ("type", "layer", "forward_ms")):
            continue
        name = reader.text(f"{place}.type", one["type"])
        layer = reader.whole(f"{place}.layer", one["layer"], low=0, high=layers - 1)
        forward = reader.number(f"{place}.forward_ms", one["forward_ms"], above=True)
        backward = (
            reader.number(f"{place}.backward_ms", one["backward_ms"], above=True)
            if "backward_ms" in one
            else None
        )
        if name is not None and layer is not None and forward is not None:
            found.append(Measured(name, layer, forward, backward))
    return found

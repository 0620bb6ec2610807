"""Layer costs of a transformer from a roofline model, and the catalogue of accelerators.

Peaks are for dense 16-bit arithmetic with 32-bit accumulation. A layer takes the time of its
arithmetic or of its memory traffic, whichever is longer, each at an efficiency; the backward pass
takes twice as long. Blocks count 2 operations per weight and token, and 4·s·h operations per token
for attention. Measured times calibrate the model.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Self

from app.analysis.planning.spec import Layer, LayerTimes

# Words of a device's name that precede the name of the model and are ignored.
_MAKERS: Final = frozenset({"", "nvidia", "amd", "geforce", "instinct", "tesla", "rtx"})
GB: Final = 1e9
GIB: Final = 2.0**30


@dataclass(frozen=True, slots=True)
class Device:
    """Device of the catalogue, with its maker's figures.

    `link_gbytes_per_s` is the total bandwidth of all links to other devices in the node, in both
    directions.
    """

    name: str
    peak_tflops: float
    memory_gbytes_per_s: float
    memory_bytes: float
    link_gbytes_per_s: float
    source: str


CATALOGUE: Final[tuple[Device, ...]] = (
    # V100 SXM2 16 GB: 125 TFLOP/s tensor, 900 GB/s, NVLink 300 GB/s
    Device(
        "V100", 125.0, 900.0, 16 * GIB, 300.0,
        "https://images.nvidia.com/content/technologies/volta/pdf/"
        "volta-v100-datasheet-update-us-1165301-r5.pdf",
    ),
    # A100 SXM 80 GB: 312 TFLOP/s, 2,039 GB/s, NVLink 600 GB/s
    Device(
        "A100", 312.0, 2039.0, 80 * GIB, 600.0,
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
        "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    ),
    # H100 SXM: 1,979 TFLOP/s with sparsity, half of it without; 3.35 TB/s, NVLink 900 GB/s
    Device(
        "H100", 989.5, 3350.0, 80 * GIB, 900.0, "https://www.nvidia.com/en-us/data-center/h100/"
    ),
    # H200 SXM: 1,979 TFLOP/s with sparsity; 141 GB at 4.8 TB/s, NVLink 900 GB/s
    Device(
        "H200", 989.5, 4800.0, 141 * GB, 900.0, "https://www.nvidia.com/en-us/data-center/h200/"
    ),
    # DGX B200 with 8 devices: 72 PFLOP/s FP8 with sparsity, a quarter of which is dense and 16-bit;
    # 1,440 GB at 64 TB/s, NVLink 14.4 TB/s in total
    Device(
        "B200", 2250.0, 8000.0, 180 * GB, 1800.0,
        "https://www.nvidia.com/en-us/data-center/dgx-b200/",
    ),
    # L40S: 362.05 TFLOP/s, 48 GB at 864 GB/s, PCIe 4.0 ×16: 64 GB/s
    Device(
        "L40S", 362.05, 864.0, 48 * GIB, 64.0, "https://www.nvidia.com/en-us/data-center/l40s/"
    ),
    # RTX 3090: 71 TFLOP/s with FP32 accumulation (142 with FP16), 936 GB/s, 24 GB, PCIe 4.0 ×16
    Device(
        "RTX 3090", 71.0, 936.0, 24 * GIB, 64.0,
        "https://www.nvidia.com/content/PDF/"
        "nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    ),
    # RTX 4090: 165.2 TFLOP/s with FP32 accumulation, 1,008 GB/s, 24 GB, PCIe 4.0 ×16
    Device(
        "RTX 4090", 165.2, 1008.0, 24 * GIB, 64.0,
        "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/"
        "nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf",
    ),
    # RTX A6000: 154.8 TFLOP/s (309.7 with sparsity), 768 GB/s, 48 GB, NVLink 112.5 GB/s
    Device(
        "A6000", 154.8, 768.0, 48 * GIB, 112.5,
        "https://www.nvidia.com/en-us/products/workstations/rtx-a6000/",
    ),
    # MI300X: 1,307.4 TFLOP/s, 192 GB at 5.3 TB/s, Infinity Fabric 896 GB/s to seven other devices
    Device(
        "MI300X", 1307.4, 5300.0, 192 * GB, 896.0,
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
    ),
)  # fmt: skip


# The cache is bounded because names are untrusted input; a job has few device types.
@lru_cache(256)
def find_device(name: str) -> Device | None:
    """Return the catalogue's device by name: ``4090``, ``rtx_4090_24gb``, ``RTX 4090``."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word not in _MAKERS]
    starts = {"".join(words[:count]).removeprefix("rtx") for count in (1, 2)}
    return next(
        (device for device in CATALOGUE if device.name.lower().removeprefix("rtx ") in starts), None
    )


# Share of the device's peak and share of its memory bandwidth that layers reach.
EFFICIENCY: Final = 0.5
TRAFFIC_EFFICIENCY: Final = 0.8
# Number of operations of the backward pass ÷ number of operations of the forward pass.
BACKWARD_WORK: Final = 2.0
# Stored activations of a block in bytes per token and hidden unit, for 2-byte numbers and without
# attention scores (Korthikanti et al., arXiv:2205.05198).
STORED_PER_TOKEN: Final = 34.0
MS: Final = 1e3


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Device figures from which layer times are predicted."""

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
        """Return the catalogue's device with a name; the arguments override its figures.

        Raises
        ------
        LookupError
            The catalogue lacks the device, and its peak or bandwidth is not given.
        """
        entry = find_device(name)
        peak = peak_tflops or (entry.peak_tflops if entry else None)
        traffic = memory_gbytes_per_s or (entry.memory_gbytes_per_s if entry else None)
        if peak is None or traffic is None:
            names = ", ".join(device.name for device in CATALOGUE)
            raise LookupError(
                f"{name} is not in the catalogue ({names}): it needs peak_tflops and "
                "memory_gbytes_per_s"
            )
        memory = entry.memory_bytes if entry else None
        return cls(name, peak * 1e12, traffic * 1e9, memory, efficiency)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Work and memory of a layer's forward pass for one microbatch."""

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


class Attention(StrEnum):
    """Kernels of the attention scores, by the names of Megatron-Core's ``--attention-backend``."""

    FLASH = "flash"
    """One kernel that stores no scores, computes them again in the backward pass, and skips the
    masked half (Dao, arXiv:2307.08691).
    """
    UNFUSED = "unfused"
    """Separate kernels that compute and store the scores of all pairs of tokens."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """Decoder: embedding, `layers_count` blocks, head.

    A block's feed-forward part has `experts` copies, of which each token uses `active_experts`.
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
    attention: Attention = Attention.FLASH

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
        """Return the sizes of the layers without times, since times depend on the device."""
        return tuple(
            Layer(0.0, 0.0, work.parameter_bytes, work.output_bytes, work.stored_bytes)
            for work in self.work()
        )

    def times_on(self, accelerator: Accelerator) -> LayerTimes:
        """Return the predicted times of each layer on one device, ms, calibrated if measured."""
        forward, backward = self._factors(accelerator)
        plain = [roofline_ms(work, accelerator) for work in self.work()]
        return LayerTimes(
            tuple(ms * forward for ms in plain),
            tuple(ms * BACKWARD_WORK * backward for ms in plain),
        )

    def _factors(self, accelerator: Accelerator) -> tuple[float, float]:
        """Return measured ÷ predicted time, forward and backward; 1 without a measurement."""
        work = self.work()
        own = [item for item in self.measured if item.device == accelerator.name]
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
    """Return the predicted time of a forward pass on a device, ms (roofline model)."""
    arithmetic = work.flops / (accelerator.peak_flops * accelerator.efficiency)
    traffic = work.traffic_bytes / (accelerator.bytes_per_s * TRAFFIC_EFFICIENCY)
    return max(arithmetic, traffic) * MS

"""Accelerators and what their makers say of them.

Peak is dense (without sparsity) 16-bit matrix arithmetic with 32-bit accumulation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# words before a model's name
_MAKERS: Final = frozenset({"", "nvidia", "amd", "geforce", "instinct", "tesla", "rtx"})
GB: Final = 1e9
GIB: Final = 2.0**30


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the catalogue.

    `link_gbytes_per_s` is the maker's figure for all links to other devices in the node, both
    directions together.
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
    # DGX B200 with 8: 72 PFLOP/s FP8 with sparsity, a quarter of it dense and 16-bit; 1,440 GB at
    # 64 TB/s, NVLink 14.4 TB/s in all
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
    # MI300X: 1,307.4 TFLOP/s, 192 GB at 5.3 TB/s, Infinity Fabric 896 GB/s to seven others
    Device(
        "MI300X", 1307.4, 5300.0, 192 * GB, 896.0,
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
    ),
)  # fmt: skip


# Names are what others give: 256 of them are kept, and a job has a few.
@lru_cache(256)
def find_device(name: str) -> Device | None:
    """Return the device that a type's name means: ``4090``, ``rtx_4090_24gb``, ``RTX 4090``."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word not in _MAKERS]
    starts = {"".join(words[:count]).removeprefix("rtx") for count in (1, 2)}
    return next((device for device in CATALOGUE if _model(device) in starts), None)


def _model(device: Device) -> str:
    return device.name.lower().removeprefix("rtx ")

"""What the form of a plan explains, and its table of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.analysis.planning.spec.catalogue import CATALOGUE, GIB
from app.analysis.planning.spec.model import Method, Objective

METHOD_NOTES: Final[Mapping[Method, str]] = {
    "optimal": "searches all templates and proves how good its plan is",
    "ditto": "folds the cluster into a uniform one and plans that",
    "greedy": "as Ditto, and fills the stages with the strongest devices first",
    "exhaustive": "Oobleck’s divide and conquer, for small clusters",
}
OBJECTIVE_NAMES: Final[Mapping[Objective, str]] = {
    "simulated": "Executed time",
    "t_std": "t_std",
    "t_oobleck": "t_oobleck",
}
OBJECTIVE_NOTES: Final[Mapping[Objective, str]] = {
    "simulated": "1F1B, executed with its transfers; the choice for training",
    "t_std": "ΣL + (N − 1)·max L, the estimate of Alpa and Metis; exact",
    "t_oobleck": "Oobleck’s estimate, to compare with its plans; exact",
}
# Keys of a device, by the heading of their column.
DEVICE_COLUMNS: Final[Mapping[str, str]] = {
    "type": "Type",
    "nodes": "Nodes",
    "gpus_per_node": "GPUs a node",
    "speed": "Speed",
    "memory_bytes": "GiB a GPU",
}
PRESETS: Final[Mapping[str, Any]] = {
    "devices": [
        {
            "name": device.name,
            "memory_bytes": round(device.memory_bytes),
            "peak_tflops": device.peak_tflops,
        }
        for device in CATALOGUE
    ]
}

# What a row's cells show, by key.
DeviceRow = Mapping[str, str]


def device_rows(spec: Mapping[str, Any]) -> tuple[DeviceRow, ...]:
    """Return the devices of a specification as cells; its text says the same."""
    return tuple(
        {key: _cell(key, device.get(key)) for key in DEVICE_COLUMNS} for device in spec["devices"]
    )


def _cell(key: str, value: object) -> str:
    if value is None:
        return ""
    if key == "memory_bytes":
        return f"{float(str(value)) / GIB:.6g}"
    return str(value)

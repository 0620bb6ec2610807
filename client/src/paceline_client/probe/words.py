"""A probe as commands print it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from paceline_client.probe.machine import Measured

_UNITS: Final = {"tflops": "TFLOP/s", "gbs": "GB/s"}


def lines_of(measured: Measured) -> Iterator[str]:
    """Yield the lines of a probe: its machine, and each device with its figures."""
    guess = " (a guess: the name of a container)" if measured.guessed else ""
    yield f"{measured.host}{guess}: {len(measured.devices)} devices, PyTorch {measured.torch}"
    for device in measured.devices:
        uuid = f", {device.uuid}" if device.uuid else ""
        yield f"  {device.index}: {device.model}{uuid}"
        for name, value in device.measures.items():
            what, _, unit = name.rpartition("_")
            yield f"    {what.replace('_', ' '):16} {value:10,.4g} {_UNITS[unit]}"
        if device.fault is not None:
            yield f"    failed: {device.fault}"

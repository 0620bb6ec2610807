"""What a probe says, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.analysis.trace.ranks.machine import called
from app.analysis.wording import percent
from app.services.probes.verdict import ENOUGH, SLOW_BELOW, Measure, ProbeOutcome, badness

if TYPE_CHECKING:
    from app.services.probes.read import ProbeView
    from app.services.probes.verdict import JudgedDevice

# What a measure is called, and its unit.
WORDS: Final = {
    Measure.MATMUL: ("matrix products", "TFLOP/s"),
    Measure.MEMORY_COPY: ("memory copies", "GB/s"),
    Measure.HOST_TO_DEVICE: ("copies from the host", "GB/s"),
    Measure.DEVICE_TO_HOST: ("copies to the host", "GB/s"),
    Measure.ALL_REDUCE: ("all-reduce", "GB/s"),
}


def sentence_of(view: ProbeView) -> str:
    """Return what a probe says of its host."""
    host = called(view.host, guessed=view.guessed)
    if view.outcome is ProbeOutcome.NO_PEERS:
        return (
            f"{host}: nothing to compare with: probe {ENOUGH} or more other devices of its kind "
            f"({', '.join(sorted({one.model for one in view.devices}))})"
        )
    if view.outcome is ProbeOutcome.CLEARED:
        return f"{host}: cleared by probe: no device is under {SLOW_BELOW} of its like's median"
    said = "confirmed" if view.outcome is ProbeOutcome.CONFIRMED else "unclear"
    return f"{host}: {said} by probe: {reason_of(view)}"


def reason_of(view: ProbeView) -> str:
    """Return why a probe does not clear its host."""
    if view.misses:
        return (
            f"its latest session ran on {view.gpus_there} GPUs, and {view.gpus} of them were there"
        )
    return _device_words(min(view.devices, key=badness))


def _device_words(device: JudgedDevice) -> str:
    name = f"GPU {device.index}" if device.gpu else f"device {device.index}"
    if device.fault is not None:
        return f"{name} failed: {device.fault}"
    if device.worst is None:
        return f"{name} has nothing to be compared with"
    measure, figure = device.worst
    what, unit = WORDS[measure]
    return (
        f"{name} reaches {figure.value:,.4g} {unit} in {what}, {percent(figure.ratio or 0.0)} of "
        f"the median of {figure.peers} {device.model}"
    )

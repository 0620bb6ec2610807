"""Have every compiled loop ready, so that the first plan is as fast as the next."""

from __future__ import annotations

from app.analysis.planning.plan import plan
from app.analysis.planning.spec.model import OBJECTIVES, DeviceType, Layer, Spec


def warm_up() -> None:
    """Compile, or load from the disk's cache, what planning runs; takes seconds the first time."""
    layers = tuple(Layer(1.0, 2.0) for _ in range(4))
    devices = (DeviceType("slow", 1, 2), DeviceType("fast", 1, 2, speed=2.0))
    for objective in OBJECTIVES:
        plan(Spec(layers, 1.0, devices, microbatches=8), objective=objective)

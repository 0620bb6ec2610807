"""A session's measured layers and workers as a planning problem.

Workers whose speed is within `EVEN` of the others count as healthy; each slow one is a device type
of its own. One template serves all DP ranks, so at each position of the pipeline the slowest of
them counts, unless a single DP rank is planned for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.planning.spec.model import DeviceType, Layer, Spec

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

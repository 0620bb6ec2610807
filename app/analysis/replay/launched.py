"""Steps with other durations, on hosts that launch operations as late as they did."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.replay.engine.replay import ON_TIME, RECORDED
from app.analysis.replay.engine.variants import Replacement
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.session import ShapeGroup, kept_delays
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_SEND,
)

NS: Final = 1e-9
# What a host launches as soon as it can.
LAUNCHED: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, FORWARD_SEND, BACKWARD_SEND)


def launched_step_times(group: ShapeGroup, *replacements: Replacement) -> FloatArray:
    """Replay steps as they were and with each replacement, hosts launching as late as they did.

    A slow worker hides late launches of the others; without it they count. Those of receives and
    collectives do not: in recorded jobs they are seconds late, behind what was not recorded.

    Returns
    -------
    float64 array, shape (steps, 1 + replacements)
        Seconds.
    """
    count = len(group.layout.nodes)
    takes = np.full((1 + len(replacements), count), RECORDED, dtype=np.int32)
    first = 0
    for row, item in zip(takes[1:], replacements, strict=True):
        row[item.nodes] = np.arange(first, first + len(item.nodes))
        first += len(item.nodes)
    own = group.layout.of_types(*LAUNCHED)
    late = np.broadcast_to(np.where(own, np.arange(count), ON_TIME).astype(np.int32), takes.shape)
    times_ns = group.simulator.coded_step_times(
        takes,
        lambda steps: np.concatenate([item.times_ns(steps) for item in replacements]),
        late,
        kept_delays(group)[0],
    )
    return times_ns.T * NS

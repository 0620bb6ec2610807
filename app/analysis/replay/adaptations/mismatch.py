"""Why a replay is far from its recording, as far as the recording shows it, and what would help."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.replay.adaptations.signs.glance import Glance
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import Graph

# Clocks disagree when ends that belong together are apart by this share of a step.
_CLOCKS: Final = 0.01
# Hosts are noisy when their late launches explain this share of the mismatch.
_MOSTLY: Final = 0.5

CLOCKS_DISAGREE: Final = (
    "Likeliest: clocks disagree, ends that belong together are up to {ms:.1f} ms apart; "
    "synchronize the hosts."
)
STEPS_OVERLAP: Final = (
    "Likeliest: steps overlap, and not all of them are comparable; record consecutive steps of one "
    "shape with absolute times."
)
ENDS_AT_WAIT: Final = (
    "Likeliest: ends of transfers are taken when the job waits for them; take them when the "
    "transfer is done."
)
COLLECTIVES_INSIDE: Final = (
    "Likeliest: computations wait inside for collectives; record all of these, with their own "
    "start and end."
)
HOST_NOISE: Final = (
    "Likeliest: host noise, launches come late by chance; leave the hosts to the job, or record "
    "what runs between its operations."
)


def likeliest_mismatch(
    layout: Layout, graph: Graph, residual_ns: float, late_share: float, gap: float
) -> str | None:
    """Name the likeliest cause of a mismatch and what to change in the recording.

    Parameters
    ----------
    layout, graph : Layout, Graph
        Of the most frequent shape of steps.
    residual_ns : float
        How far ends that belong together are apart, clocks aligned.
    late_share : float
        What late launches of the costliest op type add to a step, as a share of it.
    gap : float
        Recorded over simulated step time, less 1.

    Returns
    -------
    str or None
        None where the recording shows none of these.
    """
    step_ns = float((layout.start_ns + layout.duration_ns).max(axis=(0, 2)).mean())
    glance = Glance(layout)
    if glance.may_end_late():
        return ENDS_AT_WAIT
    if residual_ns > _CLOCKS * step_ns:
        return CLOCKS_DISAGREE.format(ms=residual_ns * 1e-6)
    if not graph.chained and _overlap(layout):
        return STEPS_OVERLAP
    if glance.may_nest_collectives():
        return COLLECTIVES_INSIDE
    return HOST_NOISE if gap > 0 and late_share >= _MOSTLY * gap else None


def _overlap(layout: Layout) -> bool:
    """Return whether steps usually begin before the one before has ended."""
    ends = (layout.start_ns + layout.duration_ns).max(axis=(0, 2))
    next_to = np.diff(layout.steps) == 1
    return bool(next_to.any() and np.median((ends[:-1] - np.diff(layout.begin_ns))[next_to]) > 0)

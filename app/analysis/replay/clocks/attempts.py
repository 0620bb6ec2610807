"""Recordings of different attempts of a job, as files that are named by rank overwrite each other.

Clocks may be apart by any time, and then their ends agree once they are aligned. Two attempts are
apart by more than a session lasts, and each has steps of its own length: aligned like clocks, one
runs faster than the other than clocks do, or ends stay apart.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.replay.clocks.alignment import PPM, RankClocks
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.medians import median

# A time service slews a clock by no more than this (ntpd's limit).
FASTEST_PPM: Final = 500.0
# What clocks run apart in a session is believed where it is that many times what ends are apart by.
ABOVE_RESIDUAL: Final = 5.0
# Ends of one session are less apart than this share of a step, once clocks are aligned.
RESIDUAL_OF_STEP: Final = 0.005
NS_A_SECOND: Final = 1e9


def attempts_apart(layout: Layout, clocks: RankClocks) -> tuple[list[int], float] | None:
    """Return the ranks that were recorded after the others, and by how many seconds.

    None where the clocks can be those of one session.
    """
    if clocks.drift_ppm is None or len(layout.steps) < 2:  # noqa: PLR2004 - nothing runs apart
        return None
    offsets = clocks.offsets_ns.ravel()
    order = np.argsort(offsets)
    gaps = np.diff(offsets[order])
    span_ns = float(np.ptp(layout.begin_ns))
    if not len(gaps) or gaps.max() <= span_ns:
        return None
    step_ns = float(median((layout.start_ns + layout.duration_ns).max(axis=(0, 2))))
    span_ns += step_ns
    if gaps.max() <= span_ns:
        return None
    residual_ns = float(clocks.residual_ns.max())
    ppm = float(np.ptp(clocks.drift_ppm))
    runs_apart = ppm > FASTEST_PPM and ppm / PPM * span_ns > ABOVE_RESIDUAL * residual_ns
    if not runs_apart and residual_ns <= RESIDUAL_OF_STEP * step_ns:
        return None
    later = order[int(gaps.argmax()) + 1 :]
    ranks = sorted(int(rank) for rank in layout.ranks.ravel()[later])
    return ranks, float(gaps.max()) / NS_A_SECOND

"""Collectives inside of computations that are not recorded.

Where computations of DP peers regularly end together although they began apart, something in them
waits for the others. Then the time of a computation is not its rank's own, and no replay can say
whose it is, however near it is to the recording.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.replay.adaptations.evidence import Sign
from app.analysis.replay.adaptations.signs.inside import computes_of
from app.analysis.replay.adaptations.signs.sampling import sampled
from app.analysis.replay.layout.dense import Layout

# Computations begin apart from this share of their time on…
_APART: Final = 0.1
# …and end together when they are by this share of that apart at their end.
_TOGETHER: Final = 0.2
# So many of those that begin apart do so, and there are so many.
_REGULARLY: Final = 0.8
_LEAST_CASES: Final = 10


def find_hidden_collectives(layout: Layout) -> Sign | None:
    """Return where computations wait inside for something that is not recorded; None elsewhere."""
    if layout.dp == 1:
        return None
    few = sampled(layout)
    if few.missing is not None:
        return None
    where: list[str] = []
    shares: list[float] = []
    for stage in range(few.pp):
        computes = computes_of(few, stage)
        start, duration = few.start_ns[computes], few.duration_ns[computes]
        began = np.ptp(start, axis=-1)
        ended = np.ptp(start + duration, axis=-1)
        apart = began > _APART * np.median(duration, axis=-1)
        for code in np.unique(few.nodes.op[computes]).tolist():
            cases = apart & (few.nodes.op[computes] == code)[:, None]
            if cases.sum() < _LEAST_CASES:
                continue
            share = float((ended[cases] <= _TOGETHER * began[cases]).mean())
            if share >= _REGULARLY:
                where.append(f"{few.op_names[code]} on stage {stage}")
                shares.append(share)
    return Sign(tuple(where), float(np.mean(shares))) if where else None

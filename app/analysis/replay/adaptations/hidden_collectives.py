"""Collectives inside of computations that are not recorded.

Where computations of DP peers regularly end together although they began apart, something in them
waits for the others. Then the time of a computation is not its rank's own, and no replay can say
whose it is, however near it is to the recording.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.replay.adaptations.evidence import Sign
from app.analysis.replay.adaptations.signs.sampling import sampled_times
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import COMPUTE

# Computations begin apart from this share of their time on…
_APART: Final = 0.1
# …and end together when they are by this share of that apart at their end.
_TOGETHER: Final = 0.2
# This share of those that begin apart does so, and there are at least that many.
_REGULARLY: Final = 0.8
_LEAST_CASES: Final = 10


def find_hidden_collectives(layout: Layout) -> Sign | None:
    """Return where computations wait inside for something that is not recorded; None elsewhere."""
    if layout.dp == 1:
        return None
    if layout.missing is not None:
        return None
    nodes = layout.nodes
    computes = np.flatnonzero(layout.of_types(*COMPUTE))
    start, duration = sampled_times(layout, computes)
    end = start + duration
    began = start.max(axis=0) - start.min(axis=0)
    ended = end.max(axis=0) - end.min(axis=0)
    apart = began > _APART * np.mean(duration, axis=0)
    together = apart & (ended <= _TOGETHER * began)
    kind = nodes.pp[computes].astype(np.int64) * len(layout.op_names) + nodes.op[computes]
    cases = np.bincount(kind, apart.sum(axis=1))
    hidden = np.bincount(kind, together.sum(axis=1))
    found = (cases >= _LEAST_CASES) & (hidden >= _REGULARLY * cases)
    if not found.any():
        return None
    where = []
    for number in np.flatnonzero(found).tolist():
        stage, code = divmod(number, len(layout.op_names))
        where.append(f"{layout.op_names[code]} on stage {stage}")
    return Sign(tuple(where), float((hidden[found] / cases[found]).mean()))

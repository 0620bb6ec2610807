"""How sure a diagnosis is that a cause holds."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.means import mean, means, share_of

_DRAWS: Final = 500
# A cause that stands out in every draw, but has next to no share, is there this surely (scored).
_ALONE: Final = 0.85
# A cause is worth naming from this share of a step on.
_WORTH: Final = 0.025


def confidence(cost_s: FloatArray, step_s: FloatArray, lost_s: float) -> float:
    """Return how surely a cause costs what makes it worth naming, 0 to 1."""
    draws = _draws(len(cost_s))
    drawn_s = means(cost_s[draws], axis=1)
    stable = share_of(drawn_s >= _WORTH * means(step_s[draws], axis=1))
    share = min(max(mean(cost_s) / lost_s, 0.0), 1.0)
    return stable * (_ALONE + (1 - _ALONE) * share)


@lru_cache(maxsize=4)
def _draws(steps: int) -> IntArray:
    """Return the steps that each draw takes, shape (draws, steps)."""
    drawn: IntArray = np.random.default_rng(0).integers(steps, size=(_DRAWS, steps))
    # shared by all causes
    drawn.flags.writeable = False
    return drawn

"""What launches are regularly late by, on every DP rank: a worker that alone is late is slow."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.medians import median

# Launches are about as late as the median when they are late by this share of it at least…
MOST_OF: Final = 0.5
# …and on every DP rank the median is this share of that of all.
_ON_EVERY_RANK: Final = 0.25
# Single stalls make nothing typical: they count as Tukey's outer fence.
_FENCE: Final = 3.0


def regular_share(late_ns: FloatArray) -> float:
    """Return the share of launches that are about as late as the median.

    0 where they are late on some DP ranks only, or not late at all.

    Parameters
    ----------
    late_ns : float64 array, shape (…, dp)
        How late each launch is; NaN where it is none of the kind.
    """
    launched = late_ns[~np.isnan(late_ns)]
    if not len(launched):
        return 0.0
    median_ns = float(median(launched))
    ranks = [own[~np.isnan(own)] for own in late_ns.reshape(-1, late_ns.shape[-1]).T]
    least = min(float(median(own)) for own in ranks if len(own))
    if median_ns <= 0 or least < _ON_EVERY_RANK * median_ns:
        return 0.0
    return float(np.mean(launched >= MOST_OF * median_ns))


def typical_ns(late_ns: FloatArray) -> float:
    """Return the mean: launching is the host's computing, whose ideal is a mean.

    Single stalls do not make it. Nothing is launched before its input is there: a few clocks that
    jump do not make it so.
    """
    launched = late_ns[~np.isnan(late_ns)]
    low, high = np.quantile(launched, (0.25, 0.75)).tolist()
    return max(0.0, float(np.mean(np.minimum(launched, high + _FENCE * (high - low)))))

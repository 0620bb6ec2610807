"""The highest value that each rank had before a row."""

from __future__ import annotations

import numpy as np

from app.analysis.pulse.columns import Int64


def highest_before(values: Int64, whose: Int64, known: Int64) -> Int64:
    """Return for each row the highest value of its rank before it.

    Parameters
    ----------
    values, whose : int64[rows]
        Sorted by rank, in order within each.
    known : int64[ranks]
        The highest before all of them.
    """
    levels, level = np.unique(np.concatenate([known, values]), return_inverse=True)
    base, own = level[: len(known)], level[len(known) :]
    # Each rank's values lie above all of those before it.
    lift = whose * len(levels)
    so_far = np.maximum.accumulate(np.maximum(own, base[whose]) + lift) - lift
    starts = np.append(True, whose[1:] != whose[:-1])
    before = np.where(starts, base[whose], np.append(0, so_far[:-1]))
    return np.asarray(levels[before])

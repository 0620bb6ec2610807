"""Heatmaps of workers: their mean over steps, and how they travel to a browser."""

from __future__ import annotations

from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

# Heatmaps travel as 16-bit integers, a tenth of their JSON: slowdown × 10,000, and one value that
# says that nothing is known.
HEATMAP_SCALE: Final = 10_000
HEATMAP_MISSING: Final = 65_535


def mean_heatmap(heatmaps: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean over the steps that know a worker.

    Parameters
    ----------
    heatmaps : float32 array, shape (steps, dp, pp)
        Slowdown of each step if only this worker kept its recorded durations.

    Returns
    -------
    float32 array, shape (dp, pp)
        NaN where no step knows anything.

    Examples
    --------
    >>> mean_heatmap(np.array([[[1.0, np.nan]], [[2.0, np.nan]]], dtype=np.float32))
    array([[1.5, nan]], dtype=float32)
    """
    # By hand: nanmean warns of workers that no step knows.
    known = ~np.isnan(heatmaps)
    total = np.where(known, heatmaps, 0).sum(axis=0, dtype=np.float64)
    count = known.sum(axis=0)
    mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return cast("NDArray[np.float32]", mean.astype(np.float32))


def encode_heatmap(values: NDArray[np.float32]) -> bytes:
    """Return slowdowns as little-endian uint16, row by row."""
    known = np.isfinite(values)
    scaled = np.rint(np.where(known, values, 0).astype(np.float64) * HEATMAP_SCALE)
    clipped = np.clip(scaled, 0, HEATMAP_MISSING - 1)
    return np.where(known, clipped, HEATMAP_MISSING).astype("<u2").tobytes()

"""Heatmaps of workers: their mean over steps, and how they travel to a browser."""

from __future__ import annotations

from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

# Heatmaps travel as 16-bit integers, a tenth of their JSON.
HEATMAP_SCALE: Final = 10_000
# 65,535 said once that nothing is known.
HEATMAP_TOP: Final = 65_534


def mean_heatmap(heatmaps: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean over the steps.

    Parameters
    ----------
    heatmaps : float32 array, shape (steps, dp, pp)
        Slowdown of each step if only this worker kept its recorded durations.

    Returns
    -------
    float32 array, shape (dp, pp)

    Examples
    --------
    >>> mean_heatmap(np.array([[[1.0, 1.5]], [[2.0, 1.5]]], dtype=np.float32))
    array([[1.5, 1.5]], dtype=float32)
    """
    # Summed in float64: there may be hundreds of steps.
    return cast("NDArray[np.float32]", heatmaps.mean(axis=0, dtype=np.float64).astype(np.float32))


def encode_heatmap(values: NDArray[np.float32]) -> bytes:
    """Return slowdowns as little-endian uint16, row by row."""
    scaled = np.rint(values.astype(np.float64) * HEATMAP_SCALE)
    return np.clip(scaled, 0, HEATMAP_TOP).astype("<u2").tobytes()

"""Which columns to leave out, Algorithm 1 of the paper: those whose weights change least.

The training job does this; here is what it is held against. Rd leaves out columns at random, Pri
those of the smallest variation, PriDiff does so with a ratio of its own for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from app.analysis.mitigation.tensor.group import FloatArray, IntArray

# A layer's ratio is at least this share of γ.
DECAY: Final = 0.8
_HALVINGS: Final = 60


def variation(
    after: FloatArray, before: FloatArray, pruned: IntArray, known: FloatArray
) -> FloatArray:
    """Return how much the weights of each column changed in an epoch.

    Columns that were pruned keep what was known of them: their gradients were imputed, and by a
    variation of nearly zero they would be pruned for good.

    Parameters
    ----------
    after, before : float64 arrays, shape (rows, columns)
        W.
    pruned : int64 array, shape (n,)
        Columns that were left out in the epoch.
    known : float64 array, shape (columns,)
        The variation so far.

    Returns
    -------
    float64 array, shape (columns,)
        Mean over rows of the absolute difference.
    """
    found: FloatArray = np.abs(after - before).mean(axis=0)
    found[pruned] = known[pruned]
    return found


def layer_ratios(
    variations: Sequence[FloatArray], ratio: float, threshold: float | None = None
) -> FloatArray:
    """Return the pruning ratio of each layer, with the wanted mean.

    Parameters
    ----------
    variations : sequence of float64 arrays, shape (columns,)
        Of each layer.
    ratio : float
        γ by Eq. 1, the mean of the result.
    threshold : float, optional
        θ_iter = N_iter · θ_micro, below which a column is a candidate. The default of θ_micro is
        lost; without it the γ-quantile of all variations is taken.

    Returns
    -------
    float64 array, shape (layers,)
        At least 0.8 γ each, at most 1: layers whose weights change little give more.
    """
    if threshold is None:
        threshold = float(np.quantile(np.concatenate(list(variations)), ratio))
    wanted = np.array([float((layer < threshold).mean()) for layer in variations])
    wanted = np.maximum(wanted, DECAY * ratio)
    # The same is added to all, within the bounds, until the mean is met.
    low, high = -1.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if np.clip(wanted + middle, DECAY * ratio, 1.0).mean() < ratio:
            low = middle
        else:
            high = middle
    ratios: FloatArray = np.clip(wanted + high, DECAY * ratio, 1.0)
    return ratios


def kept_columns(changes: FloatArray, ratio: float) -> IntArray:
    """Return the columns of a layer that are computed, ascending: those that change most.

    Parameters
    ----------
    changes : float64 array, shape (columns,)
    ratio : float
        The share of the columns to leave out; rounded to whole columns.
    """
    pruned = round(ratio * len(changes))
    return np.sort(np.argsort(changes, kind="stable")[pruned:])


def kept_at_random(columns: int, ratio: float, rng: np.random.Generator) -> IntArray:
    """Return the columns of a layer that are computed, ascending, chosen at random: Rd."""
    kept = columns - round(ratio * columns)
    return np.sort(rng.choice(columns, kept, replace=False)).astype(np.int64)

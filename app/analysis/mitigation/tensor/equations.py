"""Equations 1, 2 and 3 of the paper on ZERO-resizing and SEMI-migration.

The published text lost them; they are restored from its prose, and tests hold them against its
examples and against brute force.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.mitigation.tensor.costs import Affine, Costs
from app.analysis.mitigation.tensor.group import FloatArray

# Halvings of [0, 1]: below what a double tells apart.
_HALVINGS: Final = 60


def pruning_ratios(time_s: FloatArray, matmul_s: FloatArray, criterion_s: float) -> FloatArray:
    """Return γ of each rank, Eq. 1: γ = (T − T_criterion) / M, where T is over the criterion.

    Parameters
    ----------
    time_s, matmul_s : float64 arrays, shape (ranks,)
        T and M, seconds; T without waiting.
    criterion_s : float
        The mean of T (ZERO-resizing), or its minimum (SEMI-migration), seconds.

    Returns
    -------
    float64 array, shape (ranks,)
        Within [0, 1]: of a rank that cannot catch up by its multiplications, all of them.

    Examples
    --------
    >>> import numpy as np
    >>> time_s = np.array([8.0, *[1.0] * 7])
    >>> round(float(pruning_ratios(time_s, time_s, float(time_s.mean()))[0]), 3)
    0.766
    """
    return np.clip((time_s - criterion_s) / matmul_s, 0.0, 1.0)


def resized_share(shed_columns: float, receivers: int, costs: Costs, column_s: float) -> float:
    """Return β, the share of one straggler's columns to resize, Eq. 2; the others migrate.

    Ω1 + Ω2(βL) = Φ1((1 − β)L) + Φ2((1 − β)L / (e − 1)): what resizing adds to the straggler is what
    migration adds to each receiver. The left side grows with β, the right one falls.

    Parameters
    ----------
    shed_columns : float
        L, the columns that the straggler has too many.
    receivers : int
        e − 1.
    column_s : float
        What a column takes on a receiver where `costs` has no samples of Φ2, seconds.

    Returns
    -------
    float
        Within [0, 1]; 1 where resizing all of them costs less than migrating any.
    """
    compute = costs.compute or Affine(0.0, column_s)

    def resizing_costs_more(beta: float) -> bool:
        migrated = (1 - beta) * shed_columns
        resizing = costs.allocate_s + costs.extract(beta * shed_columns)
        return resizing > costs.communicate(migrated) + compute(migrated / receivers)

    low, high = 0.0, 1.0
    if resizing_costs_more(low):
        return low
    for _ in range(_HALVINGS):
        beta = (low + high) / 2
        if resizing_costs_more(beta):
            high = beta
        else:
            low = beta
    return high


def migrating_ranks(time_s: FloatArray, workload: FloatArray, communicate: Affine) -> int:
    """Return x, how many of several stragglers migrate, Eq. 3; the others resize.

    With V_x = Σ_{i ≤ x} W_i (T_i − T_min) / T_i it is the largest x for which f(x) =
    (T_x − T_min) − max_{j > x} [Φ1(V_x) + (T_j / W_j) · V_x / (e − x)] is positive. f does not fall
    steadily, so that every x is tried.

    Parameters
    ----------
    time_s : float64 array, shape (ranks,)
        T, seconds, descending.
    workload : float64 array, shape (ranks,)
        W, columns that each rank computes now.
    communicate : Affine
        Φ1.

    Returns
    -------
    int
        0 … ranks − 1; 0 where migration pays for none.
    """
    ranks = len(time_s)
    over_s = time_s - time_s[-1]
    volume = np.cumsum(workload * over_s / time_s)
    found = 0
    for x in range(1, ranks):
        columns = float(volume[x - 1])
        added_s = communicate(columns) + (time_s[x:] / workload[x:]).max() * columns / (ranks - x)
        if over_s[x - 1] > added_s:
            found = x
    return found

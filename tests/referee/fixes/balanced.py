"""True times of microbatches after a data loader has divided their sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.mitigation.fixes import Balancing
from paceline_client.balance import Cost, balance

Floats = NDArray[np.float64]
# Sequence lengths of a step: [dp][microbatch][sequence].
Batch = Sequence[Sequence[Sequence[int]]]


def length_factors(
    lengths: Sequence[Batch], takes: NDArray[np.floating[Any]], plan: Balancing
) -> Floats:
    """Return the times of microbatches after the division, relative to now, shape (mb, steps, dp).

    Parameters
    ----------
    lengths : sequence of batches
        One for each step.
    takes : array, shape (mb, steps, dp)
        True times of microbatches: linear in 1, Σs and Σs².
    plan : Balancing
        The plan that a report gives to the loader.
    """
    cost = Cost(plan.fixed_ms, plan.linear_ms, plan.quadratic_ms)
    after = []
    for batch in lengths:
        even = balance(batch, cost=cost, max_tokens=plan.max_tokens, stages=plan.stages)
        after.append([[[batch[r][m][i] for r, m, i in mb] for mb in rank] for rank in even])
    now, then = _sums(lengths), _sums(after)
    scale = now.reshape(3, -1).max(axis=1)
    known = (now.reshape(3, -1) / scale[:, None]).T
    prices = np.linalg.lstsq(known, takes.ravel(), rcond=None)[0] / scale
    return np.asarray(np.tensordot(prices, then, 1) / np.tensordot(prices, now, 1))


def _sums(lengths: Sequence[Batch]) -> Floats:
    """Return 1, Σs and Σs² of each microbatch, shape (3, mb, steps, dp)."""
    table = [
        [[(1, sum(mb), sum(s * s for s in mb)) for mb in rank] for rank in batch]
        for batch in lengths
    ]
    return np.moveaxis(np.array(table, dtype=np.float64), (3, 2), (0, 1))

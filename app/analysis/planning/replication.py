"""Stages replicated over whole nodes, whose microbatches are split by speed.

Of the batch each replica takes the share that ends with the others, so a stage on replicas with
times L_i takes 1 / Σ 1/L_i a microbatch. The gradients' all-reduce across nodes happens once an
iteration; it is spread over the microbatches, which counts it in full.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]

# More replicas of one stage than this are not searched: their number grows with the cluster's.
MOST_REPLICAS: Final = 4


def node_sets(nodes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield how many whole nodes of each type one replicated stage may take."""
    for chosen in itertools.product(*(range(min(n, MOST_REPLICAS) + 1) for n in nodes)):
        if 1 < sum(chosen) <= MOST_REPLICAS:
            yield chosen


def combined_cost(
    members: tuple[IntArray, IntArray], numbers: Sequence[int], *, sync_ps: IntArray
) -> tuple[IntArray, IntArray]:
    """Return forward and whole cost of a stage on `numbers[i]` replicas of each member's option.

    Parameters
    ----------
    members : pair of int64 arrays, shape (types, layers + 1, layers + 1)
        Forward, and forward with backward, of one replica.
    sync_ps : int64 array, shape (layers + 1, layers + 1)
        Gradient synchronization of each stage for one microbatch.
    """
    forward, cost = (np.maximum(array, 1).astype(np.float64) for array in members)
    weights = np.array(numbers, dtype=np.float64)[:, None, None] / cost
    rate = weights.sum(axis=0)
    share_forward = (weights / rate * forward).sum(axis=0) / np.sum(numbers)
    total = np.rint(1 / rate).astype(np.int64)
    ahead = np.minimum(np.rint(share_forward).astype(np.int64), total)
    return ahead, total + sync_ps

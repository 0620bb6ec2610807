"""True times of chunks after a new division of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def in_order(by_stage: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return values of chunks, given by stage and chunk, in the order of the model."""
    return np.array(by_stage, dtype=np.int64).T.ravel()


def by_stage(in_turn: NDArray[np.number[Any]], stages: int) -> Floats:
    """Return values of chunks, shape (stages, chunks), given in the order of the model."""
    return np.asarray(in_turn.reshape(-1, stages).T, dtype=np.float64)


def chunk_factors(today: NDArray[np.int64], after: NDArray[np.int64], surplus: Floats) -> Floats:
    """Return the times of chunks with other layers, relative to now, in the model's order.

    Parameters
    ----------
    today, after : int arrays, shape (chunks,)
        Layers of each chunk.
    surplus : array, shape (chunks,)
        Time of a chunk relative to that of its number of layers. On the first and the last chunk
        the surplus is the embedding and the head, which stay; elsewhere the chunk's layers are
        heavy, and remain so on another chunk.
    """
    heavy = surplus.copy()
    heavy[[0, -1]] = 1.0
    fixed = np.zeros_like(surplus)
    fixed[[0, -1]] = (surplus[[0, -1]] - 1) * today[[0, -1]]
    layers = np.concatenate([[0.0], np.cumsum(np.repeat(heavy, today))])
    ends = np.cumsum(after)
    return np.asarray((layers[ends] - layers[ends - after] + fixed) / (surplus * today))

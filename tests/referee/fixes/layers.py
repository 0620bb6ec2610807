"""What chunks take when the layers of a model are divided anew, by what they truly take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def in_order(by_stage: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return numbers of chunks in the order of the model, given by stage and chunk."""
    return np.array(by_stage, dtype=np.int64).T.ravel()


def by_stage(in_turn: NDArray[np.number[Any]], stages: int) -> Floats:
    """Return values of chunks, shape (stages, chunks), given in the order of the model."""
    return np.asarray(in_turn.reshape(-1, stages).T, dtype=np.float64)


def chunk_factors(today: NDArray[np.int64], after: NDArray[np.int64], surplus: Floats) -> Floats:
    """Return how many times as long each chunk takes with other layers; all in the model's order.

    Parameters
    ----------
    today, after : int arrays, shape (chunks,)
        Layers of each chunk.
    surplus : array, shape (chunks,)
        How many times as long a chunk takes now as its number of layers says. On the first and the
        last that is the embedding and the head, which stay; else its layers are heavy, and are
        wherever they go.
    """
    heavy = surplus.copy()
    heavy[[0, -1]] = 1.0
    fixed = np.zeros_like(surplus)
    fixed[[0, -1]] = (surplus[[0, -1]] - 1) * today[[0, -1]]
    layers = np.concatenate([[0.0], np.cumsum(np.repeat(heavy, today))])
    ends = np.cumsum(after)
    return np.asarray((layers[ends] - layers[ends - after] + fixed) / (surplus * today))

"""Which ranks of a worker meet in which collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.model import CONTEXT_TYPES, Sizes


def groups_of(ranks: NDArray[np.int32], sizes: Sizes, types: Sequence[str]) -> NDArray[np.int32]:
    """Return which ranks of a cell share their collectives, shape (groups, ranks).

    Where a cell has tensor- and context-parallel ranks, and all of them recorded, those next to one
    another are tensor-parallel, as launchers number them; else they are a single group.
    """
    if len(ranks) != sizes.tp * sizes.cp:
        return ranks[None]
    table = ranks.reshape(sizes.cp, sizes.tp)
    return table.T if types == CONTEXT_TYPES else table

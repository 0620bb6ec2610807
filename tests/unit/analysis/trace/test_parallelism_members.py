"""The ranks of a worker that take part in each kind of collective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.analysis.trace.model import CONTEXT_TYPES, TENSOR_TYPES, Sizes
from app.analysis.trace.parallelism import groups_of


def test_tensor_and_context_parallel_ranks_of_a_cell_are_groups_of_their_own() -> None:
    both = Sizes(dp=1, pp=1, tp=2, cp=3)
    ranks = np.arange(6, 12, dtype=np.int32)

    assert groups_of(ranks, both, TENSOR_TYPES).tolist() == [[6, 7], [8, 9], [10, 11]]
    assert groups_of(ranks, both, CONTEXT_TYPES).tolist() == [[6, 8, 10], [7, 9, 11]]
    # Some ranks were not recorded.
    assert groups_of(ranks[:4], both, TENSOR_TYPES).tolist() == [[6, 7, 8, 9]]
    assert groups_of(ranks[:2], replace(both, cp=1), TENSOR_TYPES).tolist() == [[6, 7]]

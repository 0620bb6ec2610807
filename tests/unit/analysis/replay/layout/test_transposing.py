"""The compiled transposition against its twin of arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.replay.layout import blocks, transposing
from tests.support.nightly import drawn

seeds = st.integers(min_value=0, max_value=2**32 - 1)


@pytest.mark.slow
@drawn(60)
@given(seeds)
def test_rows_come_to_their_places(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # more DP ranks than are written at a time, and as many as fill no line
    ranks, steps, size = (int(rng.integers(1, high)) for high in (70, 4, 150))
    stride = size + int(rng.integers(0, 3))
    values = rng.integers(-(2**62), 2**62, ranks * steps * stride)
    firsts = rng.permutation(ranks) * steps * stride
    strides = np.full(ranks, stride)
    nodes = rng.permutation(size + 2)[:size]
    less = rng.integers(0, 10**18, steps)
    out = np.zeros((size + 2, steps, ranks))
    twin = out.copy()

    transposing.transpose_rows(values, less, firsts, strides, nodes, out)

    blocks.transpose_rows(values, less, firsts, strides, nodes, twin)
    assert np.array_equal(out, twin)


@pytest.mark.slow
@drawn(60)
@given(seeds, st.sampled_from(["op", "order", "nothing"]))
def test_blocks_that_differ_are_told(seed: int, what: str) -> None:
    rng = np.random.default_rng(seed)
    ranks, steps, size = (int(rng.integers(1, high)) for high in (5, 4, 9))
    op = np.tile(rng.integers(0, 15, size).astype(np.int16), ranks * steps)
    order = np.tile(rng.integers(0, 64, size).astype(np.int32), ranks * steps)
    row = int(rng.integers(0, len(op)))
    op[row] += what == "op"
    order[row] += what == "order"
    firsts, strides = np.arange(ranks) * steps * size, np.full(ranks, size)
    template = int(rng.choice(firsts))

    alike = transposing.are_alike(op, order, template, size, firsts, strides, steps)

    assert alike is blocks.are_alike(op, order, template, size, firsts, strides, steps)
    assert alike is (what == "nothing" or ranks * steps == 1)

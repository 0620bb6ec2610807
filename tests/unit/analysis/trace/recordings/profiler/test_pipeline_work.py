"""The operators of a pipeline's rank that are computations."""

from __future__ import annotations

import numpy as np

from app.analysis.trace.recordings.profiler.pipeline_work import Block, Computed, blocks_named
from app.analysis.trace.recordings.profiler.scan import Span

RECEIVED, SENT = 10, 70


def operators(*spans: tuple[int, int]) -> Computed:
    start, end = np.array(spans, np.int64).T
    return Computed(start, start, end, np.zeros(len(spans), np.bool_))


def test_of_a_named_microbatch_what_takes_longest_is_computed() -> None:
    """The host is blocked while it prepares a receive and a send, and outside of all ranges."""
    computed = operators((0, 9), (20, 40), (40, 60), (72, 95), (120, 190), (200, 201), (300, 360))
    named = [(Span(0, 100, -1), False), (Span(200, 400, -1), True)]
    assert blocks_named(computed, [RECEIVED, SENT, 250], named) == [
        Block(backward=False, host=Span(20, 40, -1), span=Span(20, 60, -1)),
        Block(backward=True, host=Span(300, 300, -1), span=Span(300, 360, -1)),
    ]


def test_a_named_microbatch_without_an_operator_computes_nothing() -> None:
    assert blocks_named(operators((0, 9)), [], [(Span(20, 30, -1), False)]) == []

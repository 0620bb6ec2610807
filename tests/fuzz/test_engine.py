"""No trace makes the engine raise anything but a domain error with a code and a position."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.trace.limits import MAX_TIME_NS
from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Sizes, Trace
from tests.fuzz.engine import DAMAGES, bases, damaged, modeled, outcome

# The nightly target runs 100,000 (python -m tests.fuzz.nightly).
CASES = 160

_instants = st.one_of(
    st.integers(0, 50), st.integers(0, 10**9), st.integers(-MAX_TIME_NS, MAX_TIME_NS)
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw random columns with valid sizes."""
    sizes = Sizes(
        dp=draw(st.integers(1, 3)), pp=draw(st.integers(1, 3)), vpp=draw(st.integers(1, 2))
    )
    names = (*KNOWN_OP_TYPES, "unknown-op")
    # Each stage has a step's operations, which all ranks and steps repeat at other times.
    op = st.one_of(st.integers(0, 6), st.integers(0, len(names) - 1))
    chunk = st.integers(0, sizes.vpp - 1)
    planned = st.lists(st.tuples(op, chunk, _instants, _instants.map(abs)), max_size=8)
    plans = [draw(planned) for _ in range(sizes.pp)]
    shifts = draw(st.lists(st.integers(0, 10**8), min_size=5, max_size=8))
    drawn = []
    for step, shift in enumerate(shifts):
        for rank in range(sizes.workers):
            plan = [(0, 0, 5, 9), (1, 0, 20, 9), *plans[rank // sizes.dp]]
            for mb, (code, mc, start, duration) in enumerate(plan):
                begin = min(start + shift * (rank + 1), MAX_TIME_NS)
                drawn.append((rank, step, code, mb, mc, begin, duration))
    lost = draw(st.sets(st.integers(0, len(drawn) - 1), max_size=4))
    drawn = [row for place, row in enumerate(drawn) if place not in lost]
    columns = np.array(drawn, dtype=np.int64).T
    rank = columns[0]
    return Trace(
        meta=SessionMeta(sizes),
        op_names=names,
        rank=rank.astype(np.int32),
        dp=(rank % sizes.dp).astype(np.int32),
        pp=(rank // sizes.dp).astype(np.int32),
        step=columns[1],
        op=columns[2].astype(np.int16),
        mb=columns[3].astype(np.int32),
        mc=columns[4].astype(np.int32),
        order=np.arange(len(rank), dtype=np.int32),
        start_ns=columns[5],
        duration_ns=columns[6],
        step_relative=False,
    )


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(traces())
def test_any_columns_are_analyzed_or_refused(trace: Trace) -> None:
    outcome(trace)


@pytest.mark.parametrize("part", range(4))
def test_damaged_traces_are_analyzed_or_refused(part: int) -> None:
    found = Counter(outcome(damaged(seed)) for seed in range(part, CASES, 4))
    # Some cases are analyzed and some are refused.
    assert found["analyzed"] > 10
    assert len(found) > 3


@pytest.mark.parametrize("seed", [501804, 502090])
def test_a_stage_that_computes_nothing_holds_no_collection_inside(seed: int) -> None:
    # Found by fuzzing: a garbage collection on a stage without computations.
    assert outcome(damaged(seed, modeled()))


@pytest.mark.parametrize("seed", [702213, 702858])
def test_steps_of_which_no_begin_is_known_wait_for_nothing(seed: int) -> None:
    # Found by fuzzing: no stage's first operations are recorded.
    assert outcome(damaged(seed))


def test_undamaged_traces_are_analyzed() -> None:
    assert {outcome(trace) for trace in bases()} == {"analyzed"}


def test_the_same_seed_damages_the_same() -> None:
    one, other = damaged(5), damaged(5)
    assert (one.start_ns == other.start_ns).all()
    assert len({damage.__name__ for damage in DAMAGES}) == 15

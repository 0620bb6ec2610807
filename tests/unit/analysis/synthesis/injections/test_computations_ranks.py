from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from app.analysis.synthesis.injections.computations import ContextParallelStraggler, UnevenExperts
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, Sizes
from tests.unit.analysis.synthesis.jobs import EXACT, rows

EXPERTS = JobModel(sizes=Sizes(dp=4, pp=2), microbatches=4, steps=6, costs=EXACT, experts_over=2)
CONTEXT = replace(
    EXPERTS,
    sizes=Sizes(dp=2, pp=2, cp=4, tp=2),
    experts_over=1,
    profiler=Profiler(context_ranks=True),
)
ALL_TO_ALL = "ep-all-to-all"


def durations(session: SyntheticSession, place: int, dp: int) -> NDArray[np.int64]:
    """Return the durations of all-to-alls before or after the experts, on a DP rank of stage 1."""
    trace = session.trace
    chosen = rows(trace, ALL_TO_ALL, dp=dp, pp=1) & (trace.order % 2 == place)
    found: NDArray[np.int64] = trace.duration_ns[chosen]
    return found


def test_every_worker_records_two_all_to_alls_of_each_computation() -> None:
    trace = synthesize(EXPERTS, seed=3).trace

    assert rows(trace, ALL_TO_ALL).sum() == 4 * rows(trace, FORWARD_COMPUTE).sum()
    assert trace.meta.extra["ep"] == 2
    assert not rows(synthesize(replace(EXPERTS, experts_over=1), seed=3).trace, ALL_TO_ALL).any()


def test_whose_experts_are_sent_least_waits_longest_and_its_group_computes_alike() -> None:
    session = synthesize(EXPERTS, [UnevenExperts(0.7, lasting=1.0)], seed=3)
    trace = session.trace

    forwards = [trace.duration_ns[rows(trace, FORWARD_COMPUTE, dp=dp, pp=1)] for dp in range(4)]
    np.testing.assert_allclose(forwards[0], forwards[1], rtol=1e-3)
    assert forwards[0].mean() > 10.5e6
    after = [durations(session, 1, dp).mean() for dp in range(4)]
    before = [durations(session, 0, dp).mean() for dp in range(4)]
    assert max(after[:2]) > 2 * min(after[:2])
    assert max(before) < 1.5 * min(before)
    assert session.truth.slowdown > 1.05


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_a_computation_ends_with_its_experts_which_are_their_share_of_it(share: float) -> None:
    trace = synthesize(EXPERTS, [UnevenExperts(0.0, share=share)], seed=3).trace
    computed = np.flatnonzero(rows(trace, FORWARD_COMPUTE, BACKWARD_COMPUTE, dp=0, pp=0))
    computed = computed[np.lexsort((trace.start_ns[computed], trace.step[computed]))]
    sent, back = (
        np.flatnonzero(rows(trace, ALL_TO_ALL, dp=0, pp=0) & (trace.order % 2 == place))
        for place in (0, 1)
    )

    def ends_ns(operations: NDArray[np.int64]) -> NDArray[np.int64]:
        ends: NDArray[np.int64] = np.sort(
            trace.start_ns[operations] + trace.duration_ns[operations]
        )
        return ends

    np.testing.assert_allclose(ends_ns(back), ends_ns(computed), atol=1.5)
    experts_ns = ends_ns(back) - ends_ns(sent)
    np.testing.assert_allclose(experts_ns / trace.duration_ns[computed], share, rtol=0.02)


def test_tokens_that_are_spread_evenly_cost_nothing() -> None:
    assert synthesize(EXPERTS, [UnevenExperts(0.0)], seed=3).truth.slowdown == pytest.approx(1)


def test_the_utmost_is_that_one_rank_is_sent_all_tokens() -> None:
    utmost = synthesize(EXPERTS, [UnevenExperts(1e9, share=0.5)], seed=3)

    # With the tokens of both ranks, its experts take twice as long.
    assert utmost.truth.slowdown == pytest.approx(1.5, rel=0.05)


def test_a_context_parallel_straggler_is_last_at_every_collective() -> None:
    session = synthesize(CONTEXT, [ContextParallelStraggler((1, 0), 2, 1.5)], seed=3)
    trace = session.trace
    chosen = rows(trace, "cp-all-gather", "cp-reduce-scatter", dp=1, pp=0)

    ranks = sorted(set(trace.rank[chosen].tolist()))
    assert ranks == [CONTEXT.traced_rank(1, 0, cp=rank) for rank in range(4)]
    mean = [trace.duration_ns[chosen & (trace.rank == rank)].mean() for rank in ranks]
    assert np.argmin(mean) == 2
    assert session.truth.workers == ((1, 0),)


def test_impossible_faults_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="outside 4"):
        synthesize(CONTEXT, [ContextParallelStraggler((1, 0), 4, 1.5)], seed=3)
    with pytest.raises(ValueError, match="share"):
        synthesize(CONTEXT, [UnevenExperts(0.5)], seed=3)
    with pytest.raises(ValueError, match="need CP > 1"):
        replace(CONTEXT, sizes=Sizes(dp=2, pp=2))
    with pytest.raises(ValueError, match="groups of DP ranks of one size"):
        replace(EXPERTS, experts_over=3)

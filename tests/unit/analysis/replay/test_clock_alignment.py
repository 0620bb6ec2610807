"""Clocks with offsets, with drift, and without any connecting communication."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.analysis.replay.clock_alignment import align
from app.analysis.replay.layout.arrange import lay_out
from app.analysis.replay.layout.dependency_graph import build_graph
from app.analysis.replay.robust_statistics import (
    SETTLED,
    connected_parts,
    median_of_known,
    robust_lines,
    robust_potentials,
)
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.model import Trace
from app.errors import UnanalyzableError
from tests.factories import joined, select, session
from tests.lossy import losing
from tests.oracles.clocks import corrected_starts, read_clocks
from tests.random_jobs import random_job
from tests.support.nightly import drawn


def skewed(
    trace: Trace, sigma_ms: float, *, drift_ppm: float = 0.0, seed: int = 0
) -> tuple[Trace, NDArray[np.int64]]:
    """Return the trace recorded by clocks with random offsets and rates, and the offsets."""
    rng = np.random.default_rng(seed)
    offsets = rng.normal(0, sigma_ms * 1e6, trace.meta.sizes.world).astype(np.int64)
    rates = rng.normal(0, drift_ppm * 1e-6, trace.meta.sizes.world)
    since = (trace.start_ns - trace.start_ns.min()).astype(np.float64)
    shown = trace.start_ns + offsets[trace.rank] + (rates[trace.rank] * since).astype(np.int64)
    return dataclasses.replace(trace, start_ns=shown), offsets


def absolute(trace: Trace, gap_s: float = 60.0) -> Trace:
    """Return the trace with times since the epoch, and pauses between its steps."""
    _, number = np.unique(trace.step, return_inverse=True)
    start = trace.start_ns + (1_780_000_000 * 10**9 + number * int(gap_s * 1e9))
    return dataclasses.replace(trace, start_ns=start, step_relative=False)


def slow_job() -> Trace:
    trace = session(SlowWorker((1, 0), 1.6), dp=4, pp=4, microbatches=6, steps=40).trace
    begin = np.full(int(trace.step.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begin, trace.step, trace.start_ns)
    relative = trace.start_ns - begin[trace.step]
    return dataclasses.replace(trace, start_ns=relative, step_relative=True)


@pytest.fixture(scope="module")
def job() -> Trace:
    return slow_job()


def test_a_clean_recording_stays_untouched(job: Trace) -> None:
    layouts = lay_out(job).groups
    aligned, clocks = align(layouts, [build_graph(layouts[0])], absolute=False)
    assert aligned[0] is layouts[0]
    assert clocks.aligned is False
    assert np.abs(clocks.offsets_ns).max() < 1e6


@pytest.mark.parametrize("sigma_ms", [5.0, 20.0, 100.0])
def test_constant_skew_is_taken_back(job: Trace, sigma_ms: float) -> None:
    clean = analyze(job).report
    trace, offsets = skewed(job, sigma_ms)
    report = analyze(trace).report
    assert report.clocks.aligned is True
    assert report.slowdown == pytest.approx(clean.slowdown, abs=1e-3)
    assert report.launch_slowdown == pytest.approx(clean.launch_slowdown, abs=1e-3)
    found = np.array(report.clocks.offsets_ns)
    truth = offsets[np.array(report.workers.rank)].astype(float)
    assert found == pytest.approx(truth - np.median(truth), abs=0.3e6)
    assert np.array(report.clocks.residual_ns).max() < 0.5e6


@pytest.mark.parametrize("steps", [3, 4])
@pytest.mark.parametrize("moving", [False, True])
def test_few_steps_correct_offsets_on_which_all_ends_agree(steps: int, *, moving: bool) -> None:
    """Offsets of some ms that differ from step to step are chance."""
    trace = session(dp=4, pp=1, microbatches=2, steps=steps).trace
    rng = np.random.default_rng(steps)
    ahead_ns = np.array([0, 3e6, -3e6, 6e6])[:, None] + np.zeros(steps)
    if moving:
        ahead_ns += rng.normal(0, 1e6, ahead_ns.shape)
    _, number = np.unique(trace.step, return_inverse=True)
    start = trace.start_ns + ahead_ns[trace.rank, number].astype(np.int64)
    layouts = lay_out(dataclasses.replace(trace, start_ns=start)).groups
    _, clocks = align(layouts, [build_graph(layouts[0])], absolute=False)
    assert clocks.aligned is not moving


def test_drifting_clocks_are_followed(job: Trace) -> None:
    clean = analyze(job).report
    trace, _ = skewed(absolute(job), 20.0, drift_ppm=50.0, seed=3)
    report = analyze(trace).report
    assert report.clocks.absolute is True
    assert report.slowdown == pytest.approx(clean.slowdown, abs=1e-3)
    assert report.fidelity.discrepancy == pytest.approx(clean.fidelity.discrepancy, abs=1e-3)
    drift = np.array(report.clocks.drift_ppm)
    assert np.abs(drift).max() > 20
    assert np.array(report.clocks.residual_ns).max() < 0.5e6


def test_absolute_times_on_good_clocks_stay_untouched(job: Trace) -> None:
    trace = absolute(job)
    layouts = lay_out(trace).groups
    aligned, clocks = align(layouts, [build_graph(layouts[0])], absolute=True)
    assert aligned[0] is layouts[0]
    assert clocks.drift_ppm is not None
    assert np.abs(clocks.drift_ppm).max() < 1


def test_one_wrong_clock_is_found_among_lost_operations(job: Trace) -> None:
    clean = analyze(job).report
    rank = int(job.rank[(job.dp == 2) & (job.pp == 1)][0])
    wrong = np.where(job.rank == rank, job.start_ns - 40_000_000, job.start_ns)
    lossy = losing(dataclasses.replace(job, start_ns=wrong), 0.02, renumbered=True)
    report = analyze(lossy).report
    offsets = np.array(report.clocks.offsets_ns)
    assert np.argwhere(np.abs(offsets) > 1e6).tolist() == [[2, 1]]
    assert offsets[2, 1] == pytest.approx(-40e6, abs=0.3e6)
    assert report.slowdown == pytest.approx(clean.slowdown, rel=0.01)


def test_raw_times_stay_as_they_are(job: Trace) -> None:
    trace, _ = skewed(job, 20.0)
    before = trace.start_ns.copy()
    prepare_replay(trace)
    assert np.array_equal(trace.start_ns, before)


def test_clocks_far_apart_are_warned_of(job: Trace) -> None:
    assert analyze(job).report.clocks.warnings == ()
    trace, _ = skewed(job, 100.0)
    (warning,) = analyze(trace).report.clocks.warnings
    assert "synchronize the hosts" in warning


def test_clocks_that_move_between_steps_are_warned_of(job: Trace) -> None:
    # Step-relative times hide the clocks between steps: each step has other offsets.
    rng = np.random.default_rng(5)
    offsets = rng.normal(0, 40e6, (int(job.step.max()) + 1, job.meta.sizes.world)).astype(np.int64)
    moving = dataclasses.replace(job, start_ns=job.start_ns + offsets[job.step, job.rank])
    *_, warning = analyze(moving).report.clocks.warnings
    assert "clocks move between steps" in warning
    assert "Absolute times" in warning


COLLECTIVES = ("params-all-gather", "grads-reduce-scatter")


def unconnected(job: Trace) -> Trace:
    codes = [job.op_names.index(name) for name in COLLECTIVES]
    return select(job, ~np.isin(job.op, codes))


@pytest.mark.parametrize("clips", [True, False])
def test_replicas_that_nothing_connects_go_by_step_boundaries(
    job: Trace,
    clips: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    bare = unconnected(job)
    if not clips:
        bare = select(bare, bare.op != bare.op_names.index("optimizer-clip-main-grad"))
    clean = analyze(bare).report
    assert clean.clocks.aligned is False
    assert clean.clocks.unconnected == ((0, 0), (1, 0), (2, 0), (3, 0))
    assert "boundaries of steps" in clean.clocks.warnings[0]
    offsets = np.array([0, 80, -60, 150])[bare.dp] * 10**6
    report = analyze(dataclasses.replace(bare, start_ns=bare.start_ns + offsets)).report
    assert report.clocks.aligned is True
    assert report.slowdown == pytest.approx(clean.slowdown, abs=5e-3)
    found = np.array(report.clocks.offsets_ns)[:, 0]
    assert found - found[0] == pytest.approx([0, 80e6, -60e6, 150e6], abs=5e6)


@pytest.mark.parametrize("clips", [True, False])
def test_stages_that_nothing_connects_go_by_the_end_of_steps(
    job: Trace,
    clips: bool,  # noqa: FBT001
) -> None:
    codes = [3, 4, 5, 6, job.op_names.index("embedding-grads-all-reduce")]
    if not clips:
        codes.append(job.op_names.index("optimizer-clip-main-grad"))
    bare = select(job, ~np.isin(job.op, codes))
    offsets = np.array([0, 300, -200, 150])[bare.pp] * 10**6
    report = analyze(dataclasses.replace(bare, start_ns=bare.start_ns + offsets)).report
    assert report.clocks.unconnected == ((0, 0), (0, 1), (0, 2), (0, 3))
    found = np.array(report.clocks.offsets_ns)[0]
    assert found - found[0] == pytest.approx([0, 300e6, -200e6, 150e6], abs=15e6)


def test_a_single_worker_has_no_other_clock() -> None:
    report = analyze(session(dp=1, pp=1).trace).report
    assert report.clocks.offsets_ns == ((0.0,),)
    assert report.clocks.aligned is False


def test_the_median_leaves_out_what_is_unknown() -> None:
    values = np.array([[1.0, np.nan], [5.0, np.nan], [np.nan, np.nan], [2.0, np.nan]])
    result = median_of_known(values)
    assert result[0] == 2.0
    assert np.isnan(result[1])


def test_a_line_survives_outliers_and_gaps() -> None:
    time = np.linspace(-5, 5, 21)
    values = (3 + 2 * time)[:, None].repeat(2, axis=1)
    values[[2, 17], 0] += 500
    values[::5, 1] = np.nan
    lines = robust_lines(time, values)
    assert lines.value == pytest.approx([3, 3], abs=1e-6)
    assert lines.slope == pytest.approx([2, 2], abs=1e-6)


@pytest.mark.parametrize("nodes", [8, 300])
def test_potentials_survive_wrong_edges(nodes: int) -> None:
    # 300 nodes are solved by iteration, 8 directly.
    rng = np.random.default_rng(nodes)
    truth = rng.normal(0, 10, nodes)
    one = np.tile(np.arange(nodes), 4)
    other = (one + np.repeat([1, 2, 3, 5], nodes)) % nodes
    difference = truth[one] - truth[other]
    difference[[0, nodes + nodes // 2]] += 1000
    found = robust_potentials(one, other, difference, np.full(len(one), 0.1), nodes)
    assert found == pytest.approx(truth - np.median(truth), abs=1)


def test_rounds_end_when_nothing_moves_by_what_matters() -> None:
    rng = np.random.default_rng(5)
    nodes = 8
    truth = rng.normal(0, 0.1, nodes)
    one = np.tile(np.arange(nodes), 4)
    other = (one + np.repeat([1, 2, 3, 5], nodes)) % nodes
    difference = truth[one] - truth[other] + rng.standard_t(1.5, len(one))
    edges = (one, other, difference, np.full(len(one), 0.1), nodes)

    exact = robust_potentials(*edges)
    near = robust_potentials(*edges, enough=0.5)

    assert not np.array_equal(near, exact)
    assert near == pytest.approx(exact, abs=1.5)
    assert np.array_equal(robust_potentials(*edges, enough=1e-9), exact)


def test_parts_are_named_by_their_lowest_node() -> None:
    parts = connected_parts(np.array([1, 4, 2]), np.array([2, 5, 6]), 7)
    assert parts.tolist() == [0, 1, 1, 3, 4, 4, 1]


def odd_session(seed: int, *, on_clocks: bool) -> Trace:
    """Return steps of one or two shapes, with wrong clocks and some lost operations."""
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(2, 20))
    if rng.random() < 0.7:
        trace = random_job(seed, steps=steps, launch_overhead=True).trace
    else:
        dp, pp = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        trace = session(dp=dp, pp=pp, steps=steps, microbatches=4, seed=seed).trace
        other = session(dp=dp, pp=pp, steps=5, microbatches=6, seed=seed).trace
        trace = joined(trace, dataclasses.replace(other, step=other.step + trace.step.max() + 1))
    if on_clocks:
        trace = absolute(trace, gap_s=float(rng.uniform(1, 60)))
    drift_ppm = float(rng.choice([0, 50])) if on_clocks else 0.0
    trace, _ = skewed(trace, float(rng.choice([0.1, 5, 100])), drift_ppm=drift_ppm, seed=seed)
    return losing(trace, 0.03, renumbered=False, seed=seed) if rng.random() < 0.5 else trace


@pytest.mark.slow
@drawn(60)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_clocks_are_read_as_the_twin_reads_them(
    seed: int,
    on_clocks: bool,  # noqa: FBT001 - drawn by hypothesis
) -> None:
    try:
        layouts = lay_out(odd_session(seed, on_clocks=on_clocks)).groups
        graphs = [build_graph(layout) for layout in layouts]
    except UnanalyzableError:
        assume(False)  # noqa: FBT003 - too much is lost to tell what depended on what
    aligned, clocks = align(layouts, graphs, absolute=on_clocks)

    twin = read_clocks(layouts, graphs, absolute=on_clocks)
    ranks = [(d, p) for d in range(layouts[0].dp) for p in range(layouts[0].pp)]
    near = partial(pytest.approx, rel=1e-6, abs=1.0)  # a nanosecond
    assert clocks.aligned is twin.aligned
    assert clocks.offsets_ns.ravel() == near([twin.offset_ns[rank] for rank in ranks])
    assert clocks.residual_ns.ravel() == near([twin.residual_ns[rank] for rank in ranks])
    if clocks.drift_ppm is not None:
        drift = [twin.drift_ppm[rank] for rank in ranks]
        assert clocks.drift_ppm.ravel() == pytest.approx(drift, rel=1e-6, abs=1e-6)
    if clocks.aligned:
        starts = corrected_starts(layouts, twin)
        assert [a.start_ns for a in aligned] == [pytest.approx(s, abs=10) for s in starts]


@example(17648, 2)  # what rounding leaves has no direction
@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
@drawn(40)
def test_iteration_finds_the_potentials_that_one_matrix_gives(seed: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.integers(0, nodes, (2, 3 * nodes))
    truth = rng.normal(0, 10, nodes)
    difference = truth[one] - truth[other] + rng.standard_t(2, 3 * nodes)
    directly = robust_potentials(one, other, difference, np.full(len(one), 0.1), nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.analysis.replay.robust_statistics.DIRECT_NODES", 0)
        by_iteration = robust_potentials(one, other, difference, np.full(len(one), 0.1), nodes)
    # The iteration ends when no offset changes by more than a twentieth of the usual difference.
    assert by_iteration == pytest.approx(directly, abs=SETTLED * np.median(np.abs(difference)))

"""Loops of data-parallel ranks, replayed in their recorded order of operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.replay.adaptations.kind import Name
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from tests.oracles.loops import (
    Compute,
    Loop,
    Meet,
    plain,
    reduced_each_time,
    sharded_layers,
    slowed,
)

# The client's metadata of a job on the processors of one host, and of a job on GPUs.
ON_PROCESSORS = {
    "hosts": {"0": "laptop", "1": "laptop"},
    "recorded_by": {"clock": "host", "inside": "waits"},
}
ON_GPUS = {"recorded_by": {"clock": "device", "inside": "waits"}}


def made(report: Report) -> set[str]:
    return {item.adaptation for item in report.fidelity.adaptations}


@pytest.mark.parametrize(
    "loop",
    [
        slowed(reduced_each_time(), 1.5, turn_ms=4, noise=0.02),
        slowed(sharded_layers(), 1.5, turn_ms=4, noise=0.02, meta=ON_GPUS),
        slowed(plain(), 1.5, steps=50, turn_ms=1, turn_noise=0.5, noise=0.05),
    ],
    ids=["reduced-each-time", "sharded", "short-steps"],
)
def test_a_slow_rank_is_named_with_the_slowdown_that_it_really_is(loop: Loop) -> None:
    slow, healthy = loop.run(), replace(loop.healthy(), seed=1).run()
    report, without = analyze(slow.trace).report, analyze(healthy.trace).report

    assert report.fidelity.verdict
    assert report.fidelity.discrepancy < 0.01
    assert [cause.cause for cause in report.causes] == ["slow_worker"]
    assert report.causes[0].where.workers == ((1, 0),)
    assert report.headline.slowdown == pytest.approx(slow.step_s / healthy.step_s, rel=0.02)
    assert without.fidelity.verdict
    assert not without.causes
    assert without.headline.slowdown < 1.05


def test_collectives_anywhere_in_a_step_are_replayed_where_they_are() -> None:
    ran = slowed(reduced_each_time(), 1.5).run()
    report = analyze(ran.trace).report
    as_the_model_has_it = analyze(ran.trace, {Name.PROGRAM_ORDER}).report

    assert Name.PROGRAM_ORDER in made(report)
    assert report.headline.slowdown > 1.4
    assert not as_the_model_has_it.causes
    assert as_the_model_has_it.headline.slowdown < 1.25


def test_a_loop_in_the_order_of_the_model_is_left_as_it_is() -> None:
    report = analyze(slowed(plain(40.0), 1.5).run().trace).report
    assert Name.PROGRAM_ORDER not in made(report)
    assert report.fidelity.discrepancy < 0.001


def test_short_steps_that_ranks_begin_apart_go_on_from_where_each_ended_the_last() -> None:
    loop = slowed(plain(), 1.5, steps=50, turn_ms=2, turn_noise=0.8)
    report = analyze(loop.run().trace).report
    together = analyze(loop.run().trace, {Name.UNEVEN_BEGINS}).report

    assert Name.UNEVEN_BEGINS in made(report)
    assert report.fidelity.discrepancy < together.fidelity.discrepancy - 0.005


def test_ranks_go_on_from_where_each_ended_in_each_of_several_windows_of_steps() -> None:
    program = (*sharded_layers()[:-1], Compute("optimizer", 30))
    trace = Loop(program, noise=0.3, steps=50, turn_ms=1, meta=ON_PROCESSORS).run().trace
    in_turns = trace.of_rows(np.flatnonzero(trace.step // 3 % 2 == 0))
    report = analyze(in_turns).report

    assert Name.UNEVEN_BEGINS in made(report)
    assert report.fidelity.discrepancy < 0.001
    assert report.headline.slowdown < 1.05
    assert analyze(in_turns, {Name.UNEVEN_BEGINS}).report.fidelity.discrepancy > 0.03


def test_layers_that_meet_one_by_one_lose_what_each_of_them_loses() -> None:
    loop = Loop(sharded_layers(12), noise=0.2, meta=ON_GPUS)
    report = analyze(loop.run().trace).report
    assert report.fidelity.discrepancy < 0.01
    assert report.slowdown > 1.05


def test_what_ranks_of_one_laptop_lose_by_chance_is_no_slowdown() -> None:
    program = sharded_layers()
    noisy = Loop(program, noise=0.4, meta=ON_PROCESSORS).run()
    on_gpus = analyze(Loop(program, noise=0.4, meta=ON_GPUS).run().trace).report
    report = analyze(noisy.trace).report

    assert report.slowdown == pytest.approx(on_gpus.slowdown)
    assert on_gpus.headline.slowdown > 1.1
    assert report.headline.slowdown < 1.05
    assert not report.causes


def test_a_slow_rank_of_a_laptop_is_no_chance() -> None:
    loop = slowed(sharded_layers(), 1.5, noise=0.3, steps=50, meta=ON_PROCESSORS)
    slow, healthy = loop.run(), loop.healthy().run()
    report = analyze(slow.trace).report

    assert report.causes[0].cause == "slow_worker"
    assert report.causes[0].where.workers == ((1, 0),)
    assert report.headline.slowdown == pytest.approx(slow.step_s / healthy.step_s, rel=0.05)


def test_ranks_of_one_host_have_one_clock_and_are_no_whole_host() -> None:
    loop = slowed(plain(), 1.5, steps=50, turn_ms=2, turn_noise=0.8, meta=ON_PROCESSORS)
    report = analyze(loop.run().trace).report

    assert not report.clocks.warnings
    assert not any(map(any, report.clocks.offsets_ns))
    assert "all of its" not in report.verdict.sentence


def half_recorded() -> tuple[Compute | Meet, ...]:
    """Return a program of which a third is not recorded."""
    forward, backward, *rest = sharded_layers()
    unseen = Compute("", 20)
    return (forward, unseen, Meet("grads-reduce-scatter", 2), unseen, backward, *rest)


@pytest.mark.parametrize("without", [set(), {Name.PROGRAM_ORDER}], ids=["near", "far"])
def test_a_worker_that_computes_slower_is_named_where_no_verdict_is(without: set[Name]) -> None:
    ran = slowed(half_recorded(), 1.4, noise=0.05, meta=ON_PROCESSORS).run()
    report = analyze(ran.trace, without).report

    assert not report.fidelity.verdict
    assert report.verdict.sentence.startswith(
        "Verdict on S withheld; worker (1, 0) on laptop computes 1.4× slower than its peers"
    )
    assert report.causes[0].where.workers == ((1, 0),)
    # The cost is given if a replay with all late launches is near the recording.
    assert (report.causes[0].cost_s is None) == bool(without)


def test_ranks_that_are_not_seen_to_meet_are_not_blamed() -> None:
    program = tuple(item for item in plain(40.0) if not isinstance(item, Meet))
    report = analyze(slowed(program, 1.5).run().trace).report

    assert not report.fidelity.verdict
    assert not report.causes
    assert report.fidelity.reason is not None
    assert "pass the wrapped model" in report.fidelity.reason
    assert report.verdict.sentence.startswith("No verdict: waiting cannot be told from computing")

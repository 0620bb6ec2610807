from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.analysis.replay.confidence import bootstrap
from app.analysis.replay.metrics import Contribution, Metrics, measure
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.injections.computations import SlowWorker
from tests.factories import session


def measured(*, factor: float = 2.0) -> Metrics:
    return measure(prepare_replay(session(SlowWorker((1, 0), factor), steps=20).trace))


def test_intervals_hold_the_values() -> None:
    metrics = measured()
    intervals = bootstrap(metrics, ((1, 0), (0, 1)))
    assert intervals.slowdown[0] <= metrics.slowdown <= intervals.slowdown[1]
    assert intervals.waste == pytest.approx([1 - 1 / s for s in intervals.slowdown])
    for value, interval in ((metrics.m_w, intervals.m_w), (metrics.m_s, intervals.m_s)):
        assert value is not None
        assert interval is not None
        assert interval[0] <= value <= interval[1]
    by_worker = metrics.relative(metrics.by_worker)
    for worker, (low, high) in zip(((1, 0), (0, 1)), intervals.workers, strict=True):
        assert low <= by_worker[worker] <= high


def test_the_interval_is_what_drawing_steps_one_by_one_gives() -> None:
    metrics = measured()
    rng = np.random.default_rng(7)
    ratios = []
    for _ in range(4000):
        steps = rng.integers(len(metrics.simulated_s), size=len(metrics.simulated_s))
        ratios.append(metrics.simulated_s[steps].sum() / metrics.ideal_s[steps].sum())
    drawn = np.quantile(ratios, (0.025, 0.975))
    width = drawn[1] - drawn[0]
    assert bootstrap(metrics, ()).slowdown == pytest.approx(drawn, abs=0.15 * width)


def test_the_same_session_has_the_same_intervals() -> None:
    metrics = measured()
    assert bootstrap(metrics, ((1, 0),)) == bootstrap(metrics, ((1, 0),))


def test_draws_of_steps_that_lose_nothing_do_not_count() -> None:
    metrics = measured()
    ideal_s = metrics.simulated_s.copy()
    ideal_s[0] /= 4
    only_one_step = dataclasses.replace(
        metrics, ideal_s=ideal_s, worst_workers=Contribution(ideal_s, metrics.simulated_s)
    )

    assert bootstrap(only_one_step, ()).m_w == pytest.approx((1.0, 1.0))

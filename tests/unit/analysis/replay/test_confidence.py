from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.analysis.replay.confidence import FEWEST_STEPS, Interval, bootstrap, spread_by_blocks
from app.analysis.replay.metrics import Contribution, Metrics, measure
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.injections.computations import SlowWorker
from tests.factories import session


def measured(*, factor: float = 2.0) -> Metrics:
    return measure(prepare_replay(session(SlowWorker((1, 0), factor), steps=20).trace))


def test_intervals_hold_the_values() -> None:
    metrics = measured()
    intervals = bootstrap(metrics, ((1, 0), (0, 1)))
    assert intervals.slowdown is not None
    assert intervals.slowdown[0] <= metrics.slowdown <= intervals.slowdown[1]
    assert intervals.waste == pytest.approx([1 - 1 / s for s in intervals.slowdown])
    for value, interval in ((metrics.m_w, intervals.m_w), (metrics.m_s, intervals.m_s)):
        assert value is not None
        assert interval is not None
        assert interval[0] <= value <= interval[1]
    by_worker = metrics.worker_slowdowns
    for worker, of_worker in zip(((1, 0), (0, 1)), intervals.workers, strict=True):
        assert of_worker is not None
        assert of_worker[0] <= by_worker[worker] <= of_worker[1]


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


def of_blocks(times: np.ndarray) -> Interval:
    found = spread_by_blocks(times, np.ones(len(times)))
    assert found is not None
    return found


def test_of_fewer_steps_there_is_no_interval() -> None:
    times = np.linspace(1, 2, FEWEST_STEPS)
    assert spread_by_blocks(times[1:], np.ones(FEWEST_STEPS - 1)) is None
    below, above = of_blocks(times)
    assert 0.05 < below < 0.3
    assert 0.05 < above < 0.3


def test_steps_that_are_alike_tell_their_job() -> None:
    assert of_blocks(np.full(24, 1.5)) == pytest.approx((0, 0), abs=1e-12)


def test_spells_make_the_interval_wider_than_the_same_steps_by_turns() -> None:
    spells = np.repeat([1.0, 2.0, 1.0, 2.0, 1.0], 6)
    turns = np.random.default_rng(1).permutation(spells)
    widths = [sum(of_blocks(steps)) for steps in (spells, turns)]
    assert widths[0] > 1.3 * widths[1]


def test_what_comes_at_a_fixed_interval_is_better_known_than_what_comes_by_chance() -> None:
    evenly = np.where(np.arange(24) % 5 == 0, 2.0, 1.0)
    by_chance = np.random.default_rng(3).permutation(evenly)
    assert sum(of_blocks(evenly)) < 0.8 * sum(of_blocks(by_chance))


def test_blocks_as_long_as_a_period_do_not_hide_what_steps_differ_by() -> None:
    # Turns of different lengths, which have no fixed interval.
    turns = np.concatenate([np.tile([1.0, 1.0, 1.0, 2.0], 5), [2.0, 1.0, 1.0, 1.0]])
    assert 1.25 * sum(of_blocks(turns)) > 0.2


def test_the_interval_holds_what_spells_come_to_in_the_long_run() -> None:
    rng = np.random.default_rng(7)

    def times() -> np.ndarray:
        """Return steps in which spells of four make half twice as long, with a random phase."""
        lengths = rng.geometric(0.25, 40)
        slow = np.repeat(np.arange(40) % 2 == rng.integers(2), lengths)[:24]
        return np.where(slow, 2.0, 1.0) * rng.normal(1, 0.01, 24)

    held = []
    for steps in (times() for _ in range(200)):
        below, above = of_blocks(steps)
        held.append(-below <= np.log(1.5 / steps.mean()) <= above)
    assert np.mean(held) >= 0.88


def test_spells_that_come_evenly_are_better_known_and_held() -> None:
    rng = np.random.default_rng(5)
    held, widths = [], []
    for _ in range(300):
        lengths = np.stack([rng.integers(3, 7, 20), rng.integers(2, 7, 20)], axis=1).ravel()
        job = np.repeat(np.arange(40) % 2 == 0, lengths)[:144]
        times = np.where(job, 2.0, 1.0) * rng.normal(1, 0.01, len(job))
        steps = times[(first := rng.integers(len(job) - 24)) : first + 24]
        below, above = of_blocks(steps)
        held.append(-below <= np.log(times.mean() / steps.mean()) <= above)
        widths.append(below + above)
    assert 0.9 <= np.mean(held) <= 0.99
    assert np.median(widths) < 0.4


@pytest.mark.parametrize("every", [3, 4, 5, 7])
def test_what_comes_at_a_fixed_interval_has_its_share_of_the_job(every: int) -> None:
    rng = np.random.default_rng(every)
    held = []
    for _ in range(200):
        slow = np.arange(24) % every == rng.integers(every)
        steps = np.where(slow, 3.0, 1.0) * rng.normal(1, 0.01, 24)
        below, above = of_blocks(steps)
        truth = np.log((1 + 2 / every) / steps.mean())
        held.append(-below <= truth <= above)
        assert below + above < abs(truth) + 0.08
    assert 0.9 <= np.mean(held) < 1


def test_cycles_are_drawn_whole() -> None:
    step = np.arange(24)
    times_s, reference_s = 2 + np.sin(2 * np.pi * step / 8), np.ones(24)

    as_spells = spread_by_blocks(times_s, reference_s)
    in_cycles = spread_by_blocks(times_s, reference_s, 8)

    assert as_spells is not None
    assert min(as_spells) > 0.1
    # Equal cycles have equal means with any first step, but later steps need not repeat them.
    assert in_cycles is not None
    assert min(in_cycles) > 0.005
    assert max(in_cycles) < 0.2 * min(as_spells)


def test_cycles_that_differ_are_drawn_as_such() -> None:
    step = np.arange(24)
    height = np.repeat([0.5, 1.5, 1.0], 8)
    times_s, reference_s = 2 + height * (1 + np.sin(2 * np.pi * step / 8)), np.ones(24)

    spread = spread_by_blocks(times_s, reference_s, 8)

    assert spread is not None
    assert min(spread) > 0.05

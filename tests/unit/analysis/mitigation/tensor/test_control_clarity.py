"""Changes that are so clear that one report suffices."""

from __future__ import annotations

import numpy as np
import pytest

from app.analysis.mitigation.tensor.control import FEWEST, clear_changes


def steady(reports: int, noise: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1 - noise, 1 + noise, (reports, 3))


def test_what_is_far_outside_of_a_rank_s_noise_is_clear() -> None:
    found = clear_changes(steady(20, 0.01), np.array([1.2, 1.0, 0.5]))
    assert found.risen.tolist() == [True, False, False]
    assert found.fallen.tolist() == [False, False, True]


def test_a_rank_is_measured_by_its_own_noise() -> None:
    earlier = steady(20, 0.005)
    earlier[:, 1] = steady(20, 0.1)[:, 1]
    assert clear_changes(earlier, np.array([1.25, 1.25, 1.0])).risen.tolist() == [
        True,
        False,
        False,
    ]


def test_less_than_what_straggles_is_never_clear() -> None:
    assert not clear_changes(np.ones((20, 3)), np.array([1.09, 1.0, 0.95])).risen.any()


def test_of_few_reports_nothing_is_clear() -> None:
    assert not clear_changes(np.ones((FEWEST - 1, 3)), np.array([8.0, 1.0, 1.0])).risen.any()
    assert clear_changes(np.ones((FEWEST, 3)), np.array([8.0, 1.0, 1.0])).risen.any()
    assert not clear_changes(np.empty((0, 3)), np.array([8.0, 1.0, 1.0])).risen.any()


@pytest.mark.slow
def test_noise_of_three_percent_is_next_to_never_clear() -> None:
    reports, clear = 0, 0
    for seed in range(20):
        times = np.random.default_rng(seed).lognormal(0.0, 0.03, (400, 3))
        for at in range(FEWEST, len(times)):
            found = clear_changes(times[:at], times[at])
            clear += bool(found.risen.any() or found.fallen.any())
            reports += 1
    assert clear < reports / 2000


def test_a_straggler_that_came_and_went_hides_no_other() -> None:
    earlier = steady(30, 0.01)
    earlier[10:20, 0] *= 4
    assert clear_changes(earlier, np.array([4.0, 1.0, 1.0])).risen.tolist() == [True, False, False]
    assert clear_changes(earlier[:18], np.array([1.0, 1.0, 1.0])).fallen.tolist() == [
        True,
        False,
        False,
    ]


def test_who_changed_for_a_single_report_is_not_believed_at_once() -> None:
    earlier = steady(30, 0.01)
    earlier[25, 0] *= 4
    earlier[10:, 1] *= 4
    earlier[20, 1] /= 4
    found = clear_changes(earlier, np.array([4.0, 1.0, 4.0]))
    assert found.risen.tolist() == [False, False, True]
    assert not found.fallen.any()

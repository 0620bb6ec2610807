"""Comparison of step times: the test by values of textbooks, the interval by known truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from app.sessions.compare_steps import difference, mann_whitney


def by_counting(a: list[float], b: list[float]) -> float:
    """Return the exact p-value by enumerating all orders."""
    values = np.array(a + b)
    m, n = len(a), len(b)

    def statistic(chosen: tuple[int, ...]) -> float:
        own = values[list(chosen)]
        other = np.delete(values, list(chosen))
        larger = float((own[:, None] > other[None, :]).sum())
        return max(larger, m * n - larger)

    found = statistic(tuple(range(m)))
    every = [statistic(chosen) for chosen in itertools.combinations(range(m + n), m)]
    return sum(one >= found for one in every) / len(every)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([19, 22, 16, 29, 24], [20, 11, 17, 12]),
        # Hollander and Wolfe, table 4.1: permeability of chorioamnion, p = 0.2544 two-sided.
        (
            [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46],
            [1.15, 0.88, 0.90, 0.74, 1.21],
        ),
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]),
    ],
)
def test_few_steps_are_counted_exactly(a: list[float], b: list[float]) -> None:
    assert mann_whitney(np.array(a, float), np.array(b, float)) == pytest.approx(by_counting(a, b))


def test_the_textbook_s_example_has_the_textbook_s_p() -> None:
    x = np.array([0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46])
    y = np.array([1.15, 0.88, 0.90, 0.74, 1.21])
    assert mann_whitney(x, y) == pytest.approx(0.2544, abs=5e-5)


def test_ties_are_corrected_for() -> None:
    a = np.array([1.0] * 6 + [2.0] * 3 + [3.0] * 3)
    b = np.array([2.0] * 3 + [3.0] * 3 + [4.0] * 6)
    # b is larger in all pairs except three times 9: both 2, both 3, and a = 3 with b = 2.
    u = 144 - (9 + 9) / 2 - 9
    # Four groups of six equal values.
    variance = 144 / 12 * (25 - 4 * (6**3 - 6) / (24 * 23))
    z = (u - 72 - 0.5) / math.sqrt(variance)
    assert mann_whitney(a, b) == pytest.approx(math.erfc(z / math.sqrt(2)))


@pytest.mark.slow
def test_under_one_distribution_five_in_a_hundred_tests_are_below_five_per_cent() -> None:
    generator = np.random.default_rng(1)
    for size in (12, 50):
        found = [
            mann_whitney(generator.normal(size=size), generator.normal(size=size))
            for _ in range(1000)
        ]
        assert np.mean(np.array(found) < 0.05) == pytest.approx(0.05, abs=0.02)


def test_the_interval_holds_the_true_difference() -> None:
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(100):
        before, after = generator.normal(17.4, 0.3, 50), generator.normal(13.5, 0.2, 50)
        found = difference(before.tolist(), after.tolist())
        assert found.ci95_s is not None
        hits += found.ci95_s[0] <= -3.9 <= found.ci95_s[1]
    assert hits >= 88


def test_steps_that_are_all_equal_do_not_differ() -> None:
    found = difference([2.0] * 10, [2.0] * 10)
    assert (found.p, found.change_s, found.real) == (1.0, 0.0, False)


def test_a_faster_session_is_faster() -> None:
    found = difference([2.0, 2.1, 2.2, 2.05], [1.0, 1.1, 1.2, 1.05])
    assert found.real
    assert found.change == pytest.approx(-0.479, abs=0.001)
    assert found.p == pytest.approx(2 / 70)


def test_too_few_steps_are_not_tested() -> None:
    found = difference([2.0, 2.1], [1.0, 1.1, 1.2])
    assert (found.p, found.ci95_s, found.real) == (None, None, False)
    assert found.change_s == pytest.approx(-0.95)

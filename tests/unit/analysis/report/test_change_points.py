"""Lasting changes: found where they exist, seldom named where there is none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from app.analysis.report.change_points import FALSE_ALARMS, lasting_changes

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

SERIES = 200


def _alike(generator: np.random.Generator, size: int) -> NDArray[np.float64]:
    noise = generator.normal(size=size)
    for index in range(1, size):
        noise[index] = 0.4 * noise[index - 1] + 0.9165 * noise[index]
    return noise


NOISE: dict[str, Draw] = {
    "normal": lambda generator, size: generator.normal(size=size),
    "heavy tails": lambda generator, size: generator.standard_t(3, size=size),
    "one-sided": lambda generator, size: generator.exponential(size=size),
    "single slow sessions": lambda generator, size: (
        generator.normal(size=size) + 15 * (generator.random(size) < 0.05)
    ),
}


@pytest.mark.parametrize("size", [6, 12, 30, 60])
@pytest.mark.parametrize("draw", NOISE.values(), ids=NOISE)
def test_where_nothing_changes_a_change_is_seldom_named(draw: Draw, size: int) -> None:
    """The spread of 3 % is large enough that the minimum change of 3 % does not suppress alarms."""
    generator = np.random.default_rng(size)
    alarms = sum(
        bool(lasting_changes(1.2 * np.exp(0.03 * draw(generator, size)))) for _ in range(SERIES)
    )
    # At most three standard deviations of the count above the rates in docs/verdict.md.
    rates = {NOISE["one-sided"]: 0.025, NOISE["single slow sessions"]: 0.04}
    expected = SERIES * rates.get(draw, FALSE_ALARMS)
    assert alarms <= expected + 3 * expected**0.5


@pytest.mark.parametrize("size", [6, 12, 30, 60])
def test_sessions_that_are_alike_are_not_taken_for_a_change(size: int) -> None:
    generator = np.random.default_rng(size)
    alarms = sum(
        bool(lasting_changes(1.2 * np.exp(0.03 * _alike(generator, size)))) for _ in range(SERIES)
    )
    # At most three standard deviations above the rate in docs/verdict.md.
    assert alarms <= 0.025 * SERIES + 3 * (0.025 * SERIES) ** 0.5


@pytest.mark.parametrize("after", [1.10, 1.38])
@pytest.mark.parametrize(("before_size", "after_size"), [(3, 3), (3, 20), (40, 3), (30, 30)])
def test_a_change_of_a_steady_job_is_found(before_size: int, after_size: int, after: float) -> None:
    generator = np.random.default_rng(7)
    found = 0
    for _ in range(50):
        level = np.concatenate((np.full(before_size, 1.01), np.full(after_size, after)))
        changes = lasting_changes(level * np.exp(0.004 * generator.normal(size=level.size)))
        found += [change.position for change in changes] == [before_size]
    assert found >= 47


def test_a_return_to_the_earlier_level_is_a_second_change() -> None:
    series = [1.01, 1.02, 1.01, 1.0, 1.3, 1.31, 1.3, 1.29, 1.01, 1.02, 1.01, 1.0]
    found = lasting_changes(series)
    assert [(change.position, round(change.after, 2)) for change in found] == [(4, 1.3), (8, 1.01)]


@pytest.mark.parametrize(
    "series",
    [
        [],
        [1.0],
        [1.0, 1.5],
        [1.0] * 200,
        [1.0, 1.0, 1.0, 1.0, 1.8, 1.0, 1.0, 1.0, 1.0],
        [1.0, 1.01, 1.0, 1.02, 1.02, 1.03],
    ],
)
def test_these_are_no_lasting_change(series: list[float]) -> None:
    assert lasting_changes(series) == ()


def test_it_does_not_matter_what_a_series_is_counted_in() -> None:
    generator = np.random.default_rng(3)
    values = np.concatenate((generator.normal(9.0, 0.05, 20), generator.normal(11.4, 0.05, 20)))
    in_seconds, in_ms = lasting_changes(values), lasting_changes(1000 * values)
    assert [change.position for change in in_seconds] == [20]
    assert [change.position for change in in_ms] == [20]

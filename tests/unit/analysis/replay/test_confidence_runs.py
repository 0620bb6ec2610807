from __future__ import annotations

import numpy as np
import pytest

from app.analysis.replay.confidence import even_runs


def steps_of(*lengths: int, slow_s: float = 2.0) -> np.ndarray:
    """Return runs of given lengths, alternately of one second and of `slow_s`."""
    return np.concatenate(
        [np.full(length, slow_s if number % 2 else 1.0) for number, length in enumerate(lengths)]
    )


def test_runs_that_are_all_alike_are_exact() -> None:
    runs = even_runs(steps_of(2, 1, 4, 1, 4, 1, 3))

    assert runs is not None
    assert runs.exact
    assert (runs.cycle, runs.share) == (5, 0.2)
    assert np.flatnonzero(runs.slow).tolist() == [2, 7, 12]


def test_runs_that_differ_a_little_are_even_and_not_exact() -> None:
    runs = even_runs(steps_of(2, 4, 5, 5, 4, 4, 3))

    assert runs is not None
    assert not runs.exact
    assert runs.cycle == pytest.approx(13 / 3 + 9 / 2)
    assert runs.share == pytest.approx(13 / 3 / (13 / 3 + 9 / 2))


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param(steps_of(3, 1, 7, 2, 1, 5, 2, 3), id="of chance"),
        pytest.param(steps_of(4, 4, 5, 4, 4), id="too few"),
        pytest.param(steps_of(9, 2, 2, 2, 2, 2, 2), id="a long one at the edge"),
        pytest.param(np.linspace(1, 2, 24), id="no two kinds"),
        pytest.param(np.ones(24), id="all alike"),
    ],
)
def test_other_steps_do_not_come_evenly(taken: np.ndarray) -> None:
    assert even_runs(taken) is None


def test_chance_rarely_looks_even() -> None:
    rng = np.random.default_rng(11)

    def by_chance() -> np.ndarray:
        lengths = rng.geometric(0.25, 30)
        return np.repeat(np.arange(30) % 2, lengths)[:24] + 1.0

    even = [even_runs(by_chance()) is not None for _ in range(400)]
    assert np.mean(even) < 0.06

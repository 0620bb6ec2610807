from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.observation import (
    Explained,
    Observation,
    lower_median,
    robust_deviation,
    sample,
    scatter_of_most,
)
from app.analysis.replay.session import prepare_replay
from tests.random_jobs import random_job


def test_the_lower_median_is_not_moved_by_one_of_two() -> None:
    assert lower_median(np.array([[1.0], [9.0]]), axis=0).tolist() == [1.0]
    assert lower_median(np.array([3.0, 1.0, 2.0]), axis=0) == 2.0


def test_scatter_is_that_of_the_typical_values_even_if_half_are_at_fault() -> None:
    typical = np.random.default_rng(1).normal(1.0, 0.01, 4000)

    assert scatter_of_most(typical) == pytest.approx(0.01, rel=0.1)
    assert scatter_of_most(np.concatenate([typical, typical[:1900] + 2])) < 0.03
    assert scatter_of_most(np.array([1.0, 3.0])) == 0.0


def test_scatter_of_a_sample_is_that_of_the_whole() -> None:
    values = np.random.default_rng(1).normal(5.0, 0.3, (400, 1000))

    assert sample(values).size < values.size / 5
    assert robust_deviation(values) == pytest.approx(0.3, rel=0.02)


def test_an_observation_is_looked_at_once_and_again_when_more_is_explained() -> None:
    trace = random_job(3, steps=5).trace
    observation = Observation(trace, prepare_replay(trace).main)
    looks: list[Observation] = []

    def look(seen: Observation) -> int:
        looks.append(seen)
        return len(looks)

    assert [observation.memoize(look), observation.memoize(look)] == [1, 1]
    assert replace(observation, explained=Explained()).memoize(look) == 2

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from app.analysis.fleet import rank_correlation
from app.analysis.synthesis.fleet import plan_fleet
from benchmarks.fleet_statistics import (
    KINDS,
    STATISTICS,
    STEPS,
    Fleet,
    Statistic,
    intervals,
    plain,
)

# Two jobs straggle: one because of a worker, the other because of the last stage.
FLEET = Fleet(
    slowdown=np.array([1.0, 1.05, 4.0, 1.25]),
    gpus=np.array([128.0, 256.0, 512.0, 5120.0]),
    stages=np.array([1.0, 4.0, 4.0, 4.0]),
    m_w=np.array([0.9, 0.0, 0.5, 0.1]),
    m_s=np.array([0.9, 0.9, 0.1, 0.5]),
    correlation=np.array([1.0, 0.0, 0.9, 0.89]),
    steps=np.tile(np.array([[9.0], [9.0], [0.9], [1.1]]), (1, STEPS)),
    waste=np.tile(np.array([0.1, 0.02, 0.03]), (4, 1)),
    context=np.array([1.0, 2.0, 0.0, 3.0]),
)


def test_the_statistics_are_those_of_the_paper() -> None:
    every = list(chain(*STATISTICS.values()))
    found: dict[str, list[float]] = {}
    for statistic in every:
        # Two rows have the same name: the mean S of the row before.
        found.setdefault(statistic.name, []).append(statistic.number(FLEET))

    assert found["jobs that straggle"] == [0.5]
    assert found["S of those, mean"] == pytest.approx([2.625, 4.0, 4.0])
    assert found["jobs that waste 21.3 % or more"] == [0.25]
    assert found["GPU-hours wasted"] == pytest.approx(
        [(256 * (1 - 1 / 1.05) + 512 * 0.75 + 5120 * 0.2) / 6016]
    )
    assert found["step over job slowdown, median"] == [1.0]
    assert found["workers: M_W of 0.5 or more"] == [0.5]
    assert found["last stage: M_S of 0.5 or more"] == [0.5]
    assert found["sequence lengths: correlation of 0.9 or more"] == [0.5]
    assert found["jobs with S over 3 whose slowest 3 % of workers are to blame"] == [1.0]
    assert found["pipeline transfers"] == pytest.approx([0.02])
    assert found["256 GPUs or more"] == [0.75]
    assert found["without a pipeline"] == [0.25]
    assert found["rank correlation of S and context length, where lengths vary"] == [1.0]


def test_nothing_very_slow_is_no_share() -> None:
    (very_slow,) = (
        s for s in chain(*STATISTICS.values()) if s.name.startswith("jobs with S over 3")
    )

    assert np.isnan(very_slow.number(replace(FLEET, slowdown=np.ones(4))))


def test_ranks_of_equal_values_are_shared() -> None:
    tied = np.array([1.0, 1.0, 2.0, 3.0])

    assert rank_correlation(tied, tied**3) == pytest.approx(1.0)
    assert rank_correlation(tied, -tied) == pytest.approx(-1.0)
    assert rank_correlation(tied, np.array([4.0, 3.0, 2.0, 1.0])) == pytest.approx(-0.9486833)
    assert np.isnan(rank_correlation(tied, np.ones(4)))


def test_a_plan_shows_the_signs_of_its_causes() -> None:
    members = plan_fleet(1000, seed=5)
    planned = Fleet.planned(members)

    assert planned.steps.shape == (1000, STEPS)
    assert planned.waste.shape == (1000, len(KINDS))
    numbers = {s.name: s.number(planned) for s in chain(*STATISTICS.values())}
    assert numbers["jobs that straggle"] == 0.425
    assert numbers["workers: M_W of 0.5 or more"] == pytest.approx(7 / 425)
    assert numbers["without a pipeline"] == 0.211


def test_the_paper_s_number_is_as_precise_as_it_is_given() -> None:
    share = Statistic("share", 0.425, lambda fleet: float(fleet.slowdown.mean()))
    number = Statistic("number", 1.0, lambda fleet: float(fleet.slowdown.mean()), plain)

    assert share.paper_within(0.4254, 0.5) is True
    assert share.paper_within(0.4256, 0.5) is False
    assert number.paper_within(0.9, 0.996) is True
    assert number.paper_within(0.9, 0.994) is False
    assert Statistic("words", None, share.number, words="most").paper_within(0, 1) is None


def test_intervals_are_as_wide_as_the_jobs_are_few() -> None:
    statistic = Statistic("mean", None, lambda fleet: float(fleet.gpus.mean()))
    ((low, high),) = intervals(FLEET.take(np.arange(400) % 4), [statistic], seed=1)
    deviation = FLEET.gpus.std() / 20

    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.1)
    assert low < FLEET.gpus.mean() < high

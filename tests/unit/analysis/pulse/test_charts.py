"""Sums of evidence, compared with a loop over steps and subjects."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from app.analysis.pulse.control_charts import NOT_RISING, Charts
from app.analysis.pulse.measurements import Subjects
from app.analysis.synthesis.job import stream

RANKS = 6
SUBJECTS = Subjects.of(np.arange(RANKS), np.zeros(RANKS, np.int64), {})


def learned(seed: int) -> Charts:
    rng = stream(seed, "charts")
    charts = Charts()
    charts.grow(np.arange(0), SUBJECTS.number)
    for _ in range(3):
        values = rng.normal(0, 0.02, (32, SUBJECTS.number))
        charts.learn(values, np.median(values, axis=0), SUBJECTS, charts.quiet)
    return charts


@pytest.mark.parametrize("seed", range(4))
def test_where_evidence_began_to_rise_is_known_after_every_step(seed: int) -> None:
    rng = stream(seed, "residuals")
    charts = learned(seed)
    charts.open(SUBJECTS.first_rank, 0.2)
    values = rng.normal(0.03, 0.05, (40, SUBJECTS.number))
    values[rng.random(values.shape) < 0.1] = np.nan
    numbers = 7 + np.cumsum(rng.integers(1, 3, len(values)))

    whole = charts.run(values, numbers)
    by_step = learned(seed)
    by_step.open(SUBJECTS.first_rank, 0.2)
    begun = np.full(SUBJECTS.number, NOT_RISING)
    for at, number in enumerate(numbers):
        by_step.take(by_step.run(values[at : at + 1], numbers[at : at + 1]), 0)
        rises = by_step.score > 0
        begun = np.where(rises, np.where(begun == NOT_RISING, number, begun), NOT_RISING)

        assert np.array_equal(whole.rise(at), begun)
        assert np.array_equal(by_step.rise, begun)
        assert np.array_equal(whole.score[at], by_step.score)
        assert np.array_equal(whole.spells[at], by_step.spells)


def test_running_changes_nothing_and_taking_sets_the_requested_step() -> None:
    charts, values = learned(9), stream(9, "more").normal(0.05, 0.05, (12, SUBJECTS.number))
    course = charts.run(values, np.arange(12))
    before = {f.name: np.copy(getattr(charts, f.name)) for f in fields(charts)}

    for name, kept in before.items():
        assert np.array_equal(kept, getattr(charts, name), equal_nan=True), name
    charts.take(course, 5)
    assert np.array_equal(charts.score, course.score[5])
    assert np.array_equal(charts.rise, course.rise(5))

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from app.analysis.budget.split import Budget, Part
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from tests.unit.analysis.budget.sessions import GAP_NS, following

JOB = JobModel(sizes=Sizes(dp=3, pp=2), microbatches=4, steps=8)


@pytest.fixture(scope="module")
def budget() -> Budget:
    trace = following(synthesize(JOB, (SlowWorker((1, 0), 1.4),), seed=2).trace)
    found = analyze(trace).report.budget
    assert found is not None
    return found


def test_the_shares_of_all_of_each_worker_and_of_each_step_add_up(budget: Budget) -> None:
    assert sum(astuple(budget.shares)) == pytest.approx(1, abs=1e-9)
    assert np.array(list(budget.by_worker.values())).sum(axis=0) == pytest.approx(1, abs=1e-9)
    assert np.array(list(budget.by_step.values())).sum(axis=0) == pytest.approx(1, abs=1e-9)


def test_workers_and_steps_are_where_they_are_in_the_report(budget: Budget) -> None:
    own = np.array(budget.by_worker[Part.OWN_SLOWNESS])
    assert own.shape == (3, 2)
    assert divmod(int(own.argmax()), 2) == (1, 0)
    between = np.array(budget.by_step[Part.BETWEEN_STEPS]) * np.array(budget.step_wall_s)
    assert between == pytest.approx([GAP_NS * 1e-9] * 7 + [0])


def test_the_wall_time_is_that_of_the_steps_and_of_what_is_between(budget: Budget) -> None:
    assert budget.wall_s == pytest.approx(sum(budget.step_wall_s))


def test_every_part_has_a_share_of_its_name(budget: Budget) -> None:
    assert [part.value for part in Part] == list(budget.shares.__dataclass_fields__)

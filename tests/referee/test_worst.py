"""The judged figure is the worst of its draws, each with as many jobs as asked for."""

from __future__ import annotations

import pytest

from tests.referee.judging import NONE
from tests.referee.worst.__main__ import lines
from tests.referee.worst.draw import PHYSICS, Draw, Judged, Physics, draw

CAUSES = ("network", "data_loading", "checkpoint")


def job(cause: str, lead: str | None = None, *, near: bool = True) -> Judged:
    named = cause if lead is None else lead
    return Judged(1, cause, named, slow=True, near=near, worker_right=named == cause)


def judge_by_seed(seed: int, cause: str) -> Judged:
    """Judge a made-up job: every third is not slow."""
    return Judged(seed, cause, cause, slow=seed % 3 != 0, near=True, worker_right=None)


MADE_UP = Physics("made-up", CAUSES, judge_by_seed)


def test_the_worst_of_each_figure_is_told() -> None:
    every = [job(cause) for cause in CAUSES]
    good = Draw(MADE_UP, 1, (*every, job(NONE)))
    missed = job("network", "data_loading", near=False)
    poor = Draw(MADE_UP, 2, (*every, missed, job(NONE, "network")))
    told = list(lines([good, poor]))

    assert told[-3].endswith(
        "macro F1 1.000, least 1.000, false alarms 0.0 %, headline within 3 % in 100.0 %, "
        "worst worker 100.0 %"
    )
    assert "least 0.500 (network), false alarms 100.0 %" in told[-1]
    assert poor.f1["data_loading"] == pytest.approx(2 / 3)
    assert poor.near == pytest.approx(3 / 4)


def test_jobs_of_a_cause_are_drawn_until_enough_are_slow() -> None:
    found = draw(MADE_UP, 100, 4, 2)

    assert len({one.seed for one in found.jobs}) == len(found.jobs)
    assert len(found.healthy) == 4
    for cause in CAUSES:
        assert sum(one.cause == cause for one in found.jobs) == 2


@pytest.mark.parametrize("physics", list(PHYSICS.values()), ids=list(PHYSICS))
def test_nothing_is_named_of_a_healthy_job_of_either_physics(physics: Physics) -> None:
    assert physics.judge(1 << 25, NONE).lead == NONE

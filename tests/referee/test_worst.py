"""The judged figure is the worst of its draws, each with the requested number of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.referee.judging import NONE
from tests.referee.worst.__main__ import Asked, judge_draws, lines
from tests.referee.worst.draw import PHYSICS, Draw, Judged, Physics, Wanted, draw
from tests.referee.worst.few_steps import physics_of
from tests.referee.worst.journal import Journal

CAUSES = ("network", "data_loading", "checkpoint")


def job(cause: str, lead: str | None = None, *, near: bool = True) -> Judged:
    named = cause if lead is None else lead
    return Judged(1, cause, named, slow=True, near=near, worker_right=named == cause)


def judge_by_seed(seed: int, cause: str) -> Judged:
    """Judge a synthetic job, of which every third is not slow."""
    return Judged(seed, cause, cause, slow=seed % 3 != 0, near=True, worker_right=None)


MADE_UP = Physics("made-up", CAUSES, judge_by_seed)


def test_the_worst_of_each_figure_is_printed() -> None:
    every = [job(cause) for cause in CAUSES]
    good = Draw(MADE_UP, 1, (*every, job(NONE)))
    missed = job("network", "data_loading", near=False)
    poor = Draw(MADE_UP, 2, (*every, missed, job(NONE, "network")))
    told = list(lines([good, poor]))

    assert told[-3].endswith(
        "macro F1 1.000, least 1.000 (checkpoint), false alarms 0.0 %, "
        "headline within 3 % in 100.0 %, worst worker 100.0 %"
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


def test_judging_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path, key = tmp_path / "judged.jsonl", (MADE_UP.name, 1)
    whole = draw(MADE_UP, 100, 4, 2)

    def stopped(judge: Callable[[Wanted], Judged], wanted: Iterable[Wanted], /) -> Iterator[Judged]:
        yield from map(judge, list(wanted)[:5])
        raise KeyboardInterrupt

    first = Journal.opened(path)
    assert first.first_seed(key, lambda: 100) == 100
    with pytest.raises(KeyboardInterrupt):
        draw(MADE_UP, 100, 4, 2, first.resumed(key, stopped))
    with path.open("a") as file:
        file.write('{"physics": "made-up", "numb')

    again = Journal.opened(path)
    asked: list[Wanted] = []

    def counted(judge: Callable[[Wanted], Judged], wanted: Iterable[Wanted], /) -> list[Judged]:
        rest = list(wanted)
        asked.extend(rest)
        return [judge(one) for one in reversed(rest)]

    assert again.jobs(key) == first.jobs(key)
    assert len(again.jobs(key)) == 5
    assert again.first_seed(key, lambda: 7) == 100
    assert draw(MADE_UP, 100, 4, 2, again.resumed(key, counted)) == whole
    assert not {(job.seed, job.cause) for job in first.jobs(key)} & set(asked)
    assert Journal.opened(path).jobs(key) == again.jobs(key)


def test_a_stopped_draw_prints_its_results_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(judge: Callable[[Wanted], Judged], wanted: Iterable[Wanted], /) -> Iterator[Judged]:
        for judged in map(judge, wanted):
            if judged.cause != NONE:
                raise KeyboardInterrupt
            yield replace(judged, lead="network" if judged.seed == 1 << 25 else NONE)

    def judge(seed: int, cause: str) -> Judged:
        return Judged(seed, cause, cause, slow=True, near=True, worker_right=None)

    asked = Asked(("own",), draws=2, healthy=2, each=1, seed=1 << 25, misses=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PHYSICS, "own", replace(PHYSICS["own"], judge=judge))
        done = judge_draws(asked, Journal(), stopped)

    assert done == {"own": []}
    assert "own, draw 1, stopped" in capsys.readouterr().out


def test_a_job_with_too_mild_a_fault_is_not_analyzed() -> None:
    judged = PHYSICS["independent"].judge(40, "network")

    assert judged == Judged(40, "network", NONE, slow=False, near=False, worker_right=None)


@pytest.mark.parametrize("physics", list(PHYSICS.values()), ids=list(PHYSICS))
def test_nothing_is_named_of_a_healthy_job_of_either_physics(physics: Physics) -> None:
    assert physics.judge(1 << 25, NONE).lead == NONE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own", "independent"])
def test_a_single_step_is_judged_by_what_is_true_of_it(name: str) -> None:
    physics = physics_of(1)[name]
    assert "slow_worker" in physics.causes
    assert not {"checkpoint", "slow_together", "thermal_throttling"} & set(physics.causes)
    found = draw(physics, 777_000_100, 2, 0)
    assert [(one.lead, one.near) for one in found.jobs] == [(NONE, True)] * 2
    slow = next(
        one
        for one in (physics.judge(seed, "slow_worker") for seed in range(777_000_200, 777_000_220))
        if one.slow
    )
    assert (slow.lead, slow.near, slow.worker_right) == ("slow_worker", True, True)

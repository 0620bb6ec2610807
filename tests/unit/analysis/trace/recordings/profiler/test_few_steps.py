"""Late data loaders and clocks in files of few steps of `tests.support.gpu_profiles`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.gpu_profiles.job import MS, Fault, Job, Mode, Style
from tests.support.gpu_profiles.machine import step_time_ns
from tests.support.gpu_profiles.programs import run
from tests.support.gpu_profiles.score import Case, Condition, Outcome, case, judge


def judged(job: Job, rank: int, share: float) -> Outcome:
    """Return the outcome of a job in which a rank loads for a share of a step's time.

    A host that runs ahead of its device hides a step's time of loading, which is added.
    """
    hidden = 0 if job.synchronized else 1
    fault = Fault(loading_rank=rank, loading_ns=int((share + hidden) * step_time_ns(run(job))))
    return judge(Case(0, Condition.LOADER, replace(job, fault=fault), Style(clock_ns=20 * MS)))


@pytest.mark.parametrize(
    ("mode", "ranks", "steps"), [(Mode.DDP, 32, 4), (Mode.DDP, 40, 3), (Mode.FSDP2, 64, 3)]
)
def test_one_late_loader_is_named_among_many_ranks_in_few_steps(
    mode: Mode, ranks: int, steps: int
) -> None:
    """All ranks wait for the latest one, however many others are on time."""
    job = Job(mode, ranks=ranks, steps=steps, layers=6, forward_ns=30 * MS, exchange=0.4, seed=5)
    outcome = judged(job, ranks // 3, 0.6)
    assert outcome.right, outcome.cause


@pytest.mark.parametrize("synchronized", [True, False])
@pytest.mark.parametrize(("mode", "steps"), [(Mode.DDP, 3), (Mode.DDP, 6), (Mode.FSDP2, 4)])
def test_the_first_recorded_step_waits_like_the_others(
    mode: Mode, steps: int, *, synchronized: bool
) -> None:
    """Loading before the first step may begin while the device runs an unrecorded step."""
    job = Job(mode, ranks=8, steps=steps, layers=6, forward_ns=30 * MS, exchange=0.4, seed=6)
    outcome = judged(replace(job, synchronized=synchronized), 5, 0.5)
    assert outcome.right, outcome.cause
    assert outcome.reported == pytest.approx(outcome.true, rel=0.02)


def test_loading_while_the_device_runs_an_unrecorded_step_is_not_late() -> None:
    """Only the rest of the loading delays the first recorded step."""
    outcome = judge(case(3, 97))
    assert outcome.right, outcome.cause
    assert outcome.near, outcome.reported


@pytest.mark.parametrize("seed", [1, 2])
def test_clocks_some_milliseconds_apart_slow_no_healthy_job(seed: int) -> None:
    job = Job(Mode.FSDP1, ranks=4, layers=6, buckets=2, clipping=True, steps=3, seed=seed)
    outcome = judge(Case(0, Condition.NONE, job, Style(clock_ns=9 * MS)))
    assert outcome.right, outcome.cause
    assert outcome.reported <= 1.01

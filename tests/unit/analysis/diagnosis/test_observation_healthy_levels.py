"""The uncertainty of the times that faulty workers would take if they were healthy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.locations import Worker
from app.analysis.diagnosis.observation import held_against_peers, kept_waiting
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.trace.model import Sizes
from tests.unit.analysis.diagnosis.jobs import JOB, ONE_RANK, observe, session


def unsure(*workers: Worker, job: JobModel = JOB, noise: float = 0.003, slow: float = 2.0) -> float:
    job = replace(job, costs=replace(job.costs, worker_noise=noise))
    injections = [SlowWorker(worker, slow) for worker in workers]
    return held_against_peers(observe(session(*injections, job=job)), workers).reference


def test_it_is_as_uncertain_as_healthy_peers_differ() -> None:
    assert unsure((1, 1), noise=0.02) > 3 * unsure((1, 1), noise=0.004)
    # Identical peers do not remove the uncertainty.
    assert unsure((1, 1), noise=0.0) > 0.0005


def test_how_slow_the_worker_is_does_not_matter() -> None:
    assert unsure((1, 1), slow=1.3) == pytest.approx(unsure((1, 1), slow=3.0), rel=0.02)


def test_one_of_many_dp_ranks_weighs_less() -> None:
    few, many = (replace(JOB, sizes=Sizes(dp=dp, pp=2)) for dp in (3, 12))
    assert unsure((1, 1), job=many) < 0.5 * unsure((1, 1), job=few)
    # Two workers of one DP rank are in one pipeline, two of different DP ranks in two.
    assert unsure((1, 1), (2, 2)) > 1.5 * unsure((1, 1), (1, 2))


def test_without_peers_workers_differ_as_they_mostly_do() -> None:
    alone = unsure((0, 1), job=ONE_RANK)
    assert 0.005 < alone < 0.02
    assert alone == pytest.approx(unsure((0, 1), job=ONE_RANK, noise=0.02))


def test_a_stage_without_healthy_workers_has_the_others_to_tell() -> None:
    everybody = tuple((dp, 1) for dp in range(4))
    assert 0 < unsure(*everybody) < 0.05


@pytest.mark.parametrize(
    ("workers", "share"),
    [
        ([(1, 1)], 3 / 4),
        # all stages of two of four DP ranks
        ([(1, 0), (1, 1), (2, 0), (2, 1)], 2 / 4),
        # one of two stages on all DP ranks
        ([(dp, 1) for dp in range(4)], 1 / 2),
        ([(dp, pp) for dp in range(4) for pp in range(2)], 0),
    ],
)
def test_other_dp_ranks_wait_or_else_other_stages(workers: list[Worker], share: float) -> None:
    job = replace(JOB, sizes=Sizes(dp=4, pp=2))
    assert kept_waiting(observe(session(job=job)), workers) == share

"""The sums of the fleet's report, and the counts of what it leaves out."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from app.analysis.report.session_verdict import KnownLoss
from app.jobs.fleet_costs import ReportFilter, job_figures
from app.jobs.fleet_report import FleetReport, Sample, fleet_report, sampled_jobs
from app.jobs.models import Attempt, Job
from app.platform.database.states import SessionState
from app.sessions.models.tables import StoredVerdict
from benchmarks.support.stored import made_verdict
from tests.integration.jobs.fleet_report.build import DAY, HOUR, session
from tests.support.reads import read

if TYPE_CHECKING:
    from app.platform.container import Container


def week(container: Container) -> FleetReport:
    return read(container, fleet_report, None, None)


def test_a_fleet_without_a_session_has_a_report_of_nothing(container: Container) -> None:
    found = week(container)
    assert (found.spent.jobs, found.costs.used, found.coverage.received) == ((), 0.0, 0)
    assert (found.spent.measured, found.spent.straggling) == (0, 0)
    assert found.costs.share == 0.0


def test_a_verdict_costs_until_the_next_session_of_its_job(container: Container) -> None:
    session(container, 1.25, ago=10 * HOUR, gpus=100)
    session(container, 1.0, ago=8 * HOUR, gpus=100)
    costs = week(container).costs
    # The first session counts for two hours, and the last one as long as the one before.
    assert costs.used == pytest.approx(400, rel=1e-4)
    assert costs.lost == pytest.approx(100 * (1 - 1 / 1.25) * 2, rel=1e-4)
    assert (costs.jobs, costs.sessions) == (1, 2)


def test_a_job_is_drawn_once_with_its_median_session(container: Container) -> None:
    for hours, slowdown in ((3, 1.5), (2, 1.1), (1, 1.3)):
        made = session(container, slowdown, ago=hours * HOUR)
    session(container, 1.01, ago=HOUR, job="other")
    jobs = read(container, job_figures, None, None)
    assert [(job.job, job.slowdown, job.sessions) for job in jobs] == [
        ("llm", 1.3, 3),
        ("other", 1.01, 1),
    ]
    assert jobs[0].session == made
    found = week(container).spent
    assert (found.measured, found.straggling) == (2, 1)


def test_the_trend_is_of_eight_times_of_the_same_length(container: Container) -> None:
    session(container, 2.0, ago=2 * HOUR)
    session(container, 1.25, ago=8 * DAY)
    session(container, 4.0, ago=70 * DAY)
    found = week(container)
    assert [period.costs.sessions for period in found.spent.trend] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert found.costs.share == pytest.approx(0.5)
    assert found.before.share == pytest.approx(0.2)
    assert found.spent.trend[-1].until == found.until
    assert all(
        earlier.until == later.since
        for earlier, later in zip(found.spent.trend, found.spent.trend[1:], strict=False)
    )


def test_excluded_sessions_are_counted(container: Container) -> None:
    session(container, 1.2, ago=HOUR)
    session(container, None, ago=HOUR, state="no_verdict", job="distrusted")
    session(container, None, ago=HOUR, state="failed")
    session(container, 1.2, ago=9 * DAY, job="silent")
    found = week(container).coverage
    assert (found.received, found.counted) == (3, 1)
    assert found.without == {SessionState.NO_VERDICT: 1, SessionState.FAILED: 1}
    assert (found.jobs, found.counted_jobs, found.silent) == (2, 1, 1)


def test_the_cost_of_causes_without_a_verdict_counts(container: Container) -> None:
    session(container, 1.25, ago=HOUR, gpus=100)
    key = session(container, None, ago=HOUR, state="no_verdict", job="late", gpus=300)
    lost = {"data_loading": 60.0}
    with container.uow() as tx:
        made = made_verdict(None, withheld=KnownLoss(0.2, 5.0), lost_by_cause=lost, measured_s=60.0)
        tx.session.add(StoredVerdict(session_id=key, document=made))
    found = week(container)
    assert found.costs.sessions == found.coverage.counted == 2
    assert found.costs.share == pytest.approx(0.2)
    assert [cost.job for cost in found.spent.jobs] == ["late", "llm"]
    assert found.spent.causes[0].cause == "data_loading"
    assert [job.job for job in read(container, job_figures, None, None)] == ["llm"]


def test_causes_and_jobs_are_named_the_most_expensive_first(container: Container) -> None:
    session(container, 1.5, ago=HOUR, job="small", gpus=8, lost_by_cause={"slow_worker": 2.0})
    session(
        container,
        1.5,
        ago=HOUR,
        job="large",
        gpus=800,
        lost_by_cause={"stage_imbalance": 100.0, "slow_worker": 1.0},
    )
    found = week(container)
    assert [cost.job for cost in found.spent.jobs] == ["large", "small"]
    assert [(cost.cause, cost.jobs) for cost in found.spent.causes] == [
        ("stage_imbalance", 1),
        ("slow_worker", 2),
    ]
    assert found.unexplained == pytest.approx(
        found.costs.lost - sum(cost.lost for cost in found.spent.causes)
    )
    assert found.unexplained > 0


def test_a_time_of_ones_own_is_kept_to(container: Container) -> None:
    session(container, 1.5, ago=3 * DAY)
    session(container, 1.2, ago=HOUR)
    now = week(container).now
    found = read(container, fleet_report, now - 4 * DAY, now - 2 * DAY)
    figures = read(container, job_figures, now - 4 * DAY, now - 2 * DAY)
    assert [job.slowdown for job in figures] == [1.5]
    assert (found.spent.measured, found.coverage.received) == (1, 1)
    assert found.until - found.since == timedelta(days=2)
    later = read(container, fleet_report, now + DAY, now + 2 * DAY)
    assert later.spent.jobs == (), "of a time to come nothing is known"


def test_a_report_is_broken_down_by_team_and_owner_and_filtered_by_them(
    container: Container,
) -> None:
    moe = {"team": "moe", "owner": "ann"}
    session(container, 1.5, ago=2 * HOUR, job="large", gpus=800, lost=300.0, labels=moe)
    session(container, 1.2, ago=HOUR, job="small", gpus=8, lost=2.0, labels={"team": "speech"})
    session(container, 1.2, ago=HOUR, job="unlabeled", gpus=8, lost=1.0)
    session(container, None, ago=HOUR, job="untold", state="no_verdict", labels=moe)
    session(container, 1.5, ago=9 * DAY, job="silent", labels=moe)
    whole = week(container)
    teams = whole.spent.teams
    assert [(one.name, one.jobs) for one in teams] == [("moe", 1), ("speech", 1), (None, 1)]
    assert sum(one.lost for one in teams) == pytest.approx(whole.costs.lost)
    assert sum(one.used for one in teams) == pytest.approx(whole.costs.used)
    assert [one.name for one in whole.spent.owners] == ["ann", None]
    for asked in (ReportFilter(team="moe"), ReportFilter(owner="ann"), ReportFilter(label="owner")):
        found = read(container, fleet_report, None, None, asked)
        assert found.costs.lost == pytest.approx(teams[0].lost)
        assert [one.job for one in found.spent.jobs] == ["large"]
        assert found.coverage.without == {SessionState.NO_VERDICT: 1}
        assert (found.coverage.jobs, found.coverage.counted_jobs) == (2, 1)
        assert found.coverage.silent == 1
        figures = read(container, job_figures, None, None, asked)
        assert [one.job for one in figures] == ["large"]
    unknown = read(container, fleet_report, None, None, ReportFilter(team="unknown"))
    assert (unknown.costs.sessions, unknown.coverage.received, unknown.spent.hosts) == (0, 0, ())


def test_the_sample_of_the_paper_has_large_jobs_of_few_restarts(container: Container) -> None:
    session(container, 1.2, ago=HOUR, job="small", gpus=127)
    session(container, 1.3, ago=HOUR, job="large", gpus=128, attempt=16)
    session(container, 1.4, ago=HOUR, job="failing", gpus=128, attempt=17)
    session(container, 1.5, ago=HOUR, job="announced", gpus=128)
    with container.uow() as tx:
        job = tx.session.execute(select(Job).where(Job.name == "announced")).scalar_one()
        tx.session.add(Attempt(job_id=job.id, number=17, run_id="run", restart=16))

    paper = read(container, sampled_jobs, None, None, sample=Sample.PAPER)
    assert [(job.job, job.restarts) for job in paper.jobs] == [("large", 15)]
    assert len(read(container, sampled_jobs, None, None).jobs) == 4


def test_coverage_counts_the_gpu_hours_of_sessions_without_a_verdict(container: Container) -> None:
    for hours in (3, 1):
        session(container, 1.5, ago=hours * HOUR, job="large", gpus=300)
        session(container, None, ago=hours * HOUR, job="untold", gpus=100, state="no_verdict")
        session(container, 1.1, ago=hours * HOUR, job="small", gpus=100)

    every, paper = (
        read(container, sampled_jobs, None, None, sample=sample)
        for sample in (Sample.ALL, Sample.PAPER)
    )
    assert (every.fleet.jobs, len(every.jobs), len(paper.jobs)) == (3, 2, 1)
    assert every.gpu_hours_share == pytest.approx(400 / 500, rel=1e-3)
    assert paper.gpu_hours_share == pytest.approx(300 / 500, rel=1e-3)

"""The facts of a report that rules and messages use."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from statistics import mean, median

import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.diagnosis.locations import Where
from app.analysis.report.document import Report
from app.analysis.report.session_verdict import verdict_of
from app.incidents.models.facts import Facts, facts_of
from tests.support import reports


def facts(report: Report) -> Facts:
    return facts_of(
        verdict_of(report, {}),
        session=uuid.UUID(int=1),
        job="llm",
        attempt=1,
        number=3,
        received_at=datetime(2026, 11, 20, tzinfo=UTC),
        labels={"team": "nlp"},
    )


def test_the_numbers_of_the_verdict_are_the_reports() -> None:
    report = reports.slow_worker()
    found = facts(report)
    assert (found.slowdown, found.slowdown_ci95) == (report.slowdown, report.slowdown_ci95)
    assert found.headline is not None
    assert (found.headline.slowdown, found.headline.ci95, found.headline.kind) == (
        report.headline.slowdown,
        report.headline.ci95,
        "causes",
    )
    assert found.headline.slowdown > report.slowdown
    assert found.headline.gpu_hours_lost == report.lost_gpu_hours > report.gpu_hours_lost
    assert found.step_time_s == median(report.step_times.recorded)
    assert found.layout == "dp=3 pp=4 tp=2 cp=1 vpp=1"
    assert found.worst_step in report.steps.analyzed
    assert found.fix is not None
    assert found.fix.title == report.recommendations[0].title


def test_a_blamed_worker_is_named_by_its_host() -> None:
    report = reports.slow_worker()
    found = facts(report)
    host = report.host_of((1, 2))
    assert found.leading_cause.where == (host,)
    assert (found.worst[0].dp, found.worst[0].pp, found.worst[0].host) == (1, 2, host)
    nameless = facts(replace(report, hosts={}))
    assert nameless.leading_cause.where == ("worker (1, 2)",)


def test_a_blamed_stage_is_named_where_no_worker_is() -> None:
    report = reports.slow_worker()
    cause = replace(report.causes[0], where=Where(stage=3))
    assert facts(replace(report, causes=(cause,))).leading_cause.where == ("stage 3",)
    cause = replace(report.causes[0], where=Where())
    assert facts(replace(report, causes=(cause,))).leading_cause.where == ()


def test_what_is_the_job_s_own_has_no_place_at_its_workers() -> None:
    report = reports.slow_worker()
    own = replace(report.causes[0], cause="expert_parallel_imbalance")
    assert own.where.workers
    assert facts(replace(report, causes=(own,))).leading_cause.where == ()


def test_without_a_verdict_and_without_a_cause_there_is_the_discrepancy_alone() -> None:
    report = reports.distrusted()
    published = replace(report.headline, kind=HeadlineKind.PUBLISHED)
    report = replace(report, causes=(), recommendations=(), headline=published)
    found = facts(report)
    assert found.discrepancy == report.fidelity.discrepancy
    assert (found.slowdown, found.causes, found.worst, found.fix) == (None, (), (), None)
    assert (found.known, found.lost_each_hour) == (None, None)


def test_without_a_verdict_a_cause_has_its_cost_and_its_fix() -> None:
    report = reports.distrusted()
    found, cause = facts(report), report.causes[0]
    assert (found.headline, found.slowdown, found.worst) == (None, None, ())
    assert found.leading_cause.cause == cause.cause == "data_loading"
    assert found.fix is not None
    assert found.fix.title == report.recommendations[0].title
    assert found.known is not None
    assert cause.cost_s is not None
    recorded_s = mean(report.step_times.recorded)
    assert found.known.waste == pytest.approx(cause.cost_s / recorded_s, rel=0.01)
    assert found.known.waste == pytest.approx(report.recommendations[0].predicted_gain)
    assert found.lost_each_hour == pytest.approx(report.sizes.world * found.known.waste)


def test_what_a_job_loses_each_hour_is_its_largest_loss() -> None:
    report = reports.slow_worker()
    found = facts(report)
    verdict = verdict_of(report, {})
    assert verdict.shares is not None
    between = replace(verdict.shares, between_steps_above=0.6)
    stalled = facts_of(
        replace(verdict, shares=between, lost_between=0.6),
        session=found.session,
        job=found.job,
        attempt=found.attempt,
        number=found.number,
        received_at=found.received_at,
        labels=found.labels,
    )

    assert found.known is not None
    assert found.lost_each_hour == pytest.approx(report.sizes.world * found.known.waste)
    assert stalled.known == found.known
    assert stalled.lost_each_hour == pytest.approx(report.sizes.world * 0.6)
    assert replace(stalled, lost=None).lost_each_hour == found.lost_each_hour

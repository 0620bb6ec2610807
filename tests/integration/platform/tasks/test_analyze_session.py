"""The rows that the analysis of a session stores, for each of its outcomes."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import delete, func, select, update

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.build import analyze
from app.analysis.report.session_verdict import verdict_of
from app.errors import UnanalyzableError
from app.installation.sweep import SweepResult, sweep
from app.platform.container import Claim
from app.platform.database.task_runs import ANALYZE_SESSION, TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper, claim
from app.sessions.models.reports import open_report, read_document, read_heatmaps
from app.sessions.models.tables import Session, StoredReport, StoredVerdict
from tests.support.sessions import (
    Stored,
    count_blobs,
    count_reports,
    refused_trace,
    session_row,
    small_trace,
    store,
    stored_verdict,
    task_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from app.analysis.trace.model import Trace
    from app.platform.container import Container


@pytest.fixture
def keeper(container: Container) -> Iterator[LeaseKeeper]:
    made = LeaseKeeper(container)
    yield made
    made.stop()


def _unfaithful(trace: Trace) -> Trace:
    """Return the trace with durations that cannot have led to its step times."""
    starts = trace.start_ns.copy()
    first = np.array([trace.start_ns[trace.step == step].min() for step in trace.step])
    return replace(trace, start_ns=first + 3 * (starts - first))


def _with_work(container: Container, work: Callable[[Container, Claim], None]) -> Container:
    """Return a container in which the analysis is replaced by another function."""
    kind = replace(container.kinds[ANALYZE_SESSION], run=work)
    return replace(container, kinds={ANALYZE_SESSION: kind})


def test_report_and_headline_are_stored(container: Container, keeper: LeaseKeeper) -> None:
    stored = store(container, small_trace(), job="llm-70b")
    assert execute(container, keeper, stored.run)

    expected = analyze(small_trace())
    with container.uow() as tx:
        kept = tx.session.execute(select(StoredReport)).scalar_one()
        report = open_report(read_document(tx, kept))
        assert kept.heatmap_blob is not None
        heatmaps = read_heatmaps(tx, kept.heatmap_blob)
    assert report == replace(expected.report, job="llm-70b", session=str(stored.session))
    np.testing.assert_array_equal(heatmaps, expected.heatmaps)
    assert heatmaps.dtype == np.float32

    row = session_row(container, stored)
    assert (row.state, row.reason_code, row.reason) == ("analyzed", None, None)
    assert report.headline.kind is HeadlineKind.CAUSES
    assert report.causes[0].figure is not None
    with container.reading() as tx:
        kept_verdict = tx.session.execute(select(StoredVerdict)).scalar_one()
    verdict = verdict_of(report, row.meta)
    assert kept_verdict.document == verdict
    # The columns for sorting and filtering agree with the document.
    assert verdict.headline is not None
    assert (kept_verdict.slowdown, kept_verdict.published, kept_verdict.discrepancy) == (
        report.headline.slowdown,
        report.slowdown,
        report.fidelity.discrepancy,
    )
    assert (kept_verdict.low, kept_verdict.high) == (report.headline.ci95 or (None, None))
    assert (kept_verdict.level, kept_verdict.cause) == ("slow", report.causes[0].cause)
    assert kept_verdict.host == report.hosts[report.workers.rank[1][1]]
    assert (kept_verdict.step_time_s, kept_verdict.measured_s) == (
        verdict.step_time_s,
        verdict.measured_s,
    )
    assert task_row(container, stored).state == "done"


def test_session_that_no_verdict_can_come_from_is_discarded_with_the_reason(
    container: Container, keeper: LeaseKeeper
) -> None:
    trace, code = refused_trace(), "trace.no_complete_step"
    with pytest.raises(UnanalyzableError) as expected:
        analyze(trace)
    assert expected.value.stable_code == code

    stored = store(container, trace)
    assert execute(container, keeper, stored.run)
    row = session_row(container, stored)
    assert (row.state, row.reason_code, row.reason) == ("discarded", code, expected.value.message)
    assert row.reason_detail == {"faults": [fault.as_dict() for fault in expected.value.faults]}
    assert count_reports(container) == 0
    assert stored_verdict(container, stored) is None
    assert task_row(container, stored).state == "done"


def test_session_that_the_replay_does_not_match_has_a_report_and_no_verdict(
    container: Container, keeper: LeaseKeeper
) -> None:
    stored = store(container, _unfaithful(small_trace()))
    assert execute(container, keeper, stored.run)
    row = session_row(container, stored)
    assert (row.state, row.reason_code) == ("no_verdict", "report.low_fidelity")
    assert row.reason
    verdict = stored_verdict(container, stored)
    assert verdict is not None
    assert (verdict.headline, verdict.published) == (None, None)
    assert verdict.discrepancy > 0.05
    assert count_reports(container) == 1


def test_second_analysis_replaces_the_report_and_its_blobs(
    container: Container, keeper: LeaseKeeper
) -> None:
    stored = store(container, small_trace())
    execute(container, keeper, stored.run)
    with container.uow() as tx:
        again = tx.enqueue(ANALYZE_SESSION, stored.session)
    execute(container, keeper, again)
    assert session_row(container, stored).state == "analyzed"
    assert count_reports(container) == 1
    assert count_blobs(container) == 3


def test_task_that_another_worker_runs_is_left_to_them(
    container: Container, keeper: LeaseKeeper
) -> None:
    stored = store(container, small_trace())
    claim(container, stored.run)
    assert not execute(container, keeper, stored.run)
    assert not execute(container, keeper, uuid.uuid4())
    assert count_reports(container) == 0


def test_session_deleted_meanwhile_ends_its_task(container: Container, keeper: LeaseKeeper) -> None:
    stored = store(container, small_trace())
    with container.uow() as tx:
        tx.session.execute(delete(Session).where(Session.id == stored.session))
    assert execute(container, keeper, stored.run)
    row = task_row(container, stored)
    assert (row.state, row.error_code) == ("dead", "not_found")


def test_stored_trace_that_cannot_be_read_fails_the_session_with_a_reason(
    container: Container, keeper: LeaseKeeper
) -> None:
    stored = store(container, small_trace())
    with container.uow() as tx:
        tx.session.execute(
            update(Session).where(Session.id == stored.session).values(trace_blob=uuid.uuid4())
        )
    assert execute(container, keeper, stored.run)
    row = session_row(container, stored)
    assert row.state == "failed"
    assert row.reason_code == "not_found"


def test_database_that_goes_away_during_the_work_is_no_fault_of_the_task(
    container: Container, keeper: LeaseKeeper
) -> None:
    def lose_connection(container: Container, _: Claim) -> None:
        with container.uow() as tx:
            tx.session.execute(select(func.pg_terminate_backend(func.pg_backend_pid())))

    stored = store(container, small_trace())
    losing = _with_work(container, lose_connection)
    for _ in range(container.settings.max_attempts + 1):
        assert not execute(losing, keeper, stored.run)
        row = task_row(container, stored)
        assert (row.state, row.attempt) == ("queued", 0)
    assert execute(container, keeper, stored.run)
    assert session_row(container, stored).state == "analyzed"


def test_unexpected_error_fails_the_session_without_showing_its_text(
    container: Container, keeper: LeaseKeeper
) -> None:
    def fail(_: Container, __: Claim) -> None:
        raise ZeroDivisionError("of something secret")

    stored = store(container, small_trace())
    assert execute(_with_work(container, fail), keeper, stored.run)
    row = session_row(container, stored)
    assert (row.state, row.reason_code) == ("failed", "task.internal_error")
    assert row.reason is not None
    assert "ZeroDivisionError" in row.reason
    assert "secret" not in row.reason


def test_work_of_a_newer_version_waits_for_its_workers(
    container: Container, keeper: LeaseKeeper
) -> None:
    with container.uow() as tx:
        run_id = tx.enqueue("plan_session", uuid.uuid4())
    assert not execute(container, keeper, run_id)
    assert sweep(container) == SweepResult()
    with container.uow() as tx:
        assert tx.session.execute(select(TaskRun.state)).scalar_one() == "queued"


def test_stopping_worker_gives_a_claim_back_that_it_has_just_taken(
    container: Container, keeper: LeaseKeeper
) -> None:
    stored = store(container, small_trace())
    keeper.stop()
    assert not execute(container, keeper, stored.run)
    row = task_row(container, stored)
    assert (row.state, row.attempt) == ("queued", 0)
    assert session_row(container, stored).state == "queued"


def test_every_claim_held_is_given_back(container: Container, keeper: LeaseKeeper) -> None:
    several: list[Stored] = [store(container, small_trace()) for _ in range(3)]
    claims = [claim(container, one.run) for one in several]
    held, other, finished = claims
    assert held is not None
    assert other is not None
    assert finished is not None
    with keeper.hold(finished):
        pass
    with keeper.hold(held), keeper.hold(other):
        keeper.stop()
    assert [task_row(container, one).state for one in several] == ["queued", "queued", "running"]

"""Deleted objects are invisible at once, and their bytes are deleted later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from app.access.audit import list_entries
from app.access.moves import prune_projects
from app.errors import ConflictError, LostClaimError, NotFoundError
from app.incidents.models.tables import AlertGroup, AlertIncident
from app.jobs.models import Job
from app.platform.database.columns import Base, OfProject
from app.platform.database.projects import Project
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper, claim, finish
from app.quotas.usage import use_of
from app.retention.delete import delete_job, delete_session
from app.retention.rules import archive_job, pin_session, rename_job
from app.sessions.history import fleet
from app.sessions.read import list_sessions, report_json
from tests.support.alerting import Alerting
from tests.support.reads import read
from tests.support.sessions import (
    Stored,
    count_blobs,
    count_reports,
    session_row,
    small_trace,
    store,
)

if TYPE_CHECKING:
    from app.platform.container import Container


def _analyzed(container: Container, job: str = "llm") -> Stored:
    stored = store(container, small_trace(), job=job)
    assert execute(container, LeaseKeeper(container), stored.run)
    return stored


def _rows_of_deleted(container: Container) -> int:
    with container.everywhere().reading() as tx:
        gone = select(Project.id).where(Project.deleted_at.is_not(None))
        return sum(
            tx.session.execute(
                select(func.count())
                .select_from(mapper.class_)
                .where(mapper.class_.project_id.in_(gone))
            ).scalar_one()
            for mapper in Base.registry.mappers
            if issubclass(mapper.class_, OfProject)
        )


def test_a_deleted_session_is_gone_and_its_number_is_free(container: Container) -> None:
    gone, kept = _analyzed(container), _analyzed(container)
    delete_session(container, gone.session)
    assert [row.id for row in read(container, list_sessions, 10)] == [kept.session]
    with pytest.raises(NotFoundError):
        read(container, report_json, gone.session)
    assert read(container, report_json, kept.session)
    assert read(container, use_of, container.project_id).operations == len(small_trace())
    # The second deletion finds no session.
    with pytest.raises(NotFoundError):
        delete_session(container, gone.session)
    [entry] = read(container, list_entries, 1)
    assert (entry.action, entry.subject) == ("deleted", "session 1 of llm")

    assert _rows_of_deleted(container)
    assert prune_projects(container) == 1
    assert _rows_of_deleted(container) == 0
    assert (count_blobs(container), count_reports(container)) == (3, 1)


def test_an_analysis_that_is_under_way_stores_nothing(container: Container) -> None:
    stored = store(container, small_trace())
    held = claim(container, stored.run)
    assert held is not None
    delete_session(container, stored.session)
    with pytest.raises(LostClaimError), container.within(held.project_id).uow() as tx:
        finish(tx, held)


def test_waiting_tasks_of_deleted_sessions_do_nothing(container: Container) -> None:
    stored = store(container, small_trace())
    delete_session(container, stored.session)
    assert claim(container, stored.run) is None


def test_a_deleted_job_takes_everything_along_and_its_name_is_free(container: Container) -> None:
    for _ in range(2):
        _analyzed(container)
    kept = _analyzed(container, "other")
    Alerting(container).slow("llm")
    delete_job(container, "llm")
    with pytest.raises(NotFoundError):
        delete_job(container, "llm")
    assert [job.name for job in read(container, fleet).jobs] == ["other"]
    # The quota is free at once, before the sweeper deletes the bytes.
    assert read(container, use_of, container.project_id).operations == len(small_trace())
    with container.reading() as tx:
        about = select(Job.name).join(AlertGroup, AlertGroup.job_id == Job.id)
        incidents = about.join(AlertIncident, AlertIncident.group_id == AlertGroup.id)
        assert set(tx.session.execute(incidents).scalars()) <= {"other"}
    again = _analyzed(container)
    assert session_row(container, again).number == 1

    assert prune_projects(container) == 1
    assert _rows_of_deleted(container) == 0
    assert read(container, report_json, kept.session)
    assert count_reports(container) == 2


def test_the_next_sweeper_deletes_what_a_killed_one_left(container: Container) -> None:
    stored = _analyzed(container)
    delete_session(container, stored.session)
    # A transaction of the first sweeper is interrupted.
    engine = container.engine
    with engine.connect() as connection:
        connection.exec_driver_sql("DELETE FROM blob_part")
        connection.rollback()
    assert prune_projects(container) == 1
    assert prune_projects(container) == 0
    assert (count_blobs(container), _rows_of_deleted(container)) == (0, 0)


def test_a_job_is_renamed_with_its_history(container: Container) -> None:
    stored = _analyzed(container)
    _analyzed(container, "other")
    rename_job(container, "llm", "llm-70b")
    assert [row.job for row in read(container, list_sessions, 10, "llm-70b")] == ["llm-70b"]
    assert read(container, report_json, stored.session)
    with pytest.raises(ConflictError) as refused:
        rename_job(container, "llm-70b", "other")
    assert refused.value.stable_code == "job.name_taken"
    with pytest.raises(NotFoundError):
        rename_job(container, "llm", "else")


def test_an_archived_job_leaves_the_fleet_until_it_sends_again(container: Container) -> None:
    _analyzed(container)
    archive_job(container, "llm", archived=True)
    assert read(container, fleet).jobs == ()
    with container.reading() as tx:
        assert len(fleet(tx, job="llm").jobs) == 1
    _analyzed(container)
    [job] = read(container, fleet).jobs
    assert [session.number for session in job.sessions] == [2]
    archive_job(container, "llm", archived=False)
    assert len(read(container, fleet).jobs[0].sessions) == 2
    with container.reading() as tx:
        assert tx.session.execute(select(Job.archived_at)).scalar() is None


def test_pinning_twice_is_pinning_once(container: Container) -> None:
    stored = _analyzed(container)
    for _ in range(2):
        pin_session(container, stored.session, pinned=True)
    assert session_row(container, stored).pinned
    assert [entry.action for entry in read(container, list_entries, 9)].count("pinned") == 1
    pin_session(container, stored.session, pinned=False)
    assert not session_row(container, stored).pinned

"""Sessions are analyzed again, one or many, and nothing is doubled or lost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select, update

from app.access.audit import list_entries
from app.errors import ConflictError, NotFoundError
from app.platform.container import TaskError
from app.platform.database.states import SessionState
from app.platform.database.task_runs import TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper, claim, fail
from app.retention.export import Selection, analyze_again, analyze_many_again
from app.sessions.models.tables import Session
from app.sessions.read import report_document, report_json
from tests.support.reads import read
from tests.support.sessions import (
    Stored,
    count_blobs,
    count_reports,
    session_row,
    small_trace,
    store,
    task_row,
)

if TYPE_CHECKING:
    import uuid

    from app.platform.container import Container


def _dead(container: Container, *, job: str = "llm") -> Stored:
    stored = store(container, small_trace(), job=job)
    held = claim(container, stored.run)
    assert held is not None
    assert fail(container, held, TaskError("task.worker_killed", "The worker was killed."))
    return stored


def _analyzed(container: Container) -> Stored:
    stored = store(container, small_trace())
    assert execute(container, LeaseKeeper(container), stored.run)
    return stored


def _queued(container: Container) -> list[uuid.UUID]:
    with container.reading() as tx:
        return list(
            tx.session.execute(
                select(TaskRun.id).where(TaskRun.state == "queued").order_by(TaskRun.created_at)
            ).scalars()
        )


def test_a_dead_session_is_analyzed_again_and_gets_its_report(container: Container) -> None:
    stored = _dead(container)
    again = analyze_again(container, stored.session)
    assert (again.state, again.queued) == (SessionState.QUEUED, True)
    assert session_row(container, stored).reason is None
    [run] = _queued(container)
    assert execute(container, LeaseKeeper(container), run)
    assert session_row(container, stored).state == "analyzed"
    # The failed task run is kept.
    assert task_row(container, stored).state == "dead"
    assert [entry.action for entry in read(container, list_entries, 1)] == ["had analyzed again"]


def test_asked_often_and_at_once_it_is_one_analysis(container: Container) -> None:
    stored = _dead(container)
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(analyze_again(container, stored.session)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.state for answer in answers] == [SessionState.QUEUED] * 4
    assert sum(answer.queued for answer in answers) == 1
    assert len(_queued(container)) == 1


def test_the_report_stays_until_the_new_one_takes_its_place(container: Container) -> None:
    stored = _analyzed(container)
    before = read(container, report_document, stored.session)
    analyze_again(container, stored.session)
    assert read(container, report_json, stored.session)
    [run] = _queued(container)
    assert execute(container, LeaseKeeper(container), run)
    assert read(container, report_document, stored.session) == before
    assert (count_reports(container), count_blobs(container)) == (1, 3)


def test_sessions_that_arrive_or_are_gone_are_not_analyzed_again(container: Container) -> None:
    stored = _analyzed(container)
    for values, code in (
        ({"state": SessionState.OPEN}, "session.open"),
        ({"state": SessionState.FAILED, "trace_blob": None}, "session.trace_removed"),
    ):
        with container.uow() as tx:
            tx.session.execute(update(Session).where(Session.id == stored.session).values(**values))
        with pytest.raises(ConflictError) as refused:
            analyze_again(container, stored.session)
        assert refused.value.stable_code == code
    with pytest.raises(NotFoundError):
        analyze_again(container, stored.run)


def test_many_are_queued_in_pieces_until_none_is_left(container: Container) -> None:
    dead = [_dead(container) for _ in range(5)]
    _dead(container, job="other")
    kept = _analyzed(container)
    first = analyze_many_again(container, Selection(job="llm"), 3)
    assert (first.queued, first.left) == (3, 2)
    # The newest sessions are queued first.
    assert [session_row(container, one).state for one in dead] == ["failed"] * 2 + ["queued"] * 3
    rest = analyze_many_again(container, Selection(job="llm", before=first.before), 100)
    assert (rest.queued, rest.left) == (2, 0)
    assert session_row(container, kept).state == "analyzed"
    assert len(_queued(container)) == 5


def test_after_an_update_each_session_is_analyzed_once_more(container: Container) -> None:
    stored = [_analyzed(container) for _ in range(3)]
    with container.reading() as tx:
        updated_at = tx.now
    selection = Selection((SessionState.ANALYZED, SessionState.FAILED), before=updated_at)
    assert analyze_many_again(container, selection, 2).queued == 2
    for run in _queued(container):
        assert execute(container, LeaseKeeper(container), run)
    # Sessions that were queued before are not selected again.
    assert analyze_many_again(container, selection, 2).queued == 1
    assert analyze_many_again(container, selection, 2).queued == 0
    with container.reading() as tx:
        runs = tx.session.execute(select(func.count()).select_from(TaskRun)).scalar_one()
    assert runs == 2 * len(stored)

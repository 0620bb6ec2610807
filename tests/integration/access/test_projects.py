"""Jobs of the same name in several projects, and their first sessions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sqlalchemy import text

from app.access.projects import create_project
from app.incidents.store import group_of_job
from app.jobs.models import Job
from app.retention.delete import delete_job
from app.sessions.receive import make_job
from tests.support.sessions import small_trace, store
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from app.platform.container import Container

WAITING = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def test_a_second_project_may_have_jobs_of_the_same_name(container: Container) -> None:
    store(container, small_trace(), job="llm")
    second = create_project(container.everywhere(), "research")
    store(container.within(second.id), small_trace(), job="llm")
    with container.everywhere().reading() as tx:
        assert tx.session.query(Job).filter_by(name="llm").count() == 2


def test_alerts_of_a_job_are_grouped_in_its_project_for_every_caller(container: Container) -> None:
    second = create_project(container.everywhere(), "research")
    store(container.within(second.id), small_trace(), job="llm")
    with container.everywhere().uow() as tx:
        job_id = tx.session.query(Job).one().id
        group = group_of_job(tx, job_id)
        assert (group.project_id, group_of_job(tx, job_id).id) == (second.id, group.id)
    with container.within(second.id).uow() as tx:
        assert group_of_job(tx, job_id).id == group.id


def test_a_name_is_free_again_while_its_deleted_job_is_still_there(container: Container) -> None:
    store(container, small_trace(), job="llm")
    delete_job(container, "llm")
    store(container, small_trace(), job="llm")
    with container.reading() as tx:
        assert tx.session.query(Job).filter_by(name="llm").count() == 1


def test_sessions_of_a_new_job_may_come_at_once(container: Container) -> None:
    with container.uow() as tx:
        mine = make_job(container, tx, "llm")
        with ThreadPoolExecutor(4) as others:
            asked = [others.submit(_make_job, container) for _ in range(4)]
            with container.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as seen:
                wait_for(lambda: seen.execute(WAITING).scalar_one() == 4, "others wait")
            tx.session.commit()
            assert {found.result() for found in asked} == {mine}


def _make_job(container: Container) -> int:
    with container.uow() as tx:
        return make_job(container, tx, "llm")

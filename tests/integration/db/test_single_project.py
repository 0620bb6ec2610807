"""While there is one project, the database takes what version 0.1.0 writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from app.db import migrate, single_project
from app.db.models.sessions import Job
from app.db.table_locks import TablesInUseError
from app.services.access.projects import create_project
from app.services.keeping.delete import delete_job
from app.services.sessions.receive import make_job
from tests.support.sessions import small_trace, store
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from app.bootstrap import Container

OF_THE_FIRST_VERSION = text(
    "INSERT INTO job (name) VALUES ('llm') ON CONFLICT (name) DO UPDATE SET name = 'llm' "
    "RETURNING project_id"
)
WAITING = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def test_rows_without_a_project_are_of_the_default_one(container: Container) -> None:
    with container.engine.begin() as connection:
        for _ in range(2):
            assert connection.execute(OF_THE_FIRST_VERSION).scalar_one() == 1


def test_a_second_project_may_have_jobs_of_the_same_name(container: Container) -> None:
    with container.engine.begin() as connection:
        connection.execute(OF_THE_FIRST_VERSION)
    second = create_project(container.everywhere(), "research")
    store(container.within(second.id), small_trace(), job="llm")
    with container.everywhere().reading() as tx:
        assert tx.session.query(Job).filter_by(name="llm").count() == 2


def test_from_a_second_project_on_every_row_says_its_own(container: Container) -> None:
    create_project(container.everywhere(), "research")
    with container.engine.begin() as connection, pytest.raises(IntegrityError, match="project_id"):
        connection.execute(text("INSERT INTO job (name) VALUES ('llm')"))
    with container.engine.connect() as connection:
        migrate.check(connection)


def test_a_name_is_free_again_while_its_deleted_job_is_still_there(container: Container) -> None:
    store(container, small_trace(), job="llm")
    delete_job(container, "llm")
    store(container, small_trace(), job="llm")
    with container.reading() as tx:
        assert tx.session.query(Job).filter_by(name="llm").count() == 1


def test_a_table_that_stays_in_use_keeps_the_second_project_away_for_now(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_project, "PATIENCE_S", 0.0)
    with container.engine.begin() as reader:
        reader.execute(text("SELECT count(*) FROM job"))
        with pytest.raises(TablesInUseError, match="Tables were in use"):
            create_project(container.everywhere(), "research")
    assert create_project(container.everywhere(), "research").name == "research"


def test_sessions_of_a_new_job_may_come_at_once(container: Container) -> None:
    """Its name is taken twice: in the project, and in the installation with a single one."""
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

"""Statements that are compiled once: their rows, types and project."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.orm import aliased

from app.hosts.models import HostRepair
from app.jobs.models import Job
from app.platform.database.states import SessionState, TaskState
from app.platform.database.task_runs import ANALYZE_SESSION, TaskRun
from app.platform.database.tenant_scope import UnscopedError
from app.platform.database.unit_of_work import Prepared
from app.sessions.models.tables import Session
from tests.support.sessions import Stored

if TYPE_CHECKING:
    from app.platform.container import Container


_again = aliased(Session)

QUERIES = {
    "columns": Prepared(select(Session.state).where(Session.id == bindparam("id"))),
    "join": Prepared(select(Job.name).join(Session).where(Session.id == bindparam("id"))),
    "alias": Prepared(select(_again.number).where(_again.id == bindparam("id"))),
    "subquery": Prepared(
        select(func.now()).where(
            select(Session.id).where(Session.id == bindparam("id")).exists(),
        )
    ),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_finds_nothing_of_another_project(
    container: Container, other: Container, foreign: Stored, query: Prepared[object]
) -> None:
    for _ in range(2):
        with container.uow() as tx:
            assert query.rows(tx.session, id=foreign.session) == []
        with other.uow() as tx:
            assert len(query.rows(tx.session, id=foreign.session)) == 1


def test_returned_values_have_the_types_of_their_columns(other: Container, foreign: Stored) -> None:
    with other.uow() as tx:
        ((state,),) = QUERIES["columns"].rows(tx.session, id=foreign.session)
    assert state is SessionState.QUEUED


def test_inserted_rows_belong_to_the_transactions_project(
    container: Container, other: Container
) -> None:
    made = Prepared(
        insert(TaskRun).values(state=TaskState.QUEUED, attempt=0).returning(TaskRun.project_id)
    )
    for one in (container, other):
        with one.uow() as tx:
            rows = made.rows(
                tx.session, id=uuid.uuid4(), kind=ANALYZE_SESSION, subject_id=uuid.uuid4()
            )
        assert rows == [(one.project_id,)]


def test_it_is_of_no_other_project_than_its_transaction(
    container: Container, other: Container, foreign: Stored
) -> None:
    with container.uow() as tx, pytest.raises(UnscopedError):
        QUERIES["columns"].rows(tx.session, id=foreign.session, project_id=other.project_id)
    with container.everywhere().uow() as tx:
        with pytest.raises(UnscopedError):
            QUERIES["columns"].rows(tx.session, id=foreign.session)
        assert QUERIES["columns"].rows(tx.session, id=foreign.session, project_id=other.project_id)
        assert not QUERIES["columns"].rows(
            tx.session, id=foreign.session, project_id=container.project_id
        )


@pytest.mark.parametrize(
    "statement",
    [
        select(Job.__table__.c.name),
        select(Job.name).where(select(HostRepair.__table__.c.host).exists()),
    ],
    ids=["table", "table within"],
)
def test_a_table_in_place_of_its_class_is_refused(statement: object) -> None:
    with pytest.raises(UnscopedError):
        Prepared(statement)  # type: ignore[arg-type]

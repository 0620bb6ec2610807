"""A transaction of one project reads and writes no rows of another one."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy import (
    Executable,
    Index,
    PrimaryKeyConstraint,
    Select,
    UniqueConstraint,
    Uuid,
    delete,
    exists,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased

from app.errors import NotFoundError
from app.jobs.models import Job
from app.platform.blobs import delete_blob, read_blob, write_blob
from app.platform.database.columns import Base, OfProject
from app.platform.database.projects import Project
from app.platform.database.task_runs import TaskRun
from app.platform.database.tenant_scope import COUNTS_EVERYWHERE, UnscopedError
from app.sessions.models.tables import Intake, Session, StoredReport
from tests.support.sessions import Stored, small_trace, store

if TYPE_CHECKING:
    from sqlalchemy import Table

    from app.platform.container import Container


_again = aliased(Session)

QUERIES: dict[str, Select[*tuple[Any, ...]]] = {
    "columns": select(Session.id),
    "entities": select(Session),
    "a join": select(Job.name, Session.number).join(Session, Session.job_id == Job.id),
    "an outer join": select(Session.id).select_from(Job).outerjoin(Session),
    "an alias": select(_again.id),
    "a subquery": select(select(Session.id).subquery().c.id),
    "a condition": select(Job.name).where(exists().where(Session.job_id == Job.id)),
    "an in": select(Session.id).where(Session.job_id.in_(select(Job.id))),
    "an expression": select(func.coalesce(Session.number, 0)),
    "a lock": select(Session.id).with_for_update(),
}


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_finds_nothing_of_another_project(
    container: Container, other: Container, query: Select[*tuple[Any, ...]]
) -> None:
    with container.uow() as tx:
        assert tx.session.execute(query).all() == []
    with other.uow() as tx:
        assert len(tx.session.execute(query).all()) == 1
    with container.everywhere().uow() as tx:
        assert len(tx.session.execute(query).all()) == 1


COUNTS: dict[str, Select[Any]] = {
    "of a table": select(func.count()).select_from(TaskRun),
    "of what a condition names": select(func.count()).where(TaskRun.state == "queued"),
    "of a column": select(func.count(TaskRun.id)),
    "within": select(select(func.count()).select_from(TaskRun).scalar_subquery()),
    "within, of what a condition names": select(
        select(func.count()).where(TaskRun.state == "queued").scalar_subquery()
    ),
}


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("query", COUNTS.values(), ids=COUNTS)
def test_counts_are_of_one_project(container: Container, query: Select[*tuple[Any, ...]]) -> None:
    with container.reading() as tx:
        assert tx.session.execute(query).scalar_one() == 0


@pytest.mark.usefixtures("foreign")
def test_a_count_over_all_projects_has_to_say_so(container: Container) -> None:
    with container.reading() as tx:
        everything = tx.session.execute(
            select(func.count()).select_from(TaskRun), execution_options=COUNTS_EVERYWHERE
        )
        assert everything.scalar_one() == 1


_jobs = Base.metadata.tables["job"]
_sessions = Base.metadata.tables["session"]

AROUND_THE_CLASSES: dict[str, Executable] = {
    "a table": select(_sessions),
    "columns of a table": select(_sessions.c.id),
    "a table's alias": select(_sessions.alias().c.id),
    "a count of a table": select(func.count()).select_from(_sessions),
    "an update of a table": update(_sessions).values(steps=0),
    "a delete from a table": delete(_sessions),
    "an insert into a table": insert(_jobs).values(name="x", project_id=1),
    "a table and a class": select(Session.id, _jobs.c.name),
    "an alias and a class": select(Session.id, _jobs.alias().c.name),
    "a table joined to a class": select(Session.id).join(_jobs, _jobs.c.id == Session.job_id),
    "a condition on a table": select(Session.id).where(_jobs.c.name == "secret"),
    "a subquery of a table": select(Session.id).where(Session.job_id.in_(select(_jobs.c.id))),
    "a table within, under its class": select(
        Session.id, select(_sessions.c.number).subquery().c.number
    ),
    "an insert of what is selected": insert(Job).from_select(["name"], select(Job.name)),
    "text": text("SELECT id FROM session"),
    "text with columns": text("SELECT id FROM session").columns(Session.id),
    "text as a class": select(Session).from_statement(text("SELECT * FROM session")),
}


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("statement", AROUND_THE_CLASSES.values(), ids=AROUND_THE_CLASSES)
def test_a_statement_that_takes_no_project_is_refused(
    container: Container, statement: Executable
) -> None:
    with container.uow() as tx, pytest.raises(UnscopedError):
        tx.session.execute(statement)


def test_statements_about_no_project_pass(container: Container) -> None:
    with container.uow() as tx:
        assert tx.session.execute(select(func.now())).scalar_one() == tx.now
        assert tx.session.execute(select(Project.__table__.c.name)).scalars().all() == ["default"]


def test_a_row_of_another_project_is_not_written(container: Container, other: Container) -> None:
    refused = pytest.raises(UnscopedError, match="a row of project")
    with refused, container.uow() as tx:
        tx.session.add(Job(name="planted", project_id=other.project_id))
    with other.reading() as tx:
        assert tx.session.execute(select(Job.name)).all() == []


def test_a_key_opens_nothing_of_another_project(container: Container, foreign: Stored) -> None:
    with container.uow() as tx:
        assert tx.session.get(Session, foreign.session) is None
        assert tx.session.get(TaskRun, foreign.run, with_for_update=True) is None


def test_updates_and_deletes_reach_nothing_of_another_project(
    container: Container, other: Container, foreign: Stored
) -> None:
    with container.uow() as tx:
        tx.session.execute(update(Session).values(steps=0))
        changed = update(TaskRun).where(TaskRun.id == foreign.run).values(attempt=9)
        assert tx.session.execute(changed.returning(TaskRun.id)).all() == []
    with other.reading() as tx:
        assert tx.session.execute(select(Session.steps)).scalar_one() > 0


def test_blobs_are_of_one_project(container: Container, other: Container) -> None:
    with other.uow() as tx:
        blob = write_blob(tx, [b"secret"])
    with container.uow() as tx:
        with pytest.raises(NotFoundError):
            list(read_blob(tx, blob))
        assert delete_blob(tx, blob) == 0
    with other.reading() as tx:
        assert list(read_blob(tx, blob)) == [b"secret"]


def test_added_rows_belong_to_the_transactions_project(other: Container) -> None:
    with other.uow() as tx:
        added = Job(name="added")
        tx.session.add(added)
        tx.session.execute(insert(Job).values(name="inserted"))
        tx.session.flush()
        found = tx.session.execute(select(Job.project_id)).scalars().all()
    assert found == [other.project_id] * 2


def test_the_database_refuses_a_row_between_two_projects(
    container: Container, foreign: Stored
) -> None:
    between = StoredReport(
        session_id=foreign.session, document_blob=uuid.uuid4(), heatmap_blob=uuid.uuid4()
    )
    refused = pytest.raises(IntegrityError, match="fk_report_project_id_session_id_session")
    with refused, container.uow() as tx:
        tx.session.add(between)


def test_two_projects_have_jobs_of_one_name(container: Container, other: Container) -> None:
    store(container, small_trace(), job="llm")
    store(other, small_trace(), job="llm")
    for one in (container, other):
        with one.reading() as tx:
            assert tx.session.execute(select(Job.name)).scalars().all() == ["llm"]


def test_no_unique_key_spans_projects() -> None:
    """Otherwise a name of another project would be refused, or block until its transaction ends."""
    for mapper in Base.registry.mappers:
        if not issubclass(mapper.class_, OfProject):
            continue
        table = cast("Table", inspect(mapper.class_).local_table)
        # Columns that identify a row of the project, or that the database generates.
        own = {"project_id"} | {
            column.name
            for column in table.columns
            if isinstance(column.type, Uuid) or column.identity is not None
        }
        for reference in table.foreign_key_constraints:
            own |= set(reference.column_keys)
        keys: list[UniqueConstraint | PrimaryKeyConstraint | Index] = [
            key
            for key in table.constraints
            if isinstance(key, UniqueConstraint | PrimaryKeyConstraint)
        ]
        keys += [index for index in table.indexes if index.unique]
        for unique in keys:
            assert own & {column.name for column in unique.columns}, (table.name, unique.name)


def test_a_process_container_opens_nothing_by_itself(container: Container) -> None:

    with pytest.raises(RuntimeError, match="of no project"):
        replace(container, scope=None).uow()


def test_every_table_of_a_project_refers_to_it_or_to_rows_that_do() -> None:
    for mapper in Base.registry.mappers:
        if not issubclass(mapper.class_, OfProject):
            continue
        table = inspect(mapper.class_).local_table
        for key in table.foreign_key_constraints:
            assert "project_id" in key.column_keys, key.name
    assert issubclass(Intake, OfProject)

"""Enqueued work is published after the commit, once, and not at all after a rollback."""

from __future__ import annotations

import contextlib
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete, func, select, text
from sqlalchemy.exc import InternalError

from app.access.models import DEFAULT_PROJECT_ID
from app.platform.database.task_runs import ANALYZE_SESSION, TaskRun
from app.platform.database.tenant_scope import Scope
from app.platform.database.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from app.platform.container import Container


@pytest.fixture
def published() -> list[tuple[uuid.UUID, str]]:
    return []


@pytest.fixture
def tx(container: Container, published: list[tuple[uuid.UUID, str]]) -> UnitOfWork:
    def publish(run_id: uuid.UUID, kind: str) -> None:
        # The receiver of a message must find the row, so it is read on another connection.
        with container.uow() as other:
            other.session.execute(select(TaskRun).where(TaskRun.id == run_id)).one()
        published.append((run_id, kind))

    return UnitOfWork(container.engine, publish, Scope(DEFAULT_PROJECT_ID))


def test_published_after_the_commit_and_once(
    tx: UnitOfWork, published: list[tuple[uuid.UUID, str]]
) -> None:
    subject = uuid.uuid4()
    with tx:
        first = tx.enqueue(ANALYZE_SESSION, subject)
        assert tx.enqueue(ANALYZE_SESSION, subject) == first
        other = tx.enqueue(ANALYZE_SESSION, uuid.uuid4())
        assert published == []
    assert published == [(first, ANALYZE_SESSION), (other, ANALYZE_SESSION)]


def test_nothing_is_published_after_a_rollback(
    tx: UnitOfWork, published: list[tuple[uuid.UUID, str]]
) -> None:
    with contextlib.suppress(InterruptedError), tx:
        tx.enqueue(ANALYZE_SESSION, uuid.uuid4())
        raise InterruptedError
    assert published == []


def test_reads_are_of_one_moment(container: Container) -> None:
    kept = select(TaskRun.id)
    with container.reading() as tx:
        assert tx.session.execute(kept).all() == []
        with container.uow() as other:
            other.enqueue(ANALYZE_SESSION, uuid.uuid4())
        assert tx.session.execute(kept).all() == []
        assert tx.now == tx.session.execute(select(func.now())).scalar_one()
    with container.reading() as tx:
        assert len(tx.session.execute(kept).all()) == 1


def test_what_is_written_afterwards_has_the_time_at_which_it_happened(
    container: Container,
) -> None:
    moment = datetime(2026, 11, 12, 7, tzinfo=UTC)
    then = container.at(moment)
    with then.uow() as tx, then.reading() as reads:
        assert tx.now == reads.now == moment
        assert tx.session.execute(select(func.now())).scalar_one() > moment
    with container.uow() as tx:
        assert tx.now > moment


def test_who_reads_cannot_write_and_leaves_the_connection_as_it_was(container: Container) -> None:
    with container.reading() as tx, pytest.raises(InternalError, match="read-only"):
        tx.session.execute(delete(TaskRun))
    with container.uow() as writing:
        writing.session.execute(delete(TaskRun))
        level = (
            writing.session.connection().execute(text("SHOW transaction_isolation")).scalar_one()
        )
    assert level == "read committed"

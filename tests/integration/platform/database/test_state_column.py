"""States are text in the database and members of an enumeration in Python; others are refused."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError

from app.platform.database.states import TaskState
from app.platform.database.task_runs import ANALYZE_SESSION, TaskRun
from tests.support.reads import read

if TYPE_CHECKING:
    from app.platform.container import Container
    from app.platform.database.unit_of_work import Reads


def test_a_state_is_read_as_the_member_that_was_written(container: Container) -> None:
    with container.uow() as tx:
        run = tx.enqueue(ANALYZE_SESSION, uuid.uuid4())

    def states(tx: Reads) -> tuple[TaskState, str]:
        found = tx.session.execute(select(TaskRun.state).where(TaskRun.state.in_(TaskState.OPEN)))
        stored = tx.session.connection().execute(text("SELECT state FROM task_run"))
        return found.scalar_one(), stored.scalar_one()

    found, stored = read(container, states)
    assert found is TaskState.QUEUED
    assert stored == "queued"
    with container.uow() as tx:
        row = tx.session.get_one(TaskRun, run)
        assert row.state is TaskState.QUEUED


def test_the_database_refuses_an_unknown_state(container: Container) -> None:
    with container.uow() as tx:
        tx.enqueue(ANALYZE_SESSION, uuid.uuid4())
    with pytest.raises(IntegrityError, match="ck_task_run_state"), container.uow() as tx:
        tx.session.execute(update(TaskRun).values(state="sealed"))

"""An attempt that the database interrupts by a restart does not count as failed."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, text, update

from app.installation.sweep import SweepResult, sweep
from app.platform.database.task_runs import ANALYZE_SESSION, TaskRun
from app.platform.settings import Settings
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper, claim, finish, renew
from app.sessions.models.tables import Session
from tests.support import postgres
from tests.support.project import build
from tests.support.sessions import session_row, small_trace, store, task_row
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.container import Claim, Container
    from app.platform.embedded.server import EmbeddedPostgres


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """Yield a server that these tests may restart."""
    started, directory = postgres.start_server()
    yield started
    postgres.stop_server(started, directory)


@pytest.fixture
def container(server: EmbeddedPostgres, tmp_path: Path) -> Iterator[Container]:
    with postgres.clone(server.url) as url:
        built = build(Settings(database_url=url, data_dir=tmp_path / "data", lease_renew_s=0.2))
        yield built
        built.close()


def _restart(server: EmbeddedPostgres) -> None:
    server.stop()
    server.start()


def _with_leases_of(container: Container, seconds: float) -> Container:
    return replace(container, settings=container.settings.model_copy(update={"lease_s": seconds}))


def test_a_worker_has_a_whole_lease_to_say_that_it_outlived_a_restart(
    container: Container, server: EmbeddedPostgres
) -> None:
    stored = store(container, small_trace())
    held = claim(container, stored.run)
    assert held is not None
    _restart(server)
    with container.uow() as tx:
        tx.session.execute(
            update(TaskRun)
            .where(TaskRun.id == stored.run)
            .values(lease_until=tx.now - timedelta(seconds=1))
        )
    assert sweep(container) == SweepResult()
    assert renew(container, held)
    with container.uow() as tx:
        finish(tx, held)


def test_attempts_that_the_database_ended_do_not_count(
    container: Container, server: EmbeddedPostgres
) -> None:
    hasty = _with_leases_of(container, 0.5)
    stored = store(hasty, small_trace())
    for _ in range(hasty.settings.max_attempts + 1):
        held = claim(hasty, stored.run)
        assert held is not None
        assert held.attempt == 1
        # The worker ends together with the server, as in a power failure.
        _restart(server)
        wait_for(lambda: sweep(hasty).expired, "end of the lease")
    assert task_row(hasty, stored).attempt == 0
    assert session_row(hasty, stored).state == "queued"


def test_work_that_the_database_left_is_given_back_as_soon_as_it_answers(
    container: Container, server: EmbeddedPostgres
) -> None:
    def work_and_lose_the_database(used: Container, _claim: Claim) -> None:
        server.stop()
        with used.uow() as tx:
            tx.session.execute(select(Session.id))

    kind = container.kinds[ANALYZE_SESSION]
    losing = replace(container, kinds={kind.name: replace(kind, run=work_and_lose_the_database)})
    stored = store(container, small_trace())
    keeper = LeaseKeeper(losing)
    assert not execute(losing, keeper, stored.run)
    # During this time, no message can be published.
    time.sleep(0.3)
    server.start()
    wait_for(lambda: task_row(container, stored).state == "queued", "work given back")
    assert task_row(container, stored).attempt == 0
    keeper.stop()


def test_an_overload_of_the_database_by_a_task_is_the_task_s_fault(
    container: Container,
) -> None:
    def ask_too_long(used: Container, _claim: Claim) -> None:
        with used.uow() as tx:
            tx.session.connection().execute(text("SET LOCAL statement_timeout = '10ms'"))
            tx.session.connection().execute(text("SELECT pg_sleep(10)"))

    kind = container.kinds[ANALYZE_SESSION]
    asking = replace(container, kinds={kind.name: replace(kind, run=ask_too_long)})
    stored = store(container, small_trace())
    assert execute(asking, LeaseKeeper(asking), stored.run)
    row = task_row(container, stored)
    assert (row.state, row.error_code) == ("dead", "task.internal_error")

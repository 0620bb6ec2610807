"""Plans on real workers that are killed, canceled or exceed the time limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from app.installation.sweep import sweep
from app.plans.requests import cancel_plan
from app.platform.database.task_runs import TaskRun
from app.platform.settings import Settings
from tests.support.plans import Asked, ask, long_spec, plan_row, small_spec
from tests.support.project import build
from tests.support.sessions import count_blobs
from tests.support.waiting import wait_for
from tests.support.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.container import Container


@pytest.fixture
def container(database_url: str, tmp_path: Path) -> Iterator[Container]:
    built = build(
        Settings(
            database_url=database_url,
            data_dir=tmp_path / "data",
            lease_s=4.0,
            alert_attempt_limit_s=3.0,
            lease_renew_s=0.5,
            republish_after_s=1.0,
            heartbeat_interval_s=0.2,
        )
    )
    yield built
    built.close()


def wait_for_state(container: Container, asked: Asked, state: str) -> None:
    def reached() -> bool:
        sweep(container)
        row = plan_row(container, asked.plan)
        if row.state == "failed" != state:
            raise AssertionError(f"the plan failed: {row.reason}")
        return row.state == state

    wait_for(reached, f"plan in state {state}")


def run_row(container: Container, asked: Asked) -> TaskRun:
    with container.uow() as tx:
        return tx.session.execute(select(TaskRun).where(TaskRun.id == asked.run)).scalar_one()


def test_worker_killed_in_the_middle_of_a_search(container: Container, tmp_path: Path) -> None:
    asked = ask(container, long_spec(), time_limit_s=2)
    with WorkerProcess(container, tmp_path / "log") as worker:
        wait_for_state(container, asked, "planning")
        worker.kill()
    assert plan_row(container, asked.plan).state == "planning"
    assert count_blobs(container) == 0

    with WorkerProcess(container, tmp_path / "log"):
        wait_for_state(container, asked, "planned")
    row, run = plan_row(container, asked.plan), run_row(container, asked)
    assert (run.state, run.attempt, count_blobs(container)) == ("done", 2, 1)
    # After the time limit: the best template so far, with its proven gap.
    assert row.gap is not None
    assert row.outline is not None


def test_search_that_is_canceled_stores_nothing_and_frees_its_worker(
    container: Container, tmp_path: Path
) -> None:
    asked = ask(container, long_spec(), time_limit_s=200)
    with WorkerProcess(container, tmp_path / "log") as worker:
        wait_for_state(container, asked, "planning")
        cancel_plan(container, asked.plan)
        assert plan_row(container, asked.plan).state == "canceled"
        after = ask(container, small_spec())
        wait_for_state(container, after, "planned")
        assert worker.terminate() == 0
    assert "nothing stored" in (tmp_path / "log").read_text()
    assert plan_row(container, asked.plan).state == "canceled"
    assert count_blobs(container) == 1
    assert sweep(container).expired == 0

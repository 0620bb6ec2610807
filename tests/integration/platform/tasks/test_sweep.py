"""A pass of the sweeper repairs lost messages and tasks of killed workers, and nothing else."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, insert, select, update

from app.installation.models import WorkerHeartbeat
from app.installation.sweep import HEAD, SWEEP_LOCK, SweepResult, sweep
from app.platform.container import Container
from app.platform.database.task_runs import TaskRun
from app.platform.tasks.runs import claim, give_back
from tests.support.sessions import Stored, session_row, small_trace, store, task_row

NOTHING = SweepResult()


@pytest.fixture
def published() -> list[uuid.UUID]:
    """Return the list of messages that the container `listening` would publish."""
    return []


@pytest.fixture
def listening(container: Container, published: list[uuid.UUID]) -> Container:
    """Return the container with a unit of work that lists messages instead of publishing them."""
    return replace(container, publish=lambda run_id, _: published.append(run_id))


@pytest.fixture
def hasty(listening: Container) -> Container:
    """Return `listening` with short leases, which expire after the start of the server."""
    return replace(listening, settings=listening.settings.model_copy(update={"lease_s": 0.1}))


def _age(container: Container, stored: Stored, seconds: float) -> None:
    with container.uow() as tx:
        then = tx.now - timedelta(seconds=seconds)
        tx.session.execute(
            update(TaskRun)
            .where(TaskRun.id == stored.run)
            .values(created_at=then, published_at=TaskRun.published_at - timedelta(seconds=seconds))
        )


def _end_lease(container: Container, stored: Stored) -> None:
    with container.uow() as tx:
        tx.session.execute(
            update(TaskRun)
            .where(TaskRun.id == stored.run)
            .values(lease_until=tx.now - timedelta(milliseconds=1))
        )


def test_fresh_work_is_left_alone(listening: Container) -> None:
    queued = store(listening, small_trace())
    running = store(listening, small_trace())
    claim(listening, running.run)
    assert sweep(listening) == NOTHING
    assert task_row(listening, queued).published_at is None
    assert task_row(listening, running).state == "running"


def test_lost_message_is_published_again_after_a_while_and_not_at_every_pass(
    listening: Container, published: list[uuid.UUID]
) -> None:
    stored = store(listening, small_trace())
    published.clear()
    _age(listening, stored, listening.settings.republish_after_s + 1)
    assert sweep(listening) == SweepResult(republished=1)
    assert published == [stored.run]
    assert sweep(listening) == NOTHING
    _age(listening, stored, listening.settings.republish_after_s + 1)
    assert sweep(listening) == SweepResult(republished=1)


def test_only_the_head_of_a_long_queue_is_published_again(
    listening: Container, published: list[uuid.UUID]
) -> None:
    first = store(listening, small_trace())
    _age(listening, first, 7200)
    with listening.uow() as tx:
        tx.session.execute(
            insert(TaskRun),
            [
                {
                    "id": uuid.uuid4(),
                    "kind": "analyze_session",
                    "subject_id": uuid.uuid4(),
                    "state": "queued",
                    "attempt": 0,
                    "created_at": tx.now - timedelta(seconds=3600 - number),
                }
                for number in range(HEAD + 10)
            ],
        )
    published.clear()
    assert sweep(listening) == SweepResult(republished=HEAD)
    assert first.run in published
    assert sweep(listening) == NOTHING


def test_work_of_a_killed_worker_is_queued_again(
    hasty: Container, published: list[uuid.UUID]
) -> None:
    stored = store(hasty, small_trace())
    claim(hasty, stored.run)
    _end_lease(hasty, stored)
    published.clear()
    assert sweep(hasty) == SweepResult(expired=1)
    assert published == [stored.run]
    row = task_row(hasty, stored)
    assert (row.state, row.attempt, row.claim_token) == ("queued", 1, None)
    assert session_row(hasty, stored).state == "queued"


def test_task_that_killed_its_last_worker_is_dead_with_the_reason(
    hasty: Container, published: list[uuid.UUID]
) -> None:
    stored = store(hasty, small_trace())
    for _ in range(hasty.settings.max_attempts):
        assert claim(hasty, stored.run) is not None
        _end_lease(hasty, stored)
        published.clear()
        result = sweep(hasty)
    assert result == SweepResult(dead=1)
    assert published == []
    row = task_row(hasty, stored)
    assert (row.state, row.error_code) == ("dead", "task.worker_killed")
    session = session_row(hasty, stored)
    assert (session.state, session.reason_code) == ("failed", "task.worker_killed")
    assert session.reason is not None
    assert "3 attempts" in session.reason


def test_stopped_workers_do_not_use_up_attempts(listening: Container) -> None:
    stored = store(listening, small_trace())
    for _ in range(2 * listening.settings.max_attempts):
        taken = claim(listening, stored.run)
        assert taken is not None
        give_back(listening, taken)
    assert task_row(listening, stored).state == "queued"


def test_row_that_its_worker_is_finishing_is_left_to_it(hasty: Container) -> None:
    stored = store(hasty, small_trace())
    claim(hasty, stored.run)
    _end_lease(hasty, stored)
    with hasty.uow() as tx:
        tx.session.execute(select(TaskRun).where(TaskRun.id == stored.run).with_for_update())
        assert sweep(hasty) == NOTHING
    assert task_row(hasty, stored).state == "running"


def test_two_sweepers_do_not_both_sweep(listening: Container) -> None:
    stored = store(listening, small_trace())
    _age(listening, stored, listening.settings.republish_after_s + 1)
    with listening.uow() as other:
        other.session.execute(select(func.pg_advisory_xact_lock(SWEEP_LOCK)))
        assert sweep(listening) == NOTHING
    assert sweep(listening) == SweepResult(republished=1)


def test_workers_not_seen_for_long_are_forgotten(listening: Container) -> None:
    with listening.uow() as tx:
        for age in (timedelta(minutes=1), timedelta(hours=2)):
            tx.session.add(
                WorkerHeartbeat(
                    id=uuid.uuid4(), host="node", pid=1, queues="io", seen_at=tx.now - age
                )
            )
    assert sweep(listening) == SweepResult(forgotten=1)
    with listening.uow() as tx:
        (left,) = tx.session.execute(select(WorkerHeartbeat)).scalars()
        assert tx.now - left.seen_at < timedelta(hours=1)

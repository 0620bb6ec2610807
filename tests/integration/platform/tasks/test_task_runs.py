"""The protocol of `app.platform.tasks.runs`, step by step, and with each race."""

from __future__ import annotations

import contextlib
import threading
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select, text, update

from app.errors import LostClaimError
from app.platform.container import Claim, TaskError
from app.platform.database.task_runs import ANALYZE_SESSION, TaskRun
from app.platform.tasks.runs import claim, fail, finish, give_back, interrupt, renew
from app.sessions.models.tables import Session
from tests.support.sessions import session_row, small_trace, store, task_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.platform.container import Container
    from tests.support.sessions import Stored

ERROR = TaskError("test.error", "It did not work.")


@pytest.fixture
def stored(container: Container) -> Stored:
    return store(container, small_trace())


@pytest.fixture
def held(container: Container, stored: Stored) -> Claim:
    taken = claim(container, stored.run)
    assert taken is not None
    return taken


def _end_lease(container: Container, stored: Stored) -> None:
    with container.uow() as tx:
        tx.session.execute(
            update(TaskRun)
            .where(TaskRun.id == stored.run)
            .values(lease_until=tx.now - timedelta(seconds=1))
        )


def _all_at_once(call: Callable[[], object], callers: int) -> list[object]:
    results: list[object] = []
    ready = threading.Barrier(callers)

    def caller() -> None:
        ready.wait()
        results.append(call())

    threads = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_work_is_gone_with_the_transaction_that_caused_it(container: Container) -> None:
    with contextlib.suppress(InterruptedError), container.uow() as tx:
        tx.enqueue(ANALYZE_SESSION, uuid.uuid4())
        raise InterruptedError
    with container.uow() as tx:
        assert tx.session.execute(select(func.count()).select_from(TaskRun)).scalar_one() == 0


def test_open_work_on_a_subject_is_one_task_run(container: Container, stored: Stored) -> None:
    def enqueue() -> uuid.UUID:
        with container.uow() as tx:
            return tx.enqueue(ANALYZE_SESSION, stored.session)

    assert set(_all_at_once(enqueue, 4)) == {stored.run}


def test_work_on_a_subject_whose_work_is_done_is_another_task_run(
    container: Container, stored: Stored, held: Claim
) -> None:
    with container.uow() as tx:
        finish(tx, held)
    with container.uow() as tx:
        assert tx.enqueue(ANALYZE_SESSION, stored.session) != stored.run


def test_claim_counts_the_attempt_and_tells_the_session(
    container: Container, stored: Stored, held: Claim
) -> None:
    row = task_row(container, stored)
    assert (row.state, row.attempt, row.claim_token) == ("running", 1, held.token)
    assert held.subject_id == stored.session
    assert session_row(container, stored).state == "analyzing"
    with container.uow() as tx:
        assert row.lease_until is not None
        left_s = (row.lease_until - tx.now).total_seconds()
    assert 0 < left_s <= container.settings.lease_s


def test_of_many_claims_at_once_one_gets_the_task(container: Container, stored: Stored) -> None:
    taken = _all_at_once(lambda: claim(container, stored.run), 6)
    assert sum(one is not None for one in taken) == 1
    assert task_row(container, stored).attempt == 1


def test_nothing_to_claim(container: Container, stored: Stored, held: Claim) -> None:
    assert claim(container, uuid.uuid4()) is None
    assert claim(container, stored.run) is None
    with container.uow() as tx:
        finish(tx, held)
    assert claim(container, stored.run) is None


def test_renewing_moves_the_end_of_the_lease(
    container: Container, stored: Stored, held: Claim
) -> None:
    _end_lease(container, stored)
    assert renew(container, held)
    with container.uow() as tx:
        lease_until = task_row(container, stored).lease_until
        assert lease_until is not None
        assert lease_until > tx.now


@pytest.mark.parametrize(
    "step",
    [
        renew,
        give_back,
        lambda container, held: fail(container, held, ERROR),
        interrupt,
    ],
)
def test_lost_claim_moves_nothing(
    container: Container, stored: Stored, held: Claim, step: Callable[[Container, Claim], bool]
) -> None:
    assert give_back(container, held)
    again = claim(container, stored.run)
    assert again is not None
    before = task_row(container, stored)

    assert not step(container, held)

    after = task_row(container, stored)
    assert (after.state, after.claim_token) == ("running", again.token)
    assert after.lease_until == before.lease_until
    assert session_row(container, stored).state == "analyzing"


def test_lost_claim_rolls_the_result_back(
    container: Container, stored: Stored, held: Claim
) -> None:
    give_back(container, held)
    claim(container, stored.run)

    def store_result() -> None:
        with container.uow() as tx:
            tx.session.execute(
                update(Session).where(Session.id == stored.session).values(state="analyzed")
            )
            finish(tx, held)

    with pytest.raises(LostClaimError):
        store_result()
    assert session_row(container, stored).state == "analyzing"
    assert task_row(container, stored).state == "running"


def test_of_two_finishes_at_once_one_is_stored(
    container: Container, stored: Stored, held: Claim
) -> None:
    def try_to_finish() -> bool:
        try:
            with container.uow() as tx:
                finish(tx, held)
                tx.session.execute(
                    update(Session)
                    .where(Session.id == stored.session)
                    .values(operations=Session.operations + 1)
                )
        except LostClaimError:
            return False
        return True

    before = session_row(container, stored).operations
    assert sorted(_all_at_once(try_to_finish, 2), key=bool) == [False, True]
    assert session_row(container, stored).operations == before + 1
    row = task_row(container, stored)
    assert (row.state, row.claim_token, row.lease_until) == ("done", None, None)
    assert row.finished_at is not None


def test_given_back_work_does_not_count_as_an_attempt(
    container: Container, stored: Stored, held: Claim
) -> None:
    assert give_back(container, held)
    row = task_row(container, stored)
    assert (row.state, row.attempt, row.claim_token) == ("queued", 0, None)
    assert session_row(container, stored).state == "queued"


def test_failed_work_is_dead_at_once_and_says_why(
    container: Container, stored: Stored, held: Claim
) -> None:
    assert fail(container, held, ERROR)
    row = task_row(container, stored)
    assert (row.state, row.error_code, row.error) == ("dead", ERROR.code, ERROR.sentence)
    session = session_row(container, stored)
    assert (session.state, session.reason_code) == ("failed", ERROR.code)
    assert session.reason == ERROR.sentence
    assert claim(container, stored.run) is None


def test_interruptions_by_the_database_never_count_as_failures(
    container: Container, stored: Stored
) -> None:
    for _ in range(2 * container.settings.max_attempts):
        taken = claim(container, stored.run)
        assert taken is not None
        assert taken.attempt == 1
        assert session_row(container, stored).state == "analyzing"
        assert interrupt(container, taken)
        row = task_row(container, stored)
        assert (row.state, row.attempt, row.claim_token) == ("queued", 0, None)
    assert session_row(container, stored).state == "queued"


def test_every_change_of_a_session_notifies(container: Container, stored: Stored) -> None:
    with container.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.autocommit = True
        driver.execute("LISTEN paceline_session")
        taken = claim(container, stored.run)
        assert taken is not None
        give_back(container, taken)
        seen = [notice.payload for notice in driver.notifies(timeout=10, stop_after=2)]
        driver.autocommit = False
    assert seen == [str(stored.session)] * 2


def test_leases_are_in_the_time_of_the_database(container: Container, held: Claim) -> None:
    with container.uow() as tx:
        assert (
            tx.session.connection()
            .execute(
                text(
                    "SELECT lease_until - now() BETWEEN interval '50 s' AND interval '60 s' "
                    "FROM task_run WHERE id = :id"
                ),
                {"id": held.run_id},
            )
            .scalar_one()
        )

"""A worker leaves what a later version stored to a worker of that version."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest
from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from app.analysis.generation import READS
from app.analysis.pulse import detector_state
from app.analysis.pulse.detector import Detector
from app.analysis.trace import storage
from app.errors import LostClaimError
from app.installation.readiness import open_work
from app.jobs.models import Job
from app.platform.blobs import BlobPart
from app.platform.database.states import InboxKind
from app.platform.database.task_runs import ANALYZE_SESSION
from app.platform.tasks import runs
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper, claim, finish, next_runs, take_from_older
from app.pulse.advance import advance_pulses, claim_attempt
from app.pulse.models import PulseState
from app.sessions.models.tables import InboxItem, Session
from tests.support.sessions import session_row, small_trace, store, task_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container

LATER = READS + 1
# What rows need, and claims by version 0.2.0, which does not set `paceline.reads`.
NEED: LiteralString = (
    "UPDATE task_run SET needs = %(needs)s; UPDATE inbox SET needs = %(needs)s;"
    " UPDATE pulse_state SET needs = %(needs)s"
)
CLAIMS: tuple[LiteralString, ...] = (
    "UPDATE task_run SET state = 'running', attempt = 1, claim_token = %s, lease_until = now()",
    "UPDATE inbox SET tries = tries + 1, claim_token = %s, lease_until = now()",
    "UPDATE pulse_state SET tries = tries + 1, claim_token = %s, lease_until = now()",
)


@pytest.fixture
def keeper(container: Container) -> Iterator[LeaseKeeper]:
    made = LeaseKeeper(container)
    yield made
    made.stop()


@pytest.fixture
def released(database_url: str) -> Iterator[psycopg.Connection]:
    """Yield a connection as version 0.2.0 makes it."""
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        yield connection


def pulse_body(container: Container, needs: int = 1) -> int:
    """Store a body of a pulse that cannot be read, and return the id of its job."""
    with container.uow() as tx:
        tx.session.execute(insert(Job).values(name="beats").on_conflict_do_nothing())
        job_id = tx.session.execute(select(Job.id).where(Job.name == "beats")).scalar_one()
        tx.session.add(
            InboxItem(
                kind=InboxKind.PULSE,
                job_id=job_id,
                attempt=1,
                producer="",
                number=0,
                sha256=bytes(32),
                final=False,
                body_bytes=7,
                body=b"rubbish",
                needs=needs,
            )
        )
    return job_id


def test_data_of_a_later_version_are_left_to_it_and_damaged_data_are_not(
    container: Container, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(storage, "WRITES", LATER)
        later = store(container, small_trace())
    damaged = store(container, small_trace())
    with container.uow() as tx:
        blob = tx.session.get_one(Session, damaged.session).trace_blob
        tx.session.execute(
            update(BlobPart).where(BlobPart.blob_id == blob).values(data=b"noise" * 9)
        )
    for stored in (later, damaged):
        execute(container, keeper, stored.run)
    run, session = task_row(container, later), session_row(container, later)
    assert (run.state, run.attempt, run.needs, session.state) == ("queued", 0, LATER, "queued")
    assert session_row(container, damaged).reason_code == "trace.unreadable_blob"
    # This version does not claim the run again, and counts it.
    assert (claim(container, later.run), next_runs(container, "analysis")) == (None, [])
    with container.everywhere().reading() as tx:
        assert open_work(tx, container.kinds).newer_tasks == 1


@pytest.mark.parametrize("needs", [1, LATER])
def test_version_0_2_0_cannot_claim_what_it_does_not_read(
    container: Container, released: psycopg.Connection, needs: int
) -> None:
    store(container, small_trace())
    pulse_body(container)
    claim_attempt(container)
    psycopg.ClientCursor(released).execute(NEED, {"needs": needs})
    claimed = [released.execute(claims, (uuid.uuid4(),)).rowcount for claims in CLAIMS]
    assert claimed == [1 if needs == 1 else 0] * len(CLAIMS)


def test_an_analysis_that_an_earlier_version_queues_needs_what_its_session_needs(
    container: Container, released: psycopg.Connection
) -> None:
    stored = store(container, small_trace())
    released.execute("UPDATE session SET needs = %s", (LATER,))
    released.execute("DELETE FROM task_run")
    released.execute(
        "INSERT INTO task_run (project_id, id, kind, subject_id, state, attempt)"
        " VALUES (1, %s, %s, %s, 'queued', 0)",
        (stored.run, ANALYZE_SESSION, stored.session),
    )
    assert task_row(container, stored).needs == LATER


def test_a_worker_loses_the_analysis_to_which_a_later_one_adds_chunks(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = store(container, small_trace())
    held = claim(container, stored.run)
    assert held is not None
    with container.uow() as tx:
        take_from_older(container, tx, ANALYZE_SESSION, stored.session)
    assert task_row(container, stored).claim_token == held.token
    monkeypatch.setattr(runs, "WRITES", LATER)
    with container.uow() as tx:
        take_from_older(container, tx, ANALYZE_SESSION, stored.session)
    run = task_row(container, stored)
    assert (run.state, run.attempt, run.needs) == ("queued", 0, LATER)
    assert session_row(container, stored).state == "queued"
    with pytest.raises(LostClaimError), container.uow() as tx:
        finish(tx, held)


def test_the_state_of_a_pulse_of_a_later_version_is_kept_for_it(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = pulse_body(container)
    with monkeypatch.context() as patch:
        patch.setattr(detector_state, "WRITES", LATER)
        state = detector_state.to_bytes(Detector())
    with container.uow() as tx:
        tx.session.add(PulseState(job_id=job_id, attempt=1, state=state))
    assert advance_pulses(container) == 0
    with container.uow() as tx:
        [row] = tx.session.execute(select(PulseState)).scalars()
        bodies = tx.session.execute(select(InboxItem.id)).all()
    assert (row.state, row.needs, row.tries, row.claim_token) == (state, LATER, 0, None)
    assert len(bodies) == 1
    assert claim_attempt(container) is None


def test_a_body_of_a_later_version_takes_the_attempt_from_a_worker(container: Container) -> None:
    pulse_body(container)
    assert claim_attempt(container) is not None
    pulse_body(container, LATER)
    with container.uow() as tx:
        [row] = tx.session.execute(select(PulseState)).scalars()
    assert (row.needs, row.claim_token) == (LATER, None)
    assert claim_attempt(container) is None

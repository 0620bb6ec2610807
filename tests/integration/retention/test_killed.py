"""A killed sweeper leaves only partial work that the next sweeper completes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select, update

from app.access.moves import prune_projects
from app.platform.blobs import BlobPart, write_blob
from app.retention.delete import delete_job
from app.retention.models import DoomedBlob, Keep, Retention, RetentionRules
from app.retention.rules import keep_to_rules, set_rules
from app.sessions.models.tables import Session, StoredReport
from tests.support.sessions import count_blobs, small_trace, store
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from app.platform.container import Container

SESSIONS: Final = 80
# Small transactions, so that the sweeper can be killed between many of them.
SWEEP: Final = """
from app.bootstrap import build
from app.access import moves
from app.retention import rules
from app.platform.settings import Settings
rules.ROWS = rules.PARTS = moves.PARTS = moves.JOBS = 1
container = build(Settings(), application_name="sweeper of a test")
while True:
    moves.prune_projects(container)
    rules.keep_to_rules(container)
"""


def _many(container: Container) -> None:
    for _ in range(SESSIONS):
        stored = store(container, small_trace())
        with container.uow() as tx:
            tx.session.execute(
                update(Session)
                .where(Session.id == stored.session)
                .values(state="analyzed", received_at=tx.now - timedelta(days=9))
            )
            tx.session.add(
                StoredReport(
                    session_id=stored.session,
                    document_blob=write_blob(tx, [uuid.uuid4().bytes]),
                    heatmap_blob=write_blob(tx, [uuid.uuid4().bytes]),
                )
            )


def _traces(container: Container) -> int:
    with container.everywhere().reading() as tx:
        query = select(func.count()).where(Session.trace_blob.is_not(None))
        return tx.session.execute(query).scalar_one()


def _kill_in_the_middle(container: Container) -> None:
    """Run sweepers, each of which is killed after a few deletions."""
    environment = os.environ | container.settings.environment()
    everywhere = container.everywhere()
    for _ in range(2):
        before = count_blobs(everywhere)
        process = subprocess.Popen([sys.executable, "-c", SWEEP], env=environment)  # noqa: S603

        def some_are_gone(before: int = before) -> bool:
            return count_blobs(everywhere) < before

        wait_for(some_are_gone, "work of a sweeper")
        process.kill()
        process.wait()


def test_retention(container: Container) -> None:
    _many(container)
    set_rules(container, RetentionRules(traces=Keep(days=1)))
    _kill_in_the_middle(container)
    with container.everywhere().uow() as tx:
        tx.session.execute(update(Retention).values(looked_at=None))
    keep_to_rules(container)
    assert _traces(container) == 0
    # Only the reports are left, and no row of the list of deletable bytes.
    assert count_blobs(container) == 2 * SESSIONS
    with container.everywhere().reading() as tx:
        assert not tx.session.execute(select(DoomedBlob)).all()
        assert (
            tx.session.execute(select(func.count()).select_from(StoredReport)).scalar() == SESSIONS
        )


def test_deleting(container: Container) -> None:
    _many(container)
    delete_job(container, "llm")
    _kill_in_the_middle(container)
    prune_projects(container)
    with container.everywhere().reading() as tx:
        for table in (Session, StoredReport, BlobPart):
            assert not tx.session.execute(select(func.count()).select_from(table)).scalar()

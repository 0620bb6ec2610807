"""What rules see of sessions, read from their verdicts, and of hangs; when these are over."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Select, func, select, update

from app.alerts.facts import Facts, HangFacts, facts_of
from app.analysis.report.verdict import SessionVerdict
from app.db.documents import open_hang
from app.db.models.noticed import StoredHang
from app.db.models.sessions import Job, Session, StoredVerdict

if TYPE_CHECKING:
    from sqlalchemy import Row

    from app.db.unit_of_work import Reads, UnitOfWork

# Culprits that a message names.
_NAMED: Final = 6


@dataclass(frozen=True, slots=True)
class FactsRow:
    """A row of `sessions_with_facts`, where it was read as JSON."""

    document: SessionVerdict
    id: uuid.UUID
    name: str
    attempt: int
    number: int
    received_at: datetime
    labels: dict[str, str] | None


def sessions_with_facts() -> Select[Any]:
    """Return the query of sessions that have a verdict document; `read_facts` takes it."""
    return (
        select(
            StoredVerdict.document,
            Session.id,
            Job.name,
            Session.attempt,
            Session.number,
            Session.received_at,
            Session.labels,
        )
        .select_from(Session)
        .join(Job, Job.id == Session.job_id)
        .join(StoredVerdict, StoredVerdict.session_id == Session.id)
    )


def read_facts(tx: Reads, query: Select[Any]) -> list[Facts]:
    """Return the facts of the sessions of a query that `sessions_with_facts` began."""
    return [facts_of_row(row) for row in tx.session.execute(query)]


def facts_of_row(row: Row[Any] | FactsRow) -> Facts:
    """Return the facts of a row of such a query."""
    return facts_of(
        row.document,
        session=row.id,
        job=row.name,
        attempt=row.attempt,
        number=row.number,
        received_at=row.received_at,
        labels=row.labels or {},
    )


def latest_hang(tx: Reads, job_id: int) -> HangFacts | None:
    """Return a job's latest hang with a culprit, over or not."""
    row = tx.session.execute(
        select(StoredHang)
        .where(StoredHang.job_id == job_id, StoredHang.culprits > 0)
        .order_by(StoredHang.created_at.desc())
        .limit(1)
    ).scalar()
    if row is None:
        return None
    verdict = open_hang(row.document).verdict
    named = [f"{one.rank}{one.place and f' ({one.place})'}" for one in verdict.culprits]
    more = len(named) - _NAMED
    culprits = ", ".join(named[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    return HangFacts(
        id=row.id,
        since=row.since,
        created_at=row.created_at,
        changed_at=row.changed_at,
        over_at=row.over_at,
        ranks=row.ranks,
        waiting=row.waiting,
        confidence=row.confidence,
        sentence=row.sentence,
        culprits=culprits,
        remedy=verdict.remedy,
    )


def end_hangs(tx: UnitOfWork, job_id: int) -> None:
    """Note that a job's hangs are over: a session came after their files, or the job ended."""
    came = (
        select(func.min(Session.received_at))
        .where(Session.job_id == job_id, Session.received_at > StoredHang.changed_at)
        .scalar_subquery()
    )
    finished = (
        select(Job.finished_at)
        .where(Job.id == job_id, Job.finished_at > StoredHang.changed_at)
        .scalar_subquery()
    )
    tx.session.execute(
        update(StoredHang)
        .where(StoredHang.job_id == job_id, StoredHang.over_at.is_(None))
        # the earlier of both, where one is there
        .values(over_at=func.least(came, finished))
        .execution_options(synchronize_session=False)
    )


def say_over(tx: UnitOfWork, job_id: int, at: datetime, by: str) -> None:
    """Note that a person said that a job's hangs are over."""
    tx.session.execute(
        update(StoredHang)
        .where(StoredHang.job_id == job_id, StoredHang.over_at.is_(None))
        .values(over_at=at, over_by=by)
        .execution_options(synchronize_session=False)
    )

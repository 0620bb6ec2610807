"""What rules see of sessions, read from their verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, select

from app.alerts.facts import Facts, facts_of
from app.db.models.sessions import Job, Session, StoredVerdict

if TYPE_CHECKING:
    from sqlalchemy import Row

    from app.db.unit_of_work import Reads


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


def facts_of_row(row: Row[Any]) -> Facts:
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

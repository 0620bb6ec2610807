"""What the analysis of a session leaves for alerts, without the analysis."""

from __future__ import annotations

from app.incidents.evaluate import look
from app.incidents.models.facts import Facts
from app.incidents.store import group_of_job
from app.platform.container import Container
from app.platform.database.unit_of_work import UnitOfWork
from app.sessions.models.tables import Session, StoredVerdict
from benchmarks.support.verdicts import verdict_with


def evaluate_session(container: Container, tx: UnitOfWork, job_id: int, found: Facts) -> None:
    """Store what the analysis of a session leaves for alerts, and evaluate it."""
    tx.session.add(
        Session(
            id=found.session,
            job_id=job_id,
            attempt=found.attempt,
            number=found.number,
            content_sha256=found.session.bytes,
            state="analyzed",
            meta={"labels": dict(found.labels)},
            labels=dict(found.labels),
            dp=2,
            pp=2,
            tp=1,
            cp=1,
            vpp=1,
            world=4,
            trace_format="ndjson",
            body_bytes=0,
            operations=0,
            steps=12,
            trace_blob=found.session,
            received_at=found.received_at,
        )
    )
    tx.session.flush()
    tx.session.add(StoredVerdict(session_id=found.session, document=verdict_with(found)))
    tx.session.flush()
    look(container, tx, group_of_job(tx, job_id))

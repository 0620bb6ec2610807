"""Use case: let a job's rules look at what came, or at the time that passed."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from app.alerts.evaluate import evaluate, next_look
from app.alerts.facts import FACTS, facts_of
from app.alerts.states import IncidentState
from app.db.models.alerts import AlertFacts
from app.db.models.sessions import Job, Session
from app.services.alerts.machines.leads import settle, without_held
from app.services.alerts.store import (
    group_of_job,
    load_job,
    load_rules,
    lock_group,
    save_change,
    timing,
)

if TYPE_CHECKING:
    from app.analysis.report.document import Report
    from app.db.models.alerts import AlertGroup
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container


def evaluate_session(
    container: Container,
    tx: UnitOfWork,
    session_id: uuid.UUID,
    report: Report | None,
) -> None:
    """Keep the facts of a session and look at its job, in the transaction that stores its result.

    Parameters
    ----------
    container : Container
    tx : UnitOfWork
    session_id : UUID
    report : Report or None
        None where there is none: then the session only says that its job lives.
    """
    row = tx.session.execute(
        select(
            Session.job_id,
            Session.attempt,
            Session.number,
            Session.received_at,
            Session.meta,
            Job.name,
        )
        .join(Job, Job.id == Session.job_id)
        .where(Session.id == session_id)
    ).one()
    group = group_of_job(tx, row.job_id)
    if report is not None:
        facts = facts_of(
            report,
            session=session_id,
            job=row.name,
            attempt=row.attempt,
            number=row.number,
            received_at=row.received_at,
            labels=row.meta.get("labels") or {},
        )
        stored = FACTS.dump_python(facts, mode="json")
        tx.session.execute(
            insert(AlertFacts)
            .values(
                session_id=session_id,
                job_id=row.job_id,
                received_at=row.received_at,
                document=stored,
            )
            .on_conflict_do_update(index_elements=["session_id"], set_={"document": stored})
        )
    look(container, tx, group)


def look_at_group(container: Container, group_id: uuid.UUID) -> bool:
    """Look at a job because time passed or a rule changed; False where it is not due."""
    with container.uow() as tx:
        group = lock_group(tx, group_id, skip_locked=True)
        if group is None or group.look_at is None or group.look_at > tx.now:
            return False
        look(container, tx, group)
    return True


def look(container: Container, tx: UnitOfWork, group: AlertGroup) -> None:
    """Evaluate a job whose group is locked, and write what changed."""
    rules = load_rules(tx)
    job = load_job(tx, group)
    intervals = timing(container.settings)
    changes = evaluate(job, rules, tx.now, uuid.uuid4)
    changes = without_held(tx, job.incidents, changes)
    for change in changes:
        save_change(tx, group, change, intervals)
    incidents = {incident.id: incident for incident in job.incidents}
    incidents |= {change.incident.id: change.incident for change in changes}
    settle(tx, incidents.values())
    left = [found for found in incidents.values() if found.state is not IncidentState.RESOLVED]
    group.look_at = next_look(replace(job, incidents=left), rules, tx.now)

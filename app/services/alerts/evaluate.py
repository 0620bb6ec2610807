"""Use case: let a job's rules look at what came, or at the time that passed."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import select

from app.alerts.evaluate import evaluate, next_look
from app.alerts.states import IncidentState
from app.db.models.sessions import Session
from app.services.alerts.facts import end_hangs
from app.services.alerts.machines.leads import settle, without_held
from app.services.alerts.notices import judge_notices
from app.services.alerts.store import (
    group_of_job,
    load_job,
    load_rules,
    lock_group,
    save_change,
    timing,
)

if TYPE_CHECKING:
    from app.db.models.alerts import AlertGroup
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container


def evaluate_session(container: Container, tx: UnitOfWork, session_id: uuid.UUID) -> None:
    """Look at the job of a session, in the transaction that stores what its analysis brought."""
    job_id = tx.session.execute(select(Session.job_id).where(Session.id == session_id)).scalar_one()
    look(container, tx, group_of_job(tx, job_id))


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
    end_hangs(tx, group.job_id)
    judge_notices(tx, group.job_id)
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

"""What is said about jobs that hang: an event for each incident, within no limit of machines.

Nothing is done to a machine, so that only the kill switch and a person who has the incident in hand
hold it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import or_, select

from app.access.audit import Action, record
from app.actions.kinds.event import EventType
from app.actions.kinds.kind import Limit
from app.actions.kinds.registry import KINDS
from app.actions.models import ActionMode, ActionPolicy, ActionState, MachineAction
from app.actions.store import audit_name, order
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import HANG_CAUSE, HangFacts
from app.incidents.models.tables import AlertGroup, AlertIncident, IncidentState
from app.incidents.store import incident_of
from app.jobs.models import Job
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.identity import INSTALLATION

# Jobs that are looked at in a pass, those that hang for longest first. The others are looked at in
# the next ones: who was is not again until something changes.
MAX_JOBS: Final = 200


@dataclass(frozen=True, slots=True)
class _Hanging:
    """An incident of a job that hangs."""

    incident: Incident
    hang: HangFacts
    job: str


def report_hangs(tx: UnitOfWork, policies: Sequence[ActionPolicy], *, stopped: bool) -> int:
    """Write what policies make of jobs that hang; return how many events are ordered."""
    return sum(
        _report(tx, policy, one, stopped=stopped)
        for policy in policies
        if KINDS[policy.kind].report_hang is not None
        for one in _unreported(tx, policy, stopped=stopped)
    )


def _unreported(tx: UnitOfWork, policy: ActionPolicy, *, stopped: bool) -> Sequence[_Hanging]:
    """Return incidents of which nothing is written yet, or something else than what holds now."""
    of_incident = (
        (MachineAction.incident_id == AlertIncident.id)
        & (MachineAction.kind == policy.kind)
        & MachineAction.hang.is_not(None)
    )
    changes = []
    for in_hand in (False, True):
        limits = _limits(stopped=stopped, in_hand=in_hand)
        state = _state(policy.mode, limits)
        is_so = (MachineAction.state == state) & (MachineAction.limits == limits)
        is_firing = AlertIncident.state == IncidentState.FIRING
        changes.append((~is_firing if in_hand else is_firing) & ~is_so)
    rows = tx.session.execute(
        select(AlertIncident, Job.name)
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .outerjoin(MachineAction, of_incident)
        .where(
            AlertIncident.state.in_(IncidentState.TOLD),
            AlertIncident.document["cause"].astext == HANG_CAUSE,
            AlertIncident.document["hang"].astext.is_not(None),
            MachineAction.id.is_(None)
            | (MachineAction.state.in_(ActionState.UNDECIDED) & or_(*changes)),
        )
        .order_by(AlertIncident.fired_at, AlertIncident.id)
        .limit(MAX_JOBS)
    ).all()
    found = [(incident_of(row), job) for row, job in rows]
    return [
        _Hanging(incident, incident.hang, job)
        for incident, job in found
        if incident.hang is not None
    ]


def _report(tx: UnitOfWork, policy: ActionPolicy, hanging: _Hanging, *, stopped: bool) -> bool:
    incident = hanging.incident
    row = tx.session.execute(
        select(MachineAction)
        .where(
            MachineAction.kind == policy.kind,
            MachineAction.incident_id == incident.id,
            MachineAction.hang.is_not(None),
        )
        .with_for_update()
    ).scalar_one_or_none()
    if row is None:
        hang = hanging.hang
        row = MachineAction(
            id=uuid.uuid4(),
            kind=policy.kind,
            incident_id=hanging.incident.id,
            host="",
            job=hanging.job,
            hang=hang,
            cause=HANG_CAUSE,
            gpus=[],
            confidence=hang.confidence,
            sessions=0,
            lost_each_hour=float(hang.ranks),
            state=ActionState.HELD,
            limits=[],
            command=f"{EventType.HANG} about {hanging.job}",
            attempt=0,
            next_attempt_at=tx.now,
        )
        tx.session.add(row)
    elif row.state not in ActionState.UNDECIDED:
        return False
    row.limits = _limits(stopped=stopped, in_hand=incident.state is not IncidentState.FIRING)
    state = _state(policy.mode, row.limits)
    if state is not ActionState.WAITING:
        row.state = state
        return False
    order(tx, row, None)
    record(tx, INSTALLATION, Action.ORDERED, audit_name(row), detail=row.command)
    return True


def _state(mode: ActionMode, limits: Sequence[str]) -> ActionState:
    if mode is ActionMode.DRY_RUN:
        return ActionState.DRY_RUN
    if mode is ActionMode.ASK:
        return ActionState.HELD if Limit.STOPPED in limits else ActionState.ASKED
    return ActionState.HELD if limits else ActionState.WAITING


def _limits(*, stopped: bool, in_hand: bool) -> list[str]:
    return [*[Limit.STOPPED] * stopped, *[Limit.IN_HAND] * in_hand]

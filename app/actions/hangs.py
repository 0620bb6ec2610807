"""Use case: report jobs that hang, with one event for each incident.

No machine is changed, so only two limits apply: the kill switch, and the acknowledgement or silence
of the incident by a user.
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
from app.actions.models import ActionPolicy, ActionState, MachineAction
from app.actions.store import audit_name, order, state_under
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import HANG_CAUSE, HangFacts
from app.incidents.models.tables import AlertGroup, AlertIncident, IncidentState
from app.incidents.store import incident_of
from app.jobs.models import Job
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.identity import INSTALLATION

# Maximum of jobs in a pass, the longest hangs first. The next passes report the others, because a
# reported job is skipped until it changes.
MAX_JOBS: Final = 200


@dataclass(frozen=True, slots=True)
class _Hanging:
    """An open incident about a hanging job."""

    incident: Incident
    hang: HangFacts
    job: str


def report_hangs(tx: UnitOfWork, policies: Sequence[ActionPolicy], *, stopped: bool) -> int:
    """Store the decisions of policies on hanging jobs; return the number of ordered events."""
    return sum(
        _report(tx, policy, hanging, stopped=stopped)
        for policy in policies
        if KINDS[policy.kind].report_hang is not None
        for hanging in _unreported(tx, policy, stopped=stopped)
    )


def _unreported(tx: UnitOfWork, policy: ActionPolicy, *, stopped: bool) -> Sequence[_Hanging]:
    """Return incidents that have no action, or an undecided action whose state must change."""
    of_incident = (
        (MachineAction.incident_id == AlertIncident.id)
        & (MachineAction.kind == policy.kind)
        & MachineAction.hang.is_not(None)
    )
    changes = []
    for in_hand in (False, True):
        limits = _limits(stopped=stopped, in_hand=in_hand)
        state = state_under(policy.mode, limits)
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
    incidents = [(incident_of(row), job) for row, job in rows]
    return [
        _Hanging(incident, incident.hang, job)
        for incident, job in incidents
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
    state = state_under(policy.mode, row.limits)
    if state is not ActionState.WAITING:
        row.state = state
        return False
    order(tx, row, None)
    record(tx, INSTALLATION, Action.ORDERED, audit_name(row), detail=row.command)
    return True


def _limits(*, stopped: bool, in_hand: bool) -> list[str]:
    return [*[Limit.STOPPED] * stopped, *[Limit.IN_HAND] * in_hand]

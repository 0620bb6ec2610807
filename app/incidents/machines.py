"""Leads and members: the rows that group all incidents that blame the same machine.

Protocol. A lead, or a member of one, is a row (`AlertOnHost`), written in the transaction that lets
the incident fire. Two concurrent evaluations that blame the same host meet at the unique index of
leads: the second waits for the first and then becomes its member. A transaction that joins, leaves
or ends a lead locks its row, so that no lead ends while another job joins.

A change of a member is noted in the row of its lead (`stirred_at`) and not in its group, which
another evaluation may have locked; the sweeper then evaluates the lead's job. Locks are taken in
the order group, leads by host.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sqlalchemy import delete, exists, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from app.incidents.grouping import IncidentChange, next_flush
from app.incidents.held_machines import MemberIncident, is_shared, shared_names
from app.incidents.lifecycle import Incident
from app.incidents.models.tables import AlertGroup, AlertIncident, AlertOnHost, IncidentState
from app.incidents.store import incident_of, lock_group, timing
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork

# Maximum of retries if a lead ended between two statements; before each retry another worker made
# progress.
TRIES: Final = 10

LEADS: Final = (AlertOnHost.incident_id == AlertOnHost.lead_id) & AlertOnHost.over_at.is_(None)
_ONE_LEAD: Final = text("incident_id = lead_id AND over_at IS NULL")


def without_early_ends(
    tx: UnitOfWork, incidents: Iterable[Incident], changes: Sequence[IncidentChange]
) -> list[IncidentChange]:
    """Return the changes, without the ends of leads whose members are still open.

    Locks all leads that the job's incidents may join, leave or end.
    """
    about = [*incidents, *(change.incident for change in changes)]
    hosts = {name for incident in about if incident.was_notified for name in shared_names(incident)}
    if not hosts:
        return list(changes)
    locked = _lock_leads(tx, hosts)
    ending = [
        change.incident.id
        for change in changes
        if change.incident.state is IncidentState.RESOLVED and change.incident.id in locked
    ]
    if not ending:
        return list(changes)
    held = set(
        tx.session.execute(
            select(AlertOnHost.lead_id)
            .join(AlertIncident, AlertIncident.id == AlertOnHost.incident_id)
            .where(
                AlertOnHost.lead_id.in_(ending),
                AlertOnHost.incident_id != AlertOnHost.lead_id,
                AlertIncident.state != IncidentState.RESOLVED,
                # Members that end in this transaction do not count as open.
                AlertOnHost.incident_id.not_in(ending),
            )
        ).scalars()
    )
    return [change for change in changes if change.incident.id not in held]


def place_incidents(tx: UnitOfWork, incidents: Iterable[Incident]) -> None:
    """Make firing incidents of a job leads or members, and end the role of resolved incidents.

    Parameters
    ----------
    incidents : iterable of Incident
        Open incidents of the job, and incidents resolved in this transaction, as stored.
    """
    about = [incident for incident in incidents if incident.was_notified and shared_names(incident)]
    if not about:
        return
    about.sort(key=lambda incident: (incident.where, incident.opened_at, incident.id))
    over = [incident for incident in about if incident.state is IncidentState.RESOLVED]
    if over:
        leave(tx, over)
    lead = aliased(AlertOnHost)
    placed = set(
        tx.session.execute(
            select(AlertOnHost.incident_id)
            .join(lead, lead.incident_id == AlertOnHost.lead_id)
            .where(
                AlertOnHost.incident_id.in_([incident.id for incident in about]),
                lead.over_at.is_(None),
            )
        ).scalars()
    )
    for incident in about:
        if incident.state is IncidentState.RESOLVED or incident.id in placed:
            continue
        if is_shared(incident):
            _lead_or_join(tx, incident)


def leave(tx: UnitOfWork, over: Sequence[Incident]) -> None:
    """End the role of resolved incidents as leads or members; mark the leads of ended members."""
    hosts = {name for incident in over for name in shared_names(incident)}
    if not hosts:
        return
    _lock_leads(tx, hosts)
    ids = [incident.id for incident in over]
    tx.session.execute(
        update(AlertOnHost)
        .where(AlertOnHost.incident_id.in_(ids), LEADS)
        .values(over_at=tx.now, stirred_at=None)
        .execution_options(synchronize_session=False)
    )
    inside = aliased(AlertOnHost)
    tx.session.execute(
        update(AlertOnHost)
        .where(
            LEADS,
            exists().where(inside.lead_id == AlertOnHost.incident_id, inside.incident_id.in_(ids)),
        )
        .values(stirred_at=tx.now)
        .execution_options(synchronize_session=False)
    )


def open_members(tx: UnitOfWork, ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return the open members of leads."""
    return set(
        tx.session.execute(
            select(AlertOnHost.incident_id)
            .join(AlertIncident, AlertIncident.id == AlertOnHost.incident_id)
            .where(
                AlertOnHost.lead_id.in_(ids),
                AlertOnHost.incident_id != AlertOnHost.lead_id,
                AlertIncident.state.in_(IncidentState.TOLD),
            )
        ).scalars()
    )


def members_ended_with(tx: UnitOfWork, ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return the members of leads that ended at the same time as their leads."""
    lead = aliased(AlertIncident)
    return set(
        tx.session.execute(
            select(AlertOnHost.incident_id)
            .join(AlertIncident, AlertIncident.id == AlertOnHost.incident_id)
            .join(lead, lead.id == AlertOnHost.lead_id)
            .where(
                AlertOnHost.lead_id.in_(ids),
                AlertOnHost.incident_id != AlertOnHost.lead_id,
                AlertIncident.resolved_at == lead.resolved_at,
            )
        ).scalars()
    )


def _lock_leads(tx: UnitOfWork, hosts: Collection[str]) -> set[uuid.UUID]:
    """Lock the leads of hosts; return the ids of the leading incidents."""
    return set(
        tx.session.execute(
            select(AlertOnHost.incident_id)
            .where(LEADS, AlertOnHost.host.in_(hosts))
            .order_by(AlertOnHost.host)
            .with_for_update()
        ).scalars()
    )


def _lead_or_join(tx: UnitOfWork, incident: Incident) -> None:
    """Make an incident the lead of its host, or a member of the present lead."""
    host, *next_to = shared_names(incident)
    # The incident may have been a member of a lead that ended.
    tx.session.execute(delete(AlertOnHost).where(AlertOnHost.incident_id == incident.id))
    for _ in range(TRIES):
        if any(_join_lead(tx, incident, name) for name in next_to):
            return
        leading = tx.session.execute(
            insert(AlertOnHost)
            .values(incident_id=incident.id, lead_id=incident.id, host=host)
            .on_conflict_do_nothing(index_elements=["project_id", "host"], index_where=_ONE_LEAD)
            .returning(AlertOnHost.incident_id)
        ).scalar()
        if leading is not None:
            return
        if _join_lead(tx, incident, host):
            return
    raise RuntimeError(f"no incident speaks for the host of incident {incident.id}")


def _join_lead(tx: UnitOfWork, incident: Incident, host: str) -> bool:
    """Make an incident a member of its host's lead; return whether the host has a lead."""
    # The update locks the lead, so that it cannot end before this incident is a member.
    lead = tx.session.execute(
        update(AlertOnHost)
        .where(LEADS, AlertOnHost.host == host)
        .values(stirred_at=tx.now)
        .returning(AlertOnHost.incident_id)
        .execution_options(synchronize_session=False)
    ).scalar()
    if lead is None:
        return False
    tx.session.execute(insert(AlertOnHost).values(incident_id=incident.id, lead_id=lead, host=host))
    return True


def members_by_lead(tx: Reads, group_id: uuid.UUID) -> dict[uuid.UUID, list[MemberIncident]]:
    """Return the open and resolved members of the leads in a job's group, grouped by lead."""
    lead = aliased(AlertIncident)
    rows = tx.session.execute(
        select(AlertOnHost.lead_id, AlertIncident, Job.name)
        .join(lead, lead.id == AlertOnHost.lead_id)
        .join(AlertIncident, AlertIncident.id == AlertOnHost.incident_id)
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .where(lead.group_id == group_id, AlertOnHost.incident_id != AlertOnHost.lead_id)
        .order_by(AlertIncident.opened_at, AlertIncident.id)
    ).all()
    members: dict[uuid.UUID, list[MemberIncident]] = {}
    for lead_id, row, job in rows:
        incident = incident_of(row)
        labels = incident.facts.labels if incident.facts else {}
        members.setdefault(lead_id, []).append(MemberIncident(incident, job, labels))
    return members


def led_incidents(tx: Reads, group_id: uuid.UUID) -> frozenset[uuid.UUID]:
    """Return the incidents of a group that are members of an open lead."""
    lead = aliased(AlertOnHost)
    return frozenset(
        tx.session.execute(
            select(AlertOnHost.incident_id)
            .join(AlertIncident, AlertIncident.id == AlertOnHost.incident_id)
            .join(lead, lead.incident_id == AlertOnHost.lead_id)
            .where(
                AlertIncident.group_id == group_id,
                AlertOnHost.incident_id != AlertOnHost.lead_id,
                lead.over_at.is_(None),
            )
        ).scalars()
    )


def look_at_lead(container: Container, lead_id: uuid.UUID) -> None:
    """Schedule an evaluation and a flush of the job that has the lead, after members changed."""
    with container.uow() as tx:
        group_id = tx.session.execute(
            select(AlertIncident.group_id).where(AlertIncident.id == lead_id)
        ).scalar()
        group = None if group_id is None else lock_group(tx, group_id, skip_locked=True)
        if group is None:
            return
        woken = tx.session.execute(
            update(AlertOnHost)
            .where(LEADS, AlertOnHost.incident_id == lead_id, AlertOnHost.stirred_at.is_not(None))
            .values(stirred_at=None)
            .returning(AlertOnHost.incident_id)
            .execution_options(synchronize_session=False)
        ).scalar()
        if woken is None:
            return
        group.look_at = tx.now
        group.flush_at = next_flush(
            timing(container.settings), tx.now, group.flushed_at, group.flush_at
        )

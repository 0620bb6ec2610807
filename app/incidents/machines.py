"""One machine, one incident: which of the incidents that blame a host speaks for all of them.

Protocol. That an incident leads, or stands inside of another, is a row (`AlertOnHost`), written in
the transaction that lets it fire. Two evaluations at once that blame the same host meet at the
unique index of leads: the second waits for the first and then stands inside of it. Whoever joins a
lead, leaves it or ends it holds the row of the lead until its transaction ends, so that no lead
ends while another job joins.

What changes inside of a lead is noted at its row (`stirred_at`) and not at its group, which another
evaluation may hold; the sweeper looks at the lead's job then. Locks are taken in the order group,
leads by host.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sqlalchemy import delete, exists, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from app.incidents.grouping import IncidentChange, next_flush
from app.incidents.held_machines import Inside, joins_others, shared_by
from app.incidents.lifecycle import Incident
from app.incidents.models.tables import AlertGroup, AlertIncident, AlertOnHost, IncidentState
from app.incidents.store import incident_of, lock_group, timing
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork

# A lead that ended between two statements is tried again; each time another worker makes progress.
TRIES: Final = 10

LEADS: Final = (AlertOnHost.incident_id == AlertOnHost.lead_id) & AlertOnHost.over_at.is_(None)
_ONE_LEAD: Final = text("incident_id = lead_id AND over_at IS NULL")


def without_held(
    tx: UnitOfWork, incidents: Iterable[Incident], changes: Sequence[IncidentChange]
) -> list[IncidentChange]:
    """Return the changes of a job that happen: a lead lasts until the jobs inside are well.

    Takes the locks of all leads that the job's incidents may join, leave or end.
    """
    about = [*incidents, *(change.incident for change in changes)]
    hosts = {name for incident in about if incident.was_notified for name in shared_by(incident)}
    if not hosts:
        return list(changes)
    locked = _lock(tx, hosts)
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
                # What ends with it does not hold it.
                AlertOnHost.incident_id.not_in(ending),
            )
        ).scalars()
    )
    return [change for change in changes if change.incident.id not in held]


def settle(tx: UnitOfWork, incidents: Iterable[Incident]) -> None:
    """Let the incidents of a job that fire lead or stand inside, and those that are over leave.

    Parameters
    ----------
    incidents : iterable of Incident
        All that the job has open, and those that ended in this transaction, as they are stored.
    """
    about = [incident for incident in incidents if incident.was_notified and shared_by(incident)]
    if not about:
        return
    about.sort(key=lambda incident: (incident.where, incident.opened_at, incident.id))
    over = [found for found in about if found.state is IncidentState.RESOLVED]
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
        if joins_others(incident):
            _place(tx, incident)


def leave(tx: UnitOfWork, over: Sequence[Incident]) -> None:
    """Stop incidents that are over from leading others, and tell the leads of those inside."""
    hosts = {name for incident in over for name in shared_by(incident)}
    if not hosts:
        return
    _lock(tx, hosts)
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


def inside_of(tx: UnitOfWork, ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return the incidents that are open inside of these."""
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


def ended_with(tx: UnitOfWork, ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return the incidents that ended inside of these, at the same time as these."""
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


def _lock(tx: UnitOfWork, hosts: Collection[str]) -> set[uuid.UUID]:
    """Lock the leads of hosts, and return which incidents those are."""
    return set(
        tx.session.execute(
            select(AlertOnHost.incident_id)
            .where(LEADS, AlertOnHost.host.in_(hosts))
            .order_by(AlertOnHost.host)
            .with_for_update()
        ).scalars()
    )


def _place(tx: UnitOfWork, incident: Incident) -> None:
    """Let an incident lead its host, or stand inside of the one that does."""
    host, *next_to = shared_by(incident)
    # It may have been inside of one that is over.
    tx.session.execute(delete(AlertOnHost).where(AlertOnHost.incident_id == incident.id))
    for _ in range(TRIES):
        if any(_stands_inside(tx, incident, name) for name in next_to):
            return
        leading = tx.session.execute(
            insert(AlertOnHost)
            .values(incident_id=incident.id, lead_id=incident.id, host=host)
            .on_conflict_do_nothing(index_elements=["project_id", "host"], index_where=_ONE_LEAD)
            .returning(AlertOnHost.incident_id)
        ).scalar()
        if leading is not None:
            return
        if _stands_inside(tx, incident, host):
            return
    raise RuntimeError(f"no incident speaks for the host of incident {incident.id}")


def _stands_inside(tx: UnitOfWork, incident: Incident, host: str) -> bool:
    """Let an incident stand inside of the lead of a host; return whether there is one."""
    # The lead's row stays locked: it cannot end before this incident stands inside.
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


# ---- What stands inside of incidents, as rules, messages and pages need it ---------------------


def inside_of_group(tx: Reads, group_id: uuid.UUID) -> dict[uuid.UUID, list[Inside]]:
    """Return by incident of a job's group all that stand, or stood, inside of it."""
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
    found: dict[uuid.UUID, list[Inside]] = {}
    for lead_id, row, job in rows:
        incident = incident_of(row)
        labels = incident.facts.labels if incident.facts else {}
        found.setdefault(lead_id, []).append(Inside(incident, job, labels))
    return found


def standing_inside(tx: Reads, group_id: uuid.UUID) -> frozenset[uuid.UUID]:
    """Return the incidents of a group that another one speaks for."""
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


# ---- Use case: look at the incident that speaks for a machine, because of what changed inside ----


def wake(container: Container, lead_id: uuid.UUID) -> None:
    """Let a lead's job be looked at, and its channels be told if that is news."""
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

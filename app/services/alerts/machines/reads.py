"""What stands inside of incidents, as rules, messages and pages need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import aliased

from app.alerts.machines.inside import Inside
from app.db.models.alerts import AlertGroup, AlertIncident, AlertOnHost
from app.db.models.sessions import Job
from app.services.alerts.store import incident_of

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import Reads


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

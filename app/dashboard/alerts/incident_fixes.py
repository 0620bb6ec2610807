"""What was done while an incident was open, what it brought, and the plan of its whole job."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from app.dashboard.fixes.applied import AppliedFixes, applied_fixes
from app.services.fixes.read import realized_fixes
from app.services.plans.remedies import Remedies, remedies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.db.unit_of_work import Reads
    from app.services.alerts.incident_reads import IncidentRow
    from app.services.fixes.read import Realized


def remedies_of(tx: Reads, row: IncidentRow) -> Remedies:
    """Return what was done since an incident was opened, until it was resolved, and the plan.

    The plan is of the whole job of the session that it is about.
    """
    facts = row.incident.facts
    return remedies(
        tx,
        job=row.job,
        since=row.incident.opened_at,
        until=row.incident.resolved_at,
        planned_by=None if facts is None else facts.session,
    )


def fixes_of(found: Remedies, url: str, now: datetime) -> AppliedFixes:
    """Return how the page of an incident shows the fixes; how predictions fare only with some."""
    shown = found if found.applied else replace(found, calibrations={})
    return applied_fixes(shown, f"{url}/fixes.csv", now)


def realized_of(tx: Reads, row: IncidentRow) -> Sequence[Realized]:
    """Return these fixes as they were measured."""
    return realized_fixes(
        tx, job=row.job, since=row.incident.opened_at, until=row.incident.resolved_at
    )

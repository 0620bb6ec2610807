"""The fixes that were applied while an incident was open, and what they brought."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.dashboard.fixes.applied import AppliedFixes, applied_fixes
from app.services.fixes.read import calibrations, realized_fixes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.db.unit_of_work import Reads
    from app.services.alerts.incident_reads import IncidentRow
    from app.services.fixes.read import Realized


def fixes_of(tx: Reads, row: IncidentRow) -> AppliedFixes:
    """Return the fixes of an incident's job since it was opened, until it was resolved."""
    found = realized_of(tx, row)
    csv = f"/incidents/{row.incident.id}/fixes.csv"
    return applied_fixes(found, calibrations(tx) if found else {}, csv, tx.now)


def realized_of(tx: Reads, row: IncidentRow) -> Sequence[Realized]:
    """Return these fixes as they were measured."""
    return realized_fixes(
        tx, job=row.job, since=row.incident.opened_at, until=row.incident.resolved_at
    )

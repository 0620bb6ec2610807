"""Incidents of all projects on one list: for who administers the installation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from app.db.models.access import Project
from app.db.models.alerts import AlertIncident
from app.services.access.projects import is_there
from app.services.alerts.incident_reads import IncidentRow, by_need, incident_row
from app.services.alerts.store import OPEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class OpenEverywhere:
    """Open incidents with their projects, firing ones first, and how many there are in all."""

    rows: Sequence[tuple[str, IncidentRow]]
    count: int


def open_everywhere(tx: Reads, limit: int) -> OpenEverywhere:
    """Return the open incidents of every project.

    Parameters
    ----------
    tx : Reads
        Of all projects.
    limit : int
    """
    there = (OPEN, is_there(AlertIncident.project_id))
    rows = tx.session.execute(
        by_need(limit)
        .add_columns(Project.name)
        .join(Project, Project.id == AlertIncident.project_id)
        .where(*there)
    )
    count = tx.session.execute(
        select(func.count()).select_from(AlertIncident).where(*there)
    ).scalar_one()
    return OpenEverywhere([(row[7], incident_row(*row[:7])) for row in rows], count)

"""Incidents of all projects on one list: for who administers the installation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from app.db.models.access import Project
from app.db.models.alerts import AlertIncident
from app.services.access.projects import is_there, list_projects
from app.services.alerts.incident_reads import INCIDENTS, IncidentRow, by_need
from app.services.alerts.store import OPEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class OpenEverywhere:
    """Open incidents with their projects, firing ones first."""

    rows: Sequence[tuple[str, IncidentRow]]  # sequence of (str, IncidentRow)
    count: int  # how many there are in all
    projects: Sequence[str]  # all that there are, by name
    project: str = ""  # the only one that was asked for; empty: none


def open_everywhere(tx: Reads, limit: int, *, project: str = "", offset: int = 0) -> OpenEverywhere:
    """Return the open incidents of every project, or of one.

    Parameters
    ----------
    project : str
        Its name; empty: all of them. One that is not there has none.
    """
    there = [OPEN, is_there(AlertIncident.project_id)]
    if project:
        there.append(Project.name == project)
    rows = (
        tx.session.execute(
            by_need(limit)
            .offset(offset)
            .add_columns(Project.name.label("project"))
            .join(Project, Project.id == AlertIncident.project_id)
            .where(*there)
        )
        .mappings()
        .all()
    )
    count = tx.session.execute(
        select(func.count())
        .select_from(AlertIncident)
        .join(Project, Project.id == AlertIncident.project_id)
        .where(*there)
    ).scalar_one()
    found = [(row["project"], one) for row, one in zip(rows, INCIDENTS.rows(rows), strict=True)]
    return OpenEverywhere(found, count, [one.name for one in list_projects(tx)], project)

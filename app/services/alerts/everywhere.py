"""Incidents of several projects on one list: of those that whoever asks may read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from app.access.principals import Right
from app.db.models.access import Project
from app.db.models.alerts import AlertIncident
from app.db.models.sessions import Session
from app.services.access.projects import is_there, list_projects
from app.services.alerts.filters import (
    BY_SEVERITY,
    LOST,
    SESSION_ID,
    SILENCED_LAST,
    SINCE,
)
from app.services.alerts.incident_reads import INCIDENTS, IncidentRow, by_need
from app.services.alerts.store import OPEN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from app.access.principals import Principal
    from app.db.unit_of_work import Reads

_SEVERAL: Final = 2


@dataclass(frozen=True, slots=True)
class OpenEverywhere:
    """Open incidents with their projects, the most severe first, then what costs most."""

    rows: Sequence[tuple[str, IncidentRow]]  # sequence of (str, IncidentRow)
    count: int  # how many there are in all
    projects: Sequence[str]  # that may be read, by name
    project: str = ""  # the only one that was asked for; empty: none


# Silenced incidents come last, as on each project's own list.
_ORDER: Final = (
    SILENCED_LAST,
    BY_SEVERITY,
    LOST.desc().nulls_last(),
    SINCE.desc(),
    AlertIncident.id.expression,
)


def readable(principal: Principal) -> frozenset[int] | None:
    """Return the projects that someone may read; None where these are all."""
    if Right.READ in principal.everywhere:
        return None
    return frozenset(known for known, rights in principal.in_projects if Right.READ in rights)


def reads_several(tx: Reads, principal: Principal) -> bool:
    """Return whether there are several projects that someone may read."""
    known = readable(principal)
    if known is not None and len(known) < _SEVERAL:
        return False
    there = [Project.deleted_at.is_(None)]
    if known is not None:
        there.append(Project.id.in_(known))
    found = tx.session.execute(select(func.count()).select_from(Project).where(*there))
    return found.scalar_one() >= _SEVERAL


def open_everywhere(
    tx: Reads,
    limit: int,
    *,
    project: str = "",
    offset: int = 0,
    known: Collection[int] | None = None,
) -> OpenEverywhere:
    """Return the open incidents of every project, or of one.

    Parameters
    ----------
    project : str
        Its name; empty: all of them. One that is not there has none.
    known : collection of int, optional
        Only these projects.
    """
    there = [OPEN, is_there(AlertIncident.project_id)]
    if known is not None:
        there.append(AlertIncident.project_id.in_(known))
    if project:
        there.append(Project.name == project)
    rows = (
        tx.session.execute(
            by_need(limit)
            .order_by(None)
            .order_by(*_ORDER)
            .offset(offset)
            .outerjoin(Session, Session.id == SESSION_ID)
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
    return OpenEverywhere(found, count, [one.name for one in list_projects(tx, known)], project)

"""Reads across projects: open incidents, counts in the navigation, the onset of a slowdown."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Select, func, or_, select, true

from app.access.projects import list_projects
from app.actions.models import ActionState, MachineAction
from app.incidents.channel_reads import is_dead
from app.incidents.models.facts import NO_DATA_CAUSE
from app.incidents.models.tables import AlertChannel, AlertIncident, IncidentState
from app.incidents.reads import (
    BY_SEVERITY,
    INCIDENTS,
    LOST,
    SESSION_ID,
    SILENCED_LAST,
    SINCE,
    IncidentRow,
    by_need,
)
from app.incidents.store import INSIDE, OPEN
from app.jobs.models import Job
from app.platform.database.projects import Project, is_there
from app.platform.database.unit_of_work import Reads
from app.platform.identity import Principal, Right
from app.sessions.models.tables import OF_SESSION, SLOWDOWN, Session
from app.web.pages import Navigation

_SEVERAL: Final = 2


@dataclass(frozen=True, slots=True)
class OpenEverywhere:
    """Open incidents of several projects, sorted by severity, then by cost."""

    rows: Sequence[tuple[str, IncidentRow]]  # pairs of the project's name and an incident
    count: int  # number of incidents on all pages
    projects: Sequence[str]  # names of the readable projects
    project: str = ""  # name of the requested project; empty: all projects


# Silenced incidents come last, as in each project's own list.
_ORDER: Final = (
    SILENCED_LAST,
    BY_SEVERITY,
    LOST.desc().nulls_last(),
    SINCE.desc(),
    AlertIncident.id.expression,
)


def readable_projects(principal: Principal) -> frozenset[int] | None:
    """Return the ids of the projects that a principal may read; None if all projects."""
    if Right.READ in principal.everywhere:
        return None
    return frozenset(id_ for id_, rights in principal.in_projects if Right.READ in rights)


def reads_several(tx: Reads, principal: Principal) -> bool:
    """Return whether a principal may read several projects."""
    project_ids = readable_projects(principal)
    if project_ids is not None and len(project_ids) < _SEVERAL:
        return False
    conditions = [Project.deleted_at.is_(None)]
    if project_ids is not None:
        conditions.append(Project.id.in_(project_ids))
    count = tx.session.execute(select(func.count()).select_from(Project).where(*conditions))
    return count.scalar_one() >= _SEVERAL


def open_everywhere(
    tx: Reads,
    limit: int,
    *,
    project: str = "",
    offset: int = 0,
    project_ids: Collection[int] | None = None,
) -> OpenEverywhere:
    """Return the open incidents of all projects, or of one project.

    Parameters
    ----------
    project : str
        Its name; empty: all of them. An unknown one has no incidents.
    project_ids : collection of int, optional
        Ids of the projects to read; by default all.
    """
    conditions = [OPEN, is_there(AlertIncident.project_id)]
    if project_ids is not None:
        conditions.append(AlertIncident.project_id.in_(project_ids))
    if project:
        conditions.append(Project.name == project)
    rows = (
        tx.session.execute(
            by_need(limit)
            .order_by(None)
            .order_by(*_ORDER)
            .offset(offset)
            .outerjoin(Session, Session.id == SESSION_ID)
            .add_columns(Project.name.label("project"))
            .join(Project, Project.id == AlertIncident.project_id)
            .where(*conditions)
        )
        .mappings()
        .all()
    )
    count = tx.session.execute(
        select(func.count())
        .select_from(AlertIncident)
        .join(Project, Project.id == AlertIncident.project_id)
        .where(*conditions)
    ).scalar_one()
    with_projects = list(zip((row["project"] for row in rows), INCIDENTS.rows(rows), strict=True))
    projects = [each.name for each in list_projects(tx, project_ids)]
    return OpenEverywhere(with_projects, count, projects, project)


def navigation(tx: Reads) -> Navigation:
    """Return the counts in the navigation of every page, read with one statement."""
    firing = (
        select(func.count().label("firing"))
        .where(AlertIncident.state == IncidentState.FIRING, ~INSIDE)
        .subquery()
    )
    waiting = select(func.count()).where(MachineAction.state == ActionState.ASKED)
    rows = tx.session.execute(
        select(
            func.now().label("now"),
            firing.c.firing,
            waiting.scalar_subquery().label("asked"),
            AlertChannel.name,
            AlertChannel.readable,
            AlertChannel.enabled,
            AlertChannel.disabled_reason,
            AlertChannel.failures,
        )
        # The outer join keeps one row even if no channel exists.
        .select_from(firing)
        .outerjoin(AlertChannel, true())
        .order_by(AlertChannel.name)
    ).all()
    # Reuse the time in this row, which saves most pages another statement.
    tx.is_at(rows[0].now)
    return Navigation(
        firing=rows[0].firing,
        asked=rows[0].asked,
        dead_channels=tuple(
            row.name
            for row in rows
            if row.name is not None
            and is_dead(
                readable=row.readable,
                enabled=row.enabled,
                disabled_reason=row.disabled_reason,
                failures=row.failures,
            )
        ),
    )


@dataclass(frozen=True, slots=True)
class Onset:
    """First session of the current run of slow sessions, and the slowdown of the session before."""

    number: int
    at: datetime  # when the session was received
    session: uuid.UUID
    was: float | None  # slowdown in the session before; None without an earlier verdict


def onset_of_job(tx: Reads, job: str, until: datetime, threshold: float) -> Onset | None:
    """Return the onset of a job's present slowdown, or None if the job is not slow.

    Parameters
    ----------
    until : datetime
        Sessions received later do not count.
    threshold : float
        Slowdown from which a session is slow. Those without a verdict are skipped.
    """
    row = tx.session.execute(first_slow(job, until, threshold)).one_or_none()
    return None if row is None else Onset(*row)


def first_slow(job: str, until: datetime, threshold: float) -> Select[Any]:
    """Return the query of `onset_of_job`: at most one row, with the fields of `Onset`."""
    measured = (Job.name == job, Session.received_at <= until, SLOWDOWN.is_not(None))
    before = (
        select(Session.received_at, SLOWDOWN.label("slowdown"))
        .join(Job)
        .join(*OF_SESSION)
        .where(*measured, threshold > SLOWDOWN)
        .order_by(Session.received_at.desc())
        .limit(1)
        .subquery()
    )
    return (
        select(
            Session.number,
            Session.received_at.label("at"),
            Session.id.label("session"),
            before.c.slowdown.label("was"),
        )
        .join(Job)
        .join(*OF_SESSION)
        .outerjoin(before, true())
        .where(
            *measured,
            threshold <= SLOWDOWN,
            or_(before.c.received_at.is_(None), Session.received_at > before.c.received_at),
        )
        .order_by(Session.received_at)
        .limit(1)
    )


def onset_of_incident(tx: Reads, row: IncidentRow, threshold: float) -> Onset | None:
    """Return the onset of the slowdown of an incident's job, at the time of its latest session.

    None also for incidents about silence.
    """
    facts = row.incident.facts
    if facts is None or row.incident.cause == NO_DATA_CAUSE:
        return None
    return onset_of_job(tx, row.job, facts.received_at, threshold)

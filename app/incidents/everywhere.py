"""Incidents of several projects on one list: of those that whoever asks may read."""

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


def readable_projects(principal: Principal) -> frozenset[int] | None:
    """Return the projects that someone may read; None where these are all."""
    if Right.READ in principal.everywhere:
        return None
    return frozenset(known for known, rights in principal.in_projects if Right.READ in rights)


def reads_several(tx: Reads, principal: Principal) -> bool:
    """Return whether there are several projects that someone may read."""
    known = readable_projects(principal)
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


# ---- What every page shows: how many incidents fire, which channels are dead, what asks a person -


def navigation(tx: Reads) -> Navigation:
    """Return what every page shows, with one statement."""
    firing = (
        select(func.count().label("firing"))
        .where(AlertIncident.state == IncidentState.FIRING, ~INSIDE)
        .subquery()
    )
    asked = select(func.count()).where(MachineAction.state == ActionState.ASKED)
    rows = tx.session.execute(
        select(
            func.now().label("now"),
            firing.c.firing,
            asked.scalar_subquery().label("asked"),
            AlertChannel.name,
            AlertChannel.readable,
            AlertChannel.enabled,
            AlertChannel.disabled_reason,
            AlertChannel.failures,
        )
        # One row without a channel, where there is none.
        .select_from(firing)
        .outerjoin(AlertChannel, true())
        .order_by(AlertChannel.name)
    ).all()
    # Most pages ask for it.
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


# ---- Since when a job is slow, and how slow it was before --------------------------------------


@dataclass(frozen=True, slots=True)
class Onset:
    """The first session of what lasts, and the slowdown of the last verdict before it."""

    number: int
    at: datetime  # when the session was received
    session: uuid.UUID
    was: float | None  # None where no session before it has a verdict


def onset_of_job(tx: Reads, job: str, until: datetime, threshold: float) -> Onset | None:
    """Return since when a job has been slow without a break; None where it is not.

    Parameters
    ----------
    until : datetime
        Sessions received later do not count.
    threshold : float
        From here on a session is slow. Those without a verdict say nothing.
    """
    found = tx.session.execute(first_slow(job, until, threshold)).one_or_none()
    return None if found is None else Onset(*found)


def first_slow(job: str, until: datetime, threshold: float) -> Select[Any]:
    """Return the query of that: of one row at most, with what an `Onset` has."""
    here = (Job.name == job, Session.received_at <= until, SLOWDOWN.is_not(None))
    before = (
        select(Session.received_at, SLOWDOWN.label("slowdown"))
        .join(Job)
        .join(*OF_SESSION)
        .where(*here, threshold > SLOWDOWN)
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
            *here,
            threshold <= SLOWDOWN,
            or_(before.c.received_at.is_(None), Session.received_at > before.c.received_at),
        )
        .order_by(Session.received_at)
        .limit(1)
    )


def onset_of_incident(tx: Reads, row: IncidentRow, threshold: float) -> Onset | None:
    """Return since when the job of an incident was slow at its latest session; see `onset_of_job`.

    None where the incident is not about how slow it is: nothing comes any more.
    """
    facts = row.incident.facts
    if facts is None or row.incident.cause == NO_DATA_CAUSE:
        return None
    return onset_of_job(tx, row.job, facts.received_at, threshold)

"""Query of one host: its sessions, GPUs, incidents, repairs and moved GPUs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import aliased

from app.hosts.costs import Span, priced
from app.hosts.models import HostReading
from app.hosts.places import Move, moves_of
from app.hosts.repairs import Repair, is_known, no_host, repairs_of
from app.incidents.models.tables import AlertGroup, AlertIncident, IncidentState
from app.jobs.models import Job
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import Session

# Number of a host's latest sessions that a view contains.
MOST_SESSIONS: Final = 2000
MOST_INCIDENTS: Final = 20
MOST_MOVES: Final = 20


@dataclass(frozen=True, slots=True)
class HostSession:
    """A host in a session."""

    session: uuid.UUID
    number: int
    job: str
    received_at: datetime
    ranks: int
    workers: int
    slowdown: float
    computing: float | None
    cause: str | None
    cost: float  # GPU-hours over the duration of the verdict
    gpus: Sequence[Mapping[str, Any]]  # `app.hosts.readings.GpuReading`


@dataclass(frozen=True, slots=True)
class HostIncident:
    """An incident that names the host as the place of the cause."""

    id: uuid.UUID
    job: str
    cause: str
    state: IncidentState
    fired_at: datetime
    resolved_at: datetime | None


@dataclass(frozen=True, slots=True)
class HostView:
    """A host over a period; all sequences are sorted newest first."""

    now: datetime
    host: str
    sessions: Sequence[HostSession]
    seen: int  # number of all sessions of the time; `sessions` are at most `MOST_SESSIONS`
    # latest session over all time; None if all sessions that named the host are deleted
    last_seen: datetime | None
    incidents: Sequence[HostIncident]
    repairs: Sequence[Repair]
    # whether the host's name may be a container's, according to the latest session
    guessed: bool
    # moves of GPUs from other hosts to this host, or from this host to others
    moves: Sequence[Move]


def host_view(tx: Reads, host: str, span: Span) -> HostView:
    """Return a host over a period.

    Raises
    ------
    NotFoundError
        No session or repair names it.
    """
    latest = aliased(HostReading)
    last_seen, guessed, seen = tx.session.execute(
        select(
            func.max(HostReading.received_at),
            select(latest.guessed)
            .where(latest.host == host)
            .order_by(latest.received_at.desc())
            .limit(1)
            .scalar_subquery(),
            func.count().filter(*span.holds(HostReading.received_at.expression))
            if span.since or span.until
            else func.count(),
        ).where(HostReading.host == host)
    ).one()
    if last_seen is None and not is_known(tx, host):
        raise no_host(host)
    readings = priced(tx, span, host).c
    rows = tx.session.execute(
        select(
            readings.session_id,
            Session.number,
            readings.job,
            readings.received_at,
            readings.ranks,
            readings.workers,
            readings.slowdown,
            readings.computing,
            readings.cause,
            readings.cost,
            readings.gpus,
        )
        .join(Session, Session.id == readings.session_id)
        .order_by(readings.received_at.desc(), readings.session_id)
        .limit(MOST_SESSIONS)
    )
    incidents = tx.session.execute(
        select(
            AlertIncident.id,
            Job.name,
            AlertIncident.document["cause"].astext,
            AlertIncident.state,
            AlertIncident.fired_at,
            AlertIncident.resolved_at,
        )
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .where(AlertIncident.document["where"].astext == host, AlertIncident.fired_at.is_not(None))
        .order_by(AlertIncident.fired_at.desc(), AlertIncident.id)
        .limit(MOST_INCIDENTS)
    )
    return HostView(
        now=tx.now,
        host=host,
        sessions=[HostSession(*row) for row in rows],
        seen=seen,
        last_seen=last_seen,
        incidents=[
            HostIncident(id_, job, cause, state, fired_at, resolved_at)
            for id_, job, cause, state, fired_at, resolved_at in incidents
            if fired_at is not None
        ],
        repairs=repairs_of(tx, host),
        guessed=bool(guessed),
        moves=moves_of(tx, host, MOST_MOVES),
    )


def unrecorded(now: datetime, host: str) -> HostView:
    """Return the view of a host that no session has named."""
    return HostView(
        now=now,
        host=host,
        sessions=(),
        seen=0,
        last_seen=None,
        incidents=(),
        repairs=(),
        guessed=False,
        moves=(),
    )

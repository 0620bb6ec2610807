"""Query of one host: its sessions, GPUs, incidents, repairs and moved GPUs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

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
from app.web.lists import Column

# Number of a host's latest sessions that a view contains.
MOST_SESSIONS: Final = 2000
MOST_INCIDENTS: Final = 20
MOST_MOVES: Final = 20


@dataclass(frozen=True, slots=True)
class HostSession:
    """A host in a session."""

    session: Annotated[uuid.UUID, Column(csv=None)]
    received_at: datetime
    job: str
    number: Annotated[int, Column(csv="session")]
    ranks: int
    workers: int
    slowdown: float
    computing: float | None
    cause: str | None  # the leading one that blames machines
    other_cause: str | None  # the leading one that names the host without blaming it
    cost_gpu_hours: float  # over the duration of the verdict
    gpus: Annotated[Sequence[Mapping[str, Any]], Column(csv=None)]  # `readings.GpuReading`


@dataclass(frozen=True, slots=True)
class HostJob:
    """Sums of a host's sessions of a job."""

    job: str
    sessions: int
    slow_sessions: int
    slowdown_worst: float
    cost_gpu_hours: float
    gpus: Annotated[Sequence[str], Column(csv=None)]  # names of the slow ones


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
            readings.received_at,
            readings.job,
            Session.number,
            readings.ranks,
            readings.workers,
            readings.slowdown,
            readings.computing,
            readings.cause,
            readings.other_cause,
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


def jobs_of(sessions: Sequence[HostSession]) -> list[HostJob]:
    """Return the sums of each job's sessions on a host, sorted by cost, most expensive first."""
    by_job: dict[str, list[HostSession]] = {}
    for session in sessions:
        by_job.setdefault(session.job, []).append(session)
    jobs = []
    for job, own in by_job.items():
        slow = [session for session in own if session.cause]
        worst = max(session.slowdown for session in own)
        gpus = gpus_in(slow, slow=True)
        jobs.append(HostJob(job, len(own), len(slow), worst, cost_of(own), gpus))
    return sorted(jobs, key=lambda row: (-row.cost_gpu_hours, row.job))


def cost_of(sessions: Sequence[HostSession]) -> float:
    """Return the cost of a host in sessions, GPU-hours."""
    return sum(session.cost_gpu_hours for session in sessions)


def gpus_in(sessions: Sequence[HostSession], *, slow: bool = False) -> list[str]:
    """Return the names of the GPUs in sessions; of the slow ones only if `slow`."""
    names = names_of_gpus(sessions)
    gpus = (gpu for session in sessions for gpu in session.gpus)
    chosen = {names[gpu_key(gpu)] for gpu in gpus if gpu["slow"] or not slow}
    return sorted(chosen, key=lambda gpu: (len(gpu), gpu))


def gpu_key(gpu: Mapping[str, Any]) -> str:
    """Return the key of a GPU: its UUID if known, else its number, which may change."""
    return str(gpu.get("uuid") or gpu["gpu"])


def names_of_gpus(sessions: Sequence[HostSession]) -> dict[str, str]:
    """Return the name of each GPU in its latest session, by `gpu_key`."""
    return {gpu_key(gpu): gpu["gpu"] for session in reversed(sessions) for gpu in session.gpus}

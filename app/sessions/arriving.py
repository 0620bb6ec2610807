"""Health of ingest: open sessions, lagging producers, refused bodies, session outcomes by job."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, case, func, or_, select, true
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert

from app.access.audit import Action
from app.access.models import AuditEntry, Token
from app.access.projects import project_name
from app.errors import JOB_FORBIDDEN, ForbiddenError, UnauthenticatedError
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import Right
from app.sessions.models.tables import PRODUCERS_KEY, Chunk, IngestRefusal, Intake, Session


@dataclass(frozen=True, slots=True)
class GuessingJob:
    """A job whose latest session has guessed host names, as its containers do not know the hosts.

    `guessed` counts ranks, `example` is one guessed name.
    """

    job: str
    guessed: int
    hosts: int
    example: str
    last_at: datetime


def guessing_jobs(tx: Reads, since: datetime) -> list[GuessingJob]:
    """Return the jobs whose latest session since a time has guessed hosts, most guesses first."""
    # A lateral join with limit 1 reads the metadata of one session per job: those of large jobs are
    # long.
    latest = (
        select(
            Session.meta["guessed_hosts"].label("guessed"),
            Session.meta["hosts"].label("hosts"),
            Session.received_at,
        )
        .where(Session.job_id == Job.id, Session.received_at >= since)
        .order_by(Session.received_at.desc())
        .limit(1)
        .lateral("latest")
    )
    rows = tx.session.execute(
        select(Job.name, latest.c.guessed, latest.c.hosts, latest.c.received_at)
        .join(latest, true())
        .where(latest.c.guessed.is_not(None))
    )
    jobs = [
        GuessingJob(job, len(guessed), len(set((hosts or {}).values())), min(guessed), last_at)
        for job, guessed, hosts, last_at in rows
        if guessed
    ]
    return sorted(jobs, key=lambda job: (-job.guessed, job.job))


# Limit of the rows of each table; sums include the rows left out.
LISTED: Final = 100


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that still receives chunks.

    `cells` is the number of workers, DP × PP, `covered` that of workers with operations;
    `longest_gap_s` is the longest time between two chunks, `refused` the number of refused chunks;
    `missing` are the producers in the metadata that have sent no chunk.
    """

    id: uuid.UUID
    job: str
    number: int
    received_at: datetime
    last_chunk_at: datetime
    chunks: int
    producers: int
    operations: int
    cells: int
    covered: int
    longest_gap_s: float
    refused: int
    missing: Sequence[str]


@dataclass(frozen=True, slots=True)
class Lagging:
    """A producer of an open session; `behind` is its delay after the session's latest chunk."""

    job: str
    session: uuid.UUID
    number: int
    producer: str
    chunks: int
    last_at: datetime
    behind: timedelta
    final: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Bodies refused for one reason; `last_job` is the job name in the latest refused body."""

    code: str
    bodies: int
    bytes: int
    last_at: datetime
    last_job: str


@dataclass(frozen=True, slots=True)
class JobIntake:
    """Sessions of a job by outcome; `silence` counts sessions that were sealed after a silence."""

    job: str
    sessions: int
    analyzed: int
    no_verdict: int
    discarded: int
    failed: int
    underway: int
    silence: int
    refused: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class IngestHealth:
    """Health of ingest since a time; lists have at most a hundred rows."""

    now: datetime
    since: datetime
    sessions: int
    bytes: int
    operations: int
    last_at: datetime | None
    open_count: int
    open: Sequence[OpenSession]
    lagging: Sequence[Lagging]
    refusals: Sequence[Refusal]
    job_count: int
    jobs: Sequence[JobIntake]
    guessing_count: int
    guessing: Sequence[GuessingJob]


def ingest_health(tx: Reads, since: datetime) -> IngestHealth:
    """Return the health of ingest since a time."""
    sessions, size, operations, last_at = tx.session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(Session.body_bytes), 0),
            func.coalesce(func.sum(Session.operations), 0),
            func.max(Session.received_at),
        ).where(Session.received_at >= since)
    ).one()
    open_count = tx.session.execute(
        select(func.count()).where(Session.state == SessionState.OPEN)
    ).scalar_one()
    jobs, guessing = _jobs(tx, since), guessing_jobs(tx, since)
    return IngestHealth(
        now=tx.now,
        since=since,
        sessions=sessions,
        bytes=int(size),
        operations=int(operations),
        last_at=last_at,
        open_count=open_count,
        open=_open(tx),
        lagging=_lagging(tx),
        refusals=_refusals(tx, since),
        job_count=len(jobs),
        jobs=jobs[:LISTED],
        guessing_count=len(guessing),
        guessing=guessing[:LISTED],
    )


def _open(tx: Reads) -> list[OpenSession]:
    cells_of = func.unnest(Chunk.cells).table_valued("cell").lateral("cell")
    covered = (
        select(func.count(cells_of.c.cell.distinct()))
        .select_from(Chunk)
        .join(cells_of, true())
        .where(Chunk.session_id == Session.id)
        .correlate(Session)
        .scalar_subquery()
    )
    names = (
        select(func.array_agg(Chunk.producer.distinct()))
        .where(Chunk.session_id == Session.id)
        .scalar_subquery()
    )
    rows = tx.session.execute(
        select(Session, Job.name, Intake, covered, names)
        .join(Job, Job.id == Session.job_id)
        .join(Intake, Intake.session_id == Session.id)
        .where(Session.state == SessionState.OPEN)
        .order_by(Intake.last_chunk_at)
        .limit(LISTED)
    )
    sessions = []
    for session, job, intake, cells, sent in rows:
        listed = session.meta.get(PRODUCERS_KEY)
        expected = [str(name) for name in listed] if isinstance(listed, list) else []
        sessions.append(
            OpenSession(
                id=session.id,
                job=job,
                number=session.number,
                received_at=session.received_at,
                last_chunk_at=intake.last_chunk_at,
                chunks=intake.chunks,
                producers=intake.producers,
                operations=session.operations,
                cells=session.dp * session.pp,
                covered=cells or 0,
                longest_gap_s=intake.longest_gap_s,
                refused=intake.refused_chunks,
                missing=sorted(set(expected) - set(sent or ())),
            )
        )
    return sessions


def _lagging(tx: Reads) -> list[Lagging]:
    last = func.max(Chunk.received_at)
    behind = Intake.last_chunk_at - last
    rows = tx.session.execute(
        select(
            Job.name,
            Session.id,
            Session.number,
            Chunk.producer,
            func.count(),
            last,
            behind,
            func.bool_or(Chunk.final),
        )
        .join(Session, Session.id == Chunk.session_id)
        .join(Job, Job.id == Session.job_id)
        .join(Intake, Intake.session_id == Session.id)
        .where(Session.state == SessionState.OPEN)
        .group_by(Job.name, Session.id, Session.number, Chunk.producer, Intake.last_chunk_at)
        .order_by(func.bool_or(Chunk.final), behind.desc(), Chunk.producer)
        .limit(LISTED)
    )
    return [Lagging(*row) for row in map(tuple, rows)]


def _refusals(tx: Reads, since: datetime) -> list[Refusal]:
    bodies, latest = func.sum(IngestRefusal.bodies), IngestRefusal.last_at.desc()
    rows = tx.session.execute(
        select(
            IngestRefusal.code,
            bodies,
            func.sum(IngestRefusal.bytes),
            func.max(IngestRefusal.last_at),
            func.array_agg(aggregate_order_by(IngestRefusal.last_job, latest)),
        )
        .where(IngestRefusal.day >= since.astimezone(UTC).date())
        .group_by(IngestRefusal.code)
        .order_by(bodies.desc(), IngestRefusal.code)
        .limit(LISTED)
    )
    return [
        Refusal(code, int(number), int(size), last_at, jobs[0])
        for code, number, size, last_at, jobs in rows
    ]


def _jobs(tx: Reads, since: datetime) -> list[JobIntake]:
    """Return the session outcomes of each job, jobs with problems first."""

    def of(*states: str) -> ColumnElement[int]:
        return func.count().filter(Session.state.in_(states))

    refused = func.coalesce(func.sum(Intake.refused_chunks), 0)
    silence = func.count(case((Intake.sealed_by == "silence", 1)))
    rows = tx.session.execute(
        select(
            Job.name,
            func.count(),
            of(SessionState.ANALYZED),
            of(SessionState.NO_VERDICT),
            of(SessionState.DISCARDED),
            of(SessionState.FAILED),
            of(*SessionState.UNDERWAY),
            silence,
            refused,
            func.max(Session.received_at),
        )
        .join(Job, Job.id == Session.job_id)
        .outerjoin(Intake, Intake.session_id == Session.id)
        .where(Session.received_at >= since)
        .group_by(Job.name)
    )
    return sorted(
        (JobIntake(*row) for row in map(tuple, rows)),
        key=lambda job: (-(job.failed + job.discarded + job.no_verdict + job.refused), job.job),
    )


# Largest age of a refusal that is shown while a first job is being connected.
RECENT: Final = timedelta(days=1)
# Number of the newest audit entries that are searched for refused senders: the audit log has no
# index for them.
_NEWEST: Final = 500
_AUTHORIZATION_CODES: Final = (UnauthenticatedError.code, ForbiddenError.code, JOB_FORBIDDEN)
_SENDING: Final = ("POST /api/v1/jobs/%", "PUT /api/v1/jobs/%")


@dataclass(frozen=True, slots=True)
class Refused:
    """The latest refusal: its code and time."""

    code: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Progress of connecting a first job."""

    project: str
    token_at: datetime | None
    """Creation of the newest valid token that may send to the project."""
    refused: Refused | None
    """The latest refusal of the last day, of a sender's token or of a body."""


def first_arrivals(tx: Reads) -> Arrivals:
    """Return the progress of connecting a first job to the transaction's project."""
    token_at = tx.session.execute(
        select(func.max(Token.created_at)).where(
            Token.revoked_at.is_(None),
            or_(Token.expires_at.is_(None), Token.expires_at > tx.now),
            Token.scopes.overlap([Right.INGEST, Right.ADMIN]),
            or_(Token.project_id.is_(None), Token.project_id == tx.scope.project_id),
        )
    ).scalar_one()
    since = tx.now - RECENT
    newest = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(_NEWEST).subquery()
    # The audit entry of a refused sender belongs to no project.
    senders = tx.session.execute(
        select(newest.c.detail, newest.c.at)
        .where(
            newest.c.action == Action.REFUSED,
            newest.c.detail.in_(_AUTHORIZATION_CODES),
            or_(*(newest.c.subject.like(route) for route in _SENDING)),
            newest.c.at >= since,
        )
        .order_by(newest.c.id.desc())
        .limit(1)
    )
    bodies = tx.session.execute(
        select(IngestRefusal.code, IngestRefusal.last_at)
        .where(IngestRefusal.day >= since.astimezone(UTC).date(), IngestRefusal.last_at >= since)
        .order_by(IngestRefusal.last_at.desc())
        .limit(1)
    )
    refused = [Refused(code, at) for code, at in (*senders, *bodies)]
    return Arrivals(
        project=project_name(tx),
        token_at=token_at,
        refused=max(refused, key=lambda refusal: refusal.at, default=None),
    )


# Limit of the stored characters of a refused body's job name, which is not validated.
MAX_CHARS: Final = 200


def count_refused_body(container: Container, job: str, size: int, code: str) -> None:
    """Count a refused body of `size` bytes, by day and error code."""
    with container.uow() as tx:
        count_refusal(tx, job, size, code)


def count_refusal(tx: UnitOfWork, job: str, size: int, code: str) -> None:
    """Count a refused body of `size` bytes within the caller's transaction."""
    tx.session.execute(
        insert(IngestRefusal)
        .values(
            day=tx.now.astimezone(UTC).date(),
            code=code,
            bodies=1,
            bytes=size,
            last_at=tx.now,
            last_job=job[:MAX_CHARS],
        )
        .on_conflict_do_update(
            index_elements=["project_id", "day", "code"],
            set_={
                "bodies": IngestRefusal.bodies + 1,
                "bytes": IngestRefusal.bytes + size,
                "last_at": tx.now,
                "last_job": job[:MAX_CHARS],
            },
        )
    )

"""The read side of ingest: what arrives, what lags, what was refused, and what came of it."""

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
from app.errors import ForbiddenError, UnauthenticatedError
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import Right
from app.sessions.models.tables import Chunk, IngestRefusal, Intake, Session

# ---- Which jobs guess the names of their nodes: they run in containers that are not told them ----


@dataclass(frozen=True, slots=True)
class GuessingJob:
    """A job whose latest session guesses hosts; `example` is one of them."""

    job: str
    guessed: int
    hosts: int
    example: str
    last_at: datetime


def guessing_jobs(tx: Reads, since: datetime) -> list[GuessingJob]:
    """Return the jobs whose latest session since then guesses, those that guess most first."""
    # The metadata of large jobs are long: of each job one is read.
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
    found = [
        GuessingJob(job, len(guessed), len(set((hosts or {}).values())), min(guessed), last_at)
        for job, guessed, hosts, last_at in rows
        if guessed
    ]
    return sorted(found, key=lambda one: (-one.guessed, one.job))


# Rows of each table; the sums are of all.
LISTED: Final = 100
# The key of the metadata that lists the producers to wait for.
_PRODUCERS_KEY: Final = "producers"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that takes chunks.

    `cells` are DP × PP, `covered` those with operations; `longest_gap_s` is between two chunks so
    far, `refused` counts chunks that were not taken, and `missing` are producers that the metadata
    list and that have sent nothing.
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
    """A producer of an open session, and how far it is behind the session's latest chunk."""

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
    """Bodies that were refused for good for one reason; the job is as its sender called it."""

    code: str
    bodies: int
    bytes: int
    last_at: datetime
    last_job: str


@dataclass(frozen=True, slots=True)
class JobIntake:
    """What came of a job in a time; `silence` are sessions that only silence sealed."""

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
    """How ingest is doing; lists hold a hundred at most."""

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
    """Return how ingest is doing, and what it was since then."""
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
    found = []
    for session, job, intake, cells, sent in rows:
        listed = session.meta.get(_PRODUCERS_KEY)
        expected = [str(name) for name in listed] if isinstance(listed, list) else []
        found.append(
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
    return found


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
    """Return what came of each job, jobs with problems first."""

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
    found = [JobIntake(*row) for row in map(tuple, rows)]
    found.sort(
        key=lambda job: (-(job.failed + job.discarded + job.no_verdict + job.refused), job.job)
    )
    return found


# ---- What has come of connecting a first job: its token, and what was refused on the way -------


# What was refused longer ago has been mended, or given up.
RECENT: Final = timedelta(days=1)
# The audit log has no index of what was refused; what matters here is among the newest.
_NEWEST: Final = 500
_AT_THE_DOOR: Final = (UnauthenticatedError.code, ForbiddenError.code)
_SENDING: Final = ("POST /api/v1/jobs/%", "PUT /api/v1/jobs/%")


@dataclass(frozen=True, slots=True)
class Refused:
    """What was refused last: the code of its reason, and when."""

    code: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How far a first job has come."""

    project: str
    # when the newest token was made that may send to this project
    token_at: datetime | None
    # Of the last day, the newest: a sender whom the server does not know, or a body.
    refused: Refused | None


def first_arrivals(tx: Reads) -> Arrivals:
    """Return how far a first job of the transaction's project has come."""
    token_at = tx.session.execute(
        select(func.max(Token.created_at)).where(
            Token.revoked_at.is_(None),
            or_(Token.expires_at.is_(None), Token.expires_at > tx.now),
            Token.scopes.overlap([Right.INGEST, Right.ADMIN]),
            or_(Token.project_id.is_(None), Token.project_id == tx.scope.project_id),
        )
    ).scalar_one()
    found = [*_at_the_door(tx), *_bodies(tx)]
    return Arrivals(
        project=project_name(tx),
        token_at=token_at,
        refused=max(found, key=lambda one: one.at, default=None),
    )


def _at_the_door(tx: Reads) -> list[Refused]:
    """Return the last sender that was not let in: of which project is not known, nor who."""
    newest = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(_NEWEST).subquery()
    rows = tx.session.execute(
        select(newest.c.detail, newest.c.at)
        .where(
            newest.c.action == Action.REFUSED,
            newest.c.detail.in_(_AT_THE_DOOR),
            or_(*(newest.c.subject.like(route) for route in _SENDING)),
            newest.c.at >= tx.now - RECENT,
        )
        .order_by(newest.c.id.desc())
        .limit(1)
    )
    return [Refused(code, at) for code, at in rows]


def _bodies(tx: Reads) -> list[Refused]:
    since = tx.now - RECENT
    rows = tx.session.execute(
        select(IngestRefusal.code, IngestRefusal.last_at)
        .where(IngestRefusal.day >= since.astimezone(UTC).date(), IngestRefusal.last_at >= since)
        .order_by(IngestRefusal.last_at.desc())
        .limit(1)
    )
    return [Refused(code, at) for code, at in rows]


# ---- Bodies that were refused, counted by day and reason, so that it is noticed ----------------


# Of the job's name: it is what the sender wrote, and may be anything.
MAX_CHARS: Final = 200


def count_refused_body(container: Container, job: str, size: int, code: str) -> None:
    """Count a body of `size` bytes that was refused for good."""
    with container.uow() as tx:
        count_refusal(tx, job, size, code)


def count_refusal(tx: UnitOfWork, job: str, size: int, code: str) -> None:
    """Count a refused body in another transaction."""
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

"""Use cases: export a session, a job or a project as a tar stream, and analyze sessions again.

Each session is a folder: ``session.json`` (the fields of lists), ``meta.json`` and
``trace.parquet`` (inputs of `paceline analyze` and `paceline upload`), ``report.json`` and
``heatmaps.npy``. Files that are not stored are left out. One session at a time is in memory, read
in its own transaction; a session that is deleted during the export is left out.
"""

from __future__ import annotations

import io
import json
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, CursorResult, exists, func, or_, select, update

from app.access.audit import Action, record
from app.access.projects import project_name
from app.analysis.trace.encode import to_parquet
from app.errors import ConflictError, NotFoundError
from app.jobs.models import Job
from app.platform.blobs import open_blob
from app.platform.container import Container
from app.platform.database.states import SessionState
from app.platform.database.task_runs import ANALYZE_SESSION
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.sessions.models.tables import Chunk, Session, StoredReport
from app.sessions.read import SessionRow, get_session, no_session, report_json
from app.sessions.receive import no_job
from app.sessions.replays import stored_trace, whole_session

_MODE: Final = 0o644


def export_session(container: Container, session_id: uuid.UUID) -> Iterator[bytes]:
    """Return a session as a tar file, piece by piece.

    Raises
    ------
    NotFoundError
        Before the first piece, if there is no such session.
    """
    with container.uow() as tx:
        row = get_session(tx, session_id, container.settings).row
        _note(container, tx, f"session {row.number} of {row.job}")
    return _tar(container, [session_id])


def export_job(container: Container, job: str) -> Iterator[bytes]:
    """Return the sessions of a job as a tar file, piece by piece, the oldest first.

    Raises
    ------
    NotFoundError
        Before the first piece, if there is no such job.
    """
    with container.uow() as tx:
        job_id = tx.session.execute(select(Job.id).where(Job.name == job)).scalar()
        if job_id is None:
            raise no_job(job)
        rows = tx.session.execute(
            select(Session.id).where(Session.job_id == job_id).order_by(Session.received_at)
        ).scalars()
        sessions = list(rows)
        _note(container, tx, f"job {job}")
    return _tar(container, sessions)


def export_project(container: Container) -> Iterator[bytes]:
    """Return all sessions of a project as a tar file, piece by piece, the oldest first."""
    with container.uow() as tx:
        sessions = list(
            tx.session.execute(select(Session.id).order_by(Session.received_at)).scalars()
        )
        _note(container, tx, f"project {project_name(tx)}")
    return _tar(container, sessions)


def _note(container: Container, tx: UnitOfWork, what: str) -> None:
    record(tx, container.principal, Action.EXPORTED, what)


class _Pieces(io.RawIOBase):
    """Buffer between the writer of a tar file and the response."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 - as of its base
        self._waiting += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._waiting)
        self._waiting.clear()
        return taken


def _tar(container: Container, sessions: Sequence[uuid.UUID]) -> Iterator[bytes]:
    pieces = _Pieces()
    with tarfile.open(fileobj=pieces, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for session_id in sessions:
            # A session that was deleted during the export is left out.
            with suppress(NotFoundError):
                for name, content, made_at in _files(container, session_id):
                    entry = tarfile.TarInfo(name)
                    entry.size, entry.mode, entry.mtime = len(content), _MODE, made_at.timestamp()
                    tar.addfile(entry, io.BytesIO(content))
                    yield pieces.take()
    yield pieces.take()


def _files(container: Container, session_id: uuid.UUID) -> Iterator[tuple[str, bytes, datetime]]:
    with container.reading() as tx:
        view = get_session(tx, session_id, container.settings)
        trace = stored_trace(tx, session_id) if _has_trace(tx, session_id) else None
        report = report_json(tx, session_id) if view.has_report else None
        stored = tx.session.get(StoredReport, session_id)
        blob = None if stored is None else stored.heatmap_blob
        heatmaps = None if blob is None else open_blob(tx, blob)
    row = view.row
    folder = f"{row.job}/attempt-{row.attempt}/session-{row.number}"
    made = {
        "session.json": _json(_listed(row) | {"intake": view.intake and asdict(view.intake)}),
        "meta.json": _json(view.meta),
        "report.json": report,
        "heatmaps.npy": None if heatmaps is None else b"".join(heatmaps),
    }
    for name, content in made.items():
        if content is not None:
            yield f"{folder}/{name}", content, row.received_at
    if trace is not None:
        with whole_session():
            content = to_parquet(trace.unpack())
        yield f"{folder}/trace.parquet", content, row.received_at


def _has_trace(tx: Reads, session_id: uuid.UUID) -> bool:
    query = select(Session.trace_blob).where(Session.id == session_id)
    return tx.session.execute(query).scalar() is not None


def _json(document: object) -> bytes:
    return json.dumps(document, default=str, indent=1).encode()


def _listed(row: SessionRow) -> dict[str, object]:
    """Return the fields of ``session.json``."""
    listed = {name: getattr(row, name) for name in SessionRow.__slots__ if name != "verdict"}
    verdict, published, headline, known_loss = row.verdict, None, None, None
    if verdict is not None:
        published, headline, known_loss = verdict.published, verdict.headline, verdict.known
    low, high = (published and published.ci95) or (None, None)
    headline_low, headline_high = (headline and headline.ci95) or (None, None)
    return listed | {
        "slowdown": published and published.slowdown,
        "slowdown_low": low,
        "slowdown_high": high,
        "waste": published and published.waste,
        "gpu_hours_lost": published and published.gpu_hours_lost,
        "discrepancy": verdict and verdict.discrepancy,
        "headline_slowdown": headline and headline.slowdown,
        "headline_low": headline_low,
        "headline_high": headline_high,
        "headline_gpu_hours_lost": known_loss and known_loss.gpu_hours_lost,
        "headline_kind": headline and headline.kind,
    }


# A session's report stays until the new analysis has succeeded, which replaces the whole report.


# Sessions queued in one transaction: each takes a few statements, and the transaction has to stay
# short.
BATCH: Final = 50


@dataclass(frozen=True, slots=True)
class Again:
    """The outcome for one session; `queued` is false if an analysis of it was already pending."""

    session: uuid.UUID
    state: SessionState
    queued: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """The sessions to analyze again."""

    states: tuple[SessionState, ...] = (SessionState.FAILED,)
    """Only sessions in these final states."""
    job: str | None = None
    """Only sessions of this job."""
    before: datetime | None = None
    """Only sessions whose state is older, as those that the previous version analyzed."""


@dataclass(frozen=True, slots=True)
class ManyAgain:
    """Number of queued sessions, and number of selected sessions that are left to queue.

    `before` is the parameter of the next request: sessions that are queued already do not match it.
    """

    queued: int
    left: int
    before: datetime


def analyze_again(container: Container, session_id: uuid.UUID) -> Again:
    """Queue another analysis of a session, unless one is pending.

    Raises
    ------
    NotFoundError
        If there is no such session.
    ConflictError
        ``session.open`` while its chunks arrive, ``session.trace_removed`` if it has no trace.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Session.state, Job.name, Session.number, _again_has_trace().label("has_trace"))
            .join(Job, Job.id == Session.job_id)
            .where(Session.id == session_id)
        ).one_or_none()
        if row is None:
            raise no_session(session_id)
        if row.state is SessionState.OPEN:
            raise ConflictError("The session's chunks still arrive.", code="session.open")
        if not row.has_trace and not row.state.underway:
            raise ConflictError(
                "The session's operations were deleted.", code="session.trace_removed"
            )
        queued = not row.state.underway and _queue(tx, session_id)
        if queued:
            record(
                tx,
                container.principal,
                Action.ANALYZED_AGAIN,
                f"session {row.number} of {row.name}",
            )
        state = tx.session.execute(
            select(Session.state).where(Session.id == session_id)
        ).scalar_one()
    return Again(session_id, state, queued)


def analyze_many_again(container: Container, selection: Selection, limit: int) -> ManyAgain:
    """Queue another analysis of the selected sessions, the newest first, in small transactions.

    If the function is interrupted, the queued sessions stay queued; the next call queues the rest.

    Parameters
    ----------
    limit : int
        Maximum number of queued sessions: they share a queue with new sessions.
    """
    queued = 0
    before = selection.before
    while True:
        with container.uow() as tx:
            before = before or tx.now
            wanted = (
                select(Session.id)
                .join(Job, Job.id == Session.job_id)
                .where(
                    Session.state.in_(selection.states),
                    Session.state.not_in(SessionState.UNDERWAY),
                    Session.state_changed_at < before,
                    _again_has_trace(),
                )
            )
            if selection.job is not None:
                wanted = wanted.where(Job.name == selection.job)
            some = min(BATCH, limit - queued)
            newest = wanted.order_by(Session.received_at.desc(), Session.id).limit(some)
            sessions = tx.session.execute(newest).scalars().all()
            done = sum(_queue(tx, session_id) for session_id in sessions)
            queued += done
            if done:
                record(tx, container.principal, Action.ANALYZED_AGAIN, "sessions", count=done)
            if len(sessions) == some and queued < limit:
                continue
            left = tx.session.execute(
                select(func.count()).select_from(wanted.subquery())
            ).scalar_one()
            break
    return ManyAgain(queued, left, before)


def _again_has_trace() -> ColumnElement[bool]:
    chunks = exists().where(Chunk.session_id == Session.id, Chunk.blob.is_not(None))
    return or_(Session.trace_blob.is_not(None), chunks)


def _queue(tx: UnitOfWork, session_id: uuid.UUID) -> bool:
    """Queue an analysis; return False if one is pending or the trace is gone.

    The row of the task run is written before that of the session, as in all transactions, so that
    no two of them can deadlock.
    """
    with tx.session.begin_nested() as attempt:
        tx.enqueue(ANALYZE_SESSION, session_id)
        moved = cast(
            "CursorResult[Any]",
            tx.session.execute(
                update(Session)
                .where(
                    Session.id == session_id,
                    Session.state.not_in(SessionState.UNDERWAY),
                    _again_has_trace(),
                )
                .values(
                    state=SessionState.QUEUED,
                    state_changed_at=func.now(),
                    reason_code=None,
                    reason=None,
                    reason_detail=None,
                )
            ),
        ).rowcount
        if moved != 1:
            attempt.rollback()
            return False
    tx.notify_session(session_id)
    return True

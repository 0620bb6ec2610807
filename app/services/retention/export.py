"""Use cases: a session, a job or a whole project as one tar file, made while it is sent.

Each session is a folder: ``session.json`` (what lists show), ``meta.json`` and ``trace.parquet``
(which `paceline analyze` and `paceline upload` take as they are), ``report.json`` and
``heatmaps.npy``. What is not kept, or not there yet, is left out. One session is in memory at a
time, read in a transaction of its own: one that is deleted meanwhile is left out, too.
"""

from __future__ import annotations

import io
import json
import tarfile
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from app.analysis.trace.encode import to_parquet
from app.db.blobs import open_blob
from app.db.models.sessions import Job, Session, StoredReport
from app.errors import NotFoundError
from app.services.access.audit import Action, record
from app.services.access.projects import project_name
from app.services.sessions.read import SessionRow, get_session
from app.services.sessions.receive import no_job
from app.services.sessions.replays.timelines import stored_trace, whole_session
from app.services.sessions.reports import report_json

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from app.db.unit_of_work import Reads, UnitOfWork
    from app.services.container import Container

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
    """Return the sessions of a job as a tar file, the oldest first.

    Raises
    ------
    NotFoundError
        Before the first piece, if there is no such job.
    """
    with container.uow() as tx:
        job_id = tx.session.execute(select(Job.id).where(Job.name == job)).scalar()
        if job_id is None:
            raise no_job(job)
        found = tx.session.execute(
            select(Session.id).where(Session.job_id == job_id).order_by(Session.received_at)
        ).scalars()
        sessions = list(found)
        _note(container, tx, f"job {job}")
    return _tar(container, sessions)


def export_project(container: Container) -> Iterator[bytes]:
    """Return all sessions of a project as a tar file, the oldest first."""
    with container.uow() as tx:
        sessions = list(
            tx.session.execute(select(Session.id).order_by(Session.received_at)).scalars()
        )
        _note(container, tx, f"project {project_name(tx)}")
    return _tar(container, sessions)


def _note(container: Container, tx: UnitOfWork, what: str) -> None:
    record(tx, container.principal, Action.EXPORTED, what)


class _Pieces(io.RawIOBase):
    """Takes what a tar file's writer writes until it is sent."""

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
            # Deleted meanwhile.
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
    """Return a session as its file has it: how slow it is, and S."""
    listed = {name: getattr(row, name) for name in SessionRow.__slots__ if name != "verdict"}
    verdict, published, headline, known = row.verdict, None, None, None
    if verdict is not None:
        published, headline, known = verdict.published, verdict.headline, verdict.known
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
        "headline_gpu_hours_lost": known and known.gpu_hours_lost,
        "headline_kind": headline and headline.kind,
    }

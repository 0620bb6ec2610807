"""Read sessions: lists, one session's state, its report and its heatmaps."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Annotated, Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Select, case, func, select

from app.analysis.budget.split import Losses, Shares
from app.analysis.report import document
from app.analysis.report.charts import mean_heatmap
from app.analysis.report.session_verdict import KnownLoss, SessionVerdict, Slowdown
from app.errors import NotFoundError
from app.jobs.models import Job
from app.platform.database.columns import as_json
from app.platform.database.states import SealedBy, SessionState, TaskState
from app.platform.database.task_runs import ANALYZE_SESSION, TaskRun
from app.platform.database.tenant_scope import COUNTS_EVERYWHERE
from app.platform.database.unit_of_work import Reads
from app.platform.settings import Settings
from app.sessions.chunks.inbox import RefusedChunk, refused_chunks, waiting_chunks
from app.sessions.chunks.intake import silence
from app.sessions.models.reports import check_version, open_report, read_document, read_heatmaps
from app.sessions.models.tables import (
    OF_SESSION,
    SLOWDOWN,
    Chunk,
    Intake,
    Session,
    StoredReport,
    StoredVerdict,
)
from app.web.lists import Column, Listing, read

# Limit of the producers listed for one session.
MAX_PRODUCERS: Final = 2048


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in a list, with its verdict if it has one."""

    id: uuid.UUID
    job: Annotated[str, Column(Job.name)]
    attempt: int
    number: Annotated[int, Column(sort="-session")]
    state: Annotated[SessionState, Column(sort="-state")]
    received_at: Annotated[datetime, Column(sort="-received")]
    state_changed_at: datetime
    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    world: int
    trace_format: str
    body_bytes: int
    operations: Annotated[int, Column(sort="-operations")]
    steps: Annotated[int, Column(sort="-steps")]
    reason_code: str | None
    reason: str | None
    verdict: Annotated[SessionVerdict | None, Column(StoredVerdict.document)]
    pinned: bool = False
    trace_removed_at: datetime | None = None
    report_removed_at: datetime | None = None

    @property
    def headline(self) -> Slowdown | None:
        """Return the headline slowdown; None without a verdict or while it is analyzed again."""
        if self.state is not SessionState.ANALYZED or self.verdict is None:
            return None
        return self.verdict.headline

    @property
    def known(self) -> Slowdown | KnownLoss | None:
        """Return the slowdown or, if it is withheld, the known loss of the named causes."""
        return None if self._reported is None else self._reported.known

    @property
    def lost_each_hour(self) -> float | None:
        """Return the GPU-hours that the largest known loss costs per hour of training."""
        lost = None if self._reported is None else self._reported.lost
        return None if lost is None else self.world * lost

    @property
    def losses(self) -> Losses | None:
        """Return the losses of the time budget, which exist also without a verdict."""
        return None if self._reported is None else self._reported.losses

    @property
    def shares(self) -> Shares | None:
        """Return the shares of the time budget, which exist also without a verdict."""
        return None if self._reported is None else self._reported.shares

    @property
    def _reported(self) -> SessionVerdict | None:
        """Return the stored verdict; None while the session is analyzed again."""
        return self.verdict if self.state in SessionState.REPORTED else None


SESSIONS: Final = Listing(
    SessionRow,
    lambda query: query.select_from(Session).join(Job).outerjoin(*OF_SESSION),
    ties=(Session.received_at.desc(), Session.id.expression),
    default_sort="-received",
    model=Session,
    key=Session.id.expression,
    others={
        "slowdown": Column(by=SLOWDOWN, sort="-slowdown"),
        "lost": Column(
            by=Session.world * case((Session.state.in_(SessionState.REPORTED), StoredVerdict.lost)),
            sort="-lost",
        ),
        "discrepancy": Column(by=StoredVerdict.discrepancy, sort="-discrepancy"),
        "stragglers": Column(by=StoredVerdict.lost_to_stragglers, sort="-stragglers"),
        "between": Column(by=StoredVerdict.lost_between, sort="-between"),
        "together": Column(by=StoredVerdict.lost_together, sort="-together"),
    },
)


@dataclass(frozen=True, slots=True)
class WorkStatus:
    """The state of a session's latest analysis."""

    state: TaskState  # state of the analysis' task run
    attempt: int  # 1 for the first claim by a worker; 0 before it
    position: int | None  # place in the queue, from 1; None unless queued
    # error_code, error: why the task run is dead
    error_code: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class ProducerView:
    """Counts of the chunks that one producer sent to a session."""

    producer: str
    chunks: int
    operations: int
    body_bytes: int
    final: bool


@dataclass(frozen=True, slots=True)
class IntakeView:
    """The intake of a session in chunks; each further chunk postpones `seals_at`."""

    chunks: int
    # refused_chunks, refused_bytes: number and bytes of the refused chunks
    refused_chunks: int
    refused_bytes: int
    last_chunk_at: datetime
    sealed_at: datetime | None
    sealed_by: SealedBy | None
    seals_at: datetime | None  # time at which silence seals the session; None if it is sealed
    producers: tuple[ProducerView, ...]  # sorted by name; at most `MAX_PRODUCERS`
    waiting_chunks: int  # chunks that were received and are not decoded yet
    refused: tuple[RefusedChunk, ...]  # latest chunks that were refused when decoded


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session with its metadata, intake and analysis, without its report."""

    row: SessionRow
    meta: Mapping[str, Any]
    """Metadata document, normalized."""
    reason_detail: Mapping[str, Any] | None
    """Faults behind `row.reason`."""
    work: WorkStatus | None
    """None if its analysis was never queued."""
    intake: IntakeView | None
    """None if the session was received in one body."""
    has_report: bool
    has_heatmaps: bool
    now: datetime
    """The database's time when it was read."""


def list_sessions(
    tx: Reads, limit: int, job: str | None = None, state: SessionState | None = None
) -> list[SessionRow]:
    """Return sessions, newest first; optionally only those of a job or in a state."""
    where: list[ColumnElement[bool]] = []
    if job is not None:
        where.append(Job.name == job)
    if state is not None:
        where.append(Session.state == state)
    return read(tx, SESSIONS, *where, limit=limit)


def get_session(tx: Reads, session_id: uuid.UUID, settings: Settings) -> SessionView:
    """Return one session with its metadata, intake and the state of its analysis.

    Raises
    ------
    NotFoundError
        There is no such session.
    """
    latest_run: Select[*tuple[Any, ...]] = (
        select(
            TaskRun.state, TaskRun.attempt, TaskRun.created_at, TaskRun.error_code, TaskRun.error
        )
        .where(TaskRun.kind == ANALYZE_SESSION, TaskRun.subject_id == session_id)
        .order_by(TaskRun.created_at.desc(), TaskRun.id)
        .limit(1)
    )
    query = (
        SESSIONS.query()
        .add_columns(
            Session.meta,
            Session.reason_detail,
            StoredReport.session_id.is_not(None).label("has_report"),
            StoredReport.heatmap_blob.is_not(None).label("has_heatmaps"),
            as_json(latest_run).label("runs"),
        )
        .outerjoin(StoredReport, StoredReport.session_id == Session.id)
        .where(Session.id == session_id)
    )
    columns = tx.session.execute(query).mappings().one_or_none()
    if columns is None:
        raise no_session(session_id)
    [row] = SESSIONS.rows([columns])
    return SessionView(
        row=row,
        meta=columns["meta"],
        reason_detail=columns["reason_detail"],
        work=_work(tx, columns["runs"]),
        intake=_intake(tx, session_id, settings.session_silence_limit_s),
        has_report=columns["has_report"],
        has_heatmaps=columns["has_heatmaps"],
        now=tx.now,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """The task run of an analysis."""

    state: TaskState
    attempt: int
    created_at: datetime
    error_code: str | None
    error: str | None


_RUNS: Final = TypeAdapter(tuple[_Run, ...])


def _work(tx: Reads, runs: object) -> WorkStatus | None:
    run = next(iter(_RUNS.validate_python(runs or ())), None)
    if run is None:
        return None
    position = None
    if run.state is TaskState.QUEUED:
        position = (
            1
            + tx.session.execute(
                select(func.count()).where(
                    TaskRun.kind == ANALYZE_SESSION,
                    TaskRun.state == TaskState.QUEUED,
                    TaskRun.created_at < run.created_at,
                ),
                execution_options=COUNTS_EVERYWHERE,
            ).scalar_one()
        )
    return WorkStatus(run.state, run.attempt, position, run.error_code, run.error)


def _intake(tx: Reads, session_id: uuid.UUID, silence_limit_s: float) -> IntakeView | None:
    row = tx.session.execute(
        select(Intake, waiting_chunks(session_id)).where(Intake.session_id == session_id)
    ).one_or_none()
    if row is None:
        return None
    intake, waiting = row
    producers = tx.session.execute(
        select(
            Chunk.producer,
            func.count(),
            func.sum(Chunk.operations),
            func.sum(Chunk.body_bytes),
            func.bool_or(Chunk.final),
        )
        .where(Chunk.session_id == session_id)
        .group_by(Chunk.producer)
        .order_by(Chunk.producer)
        .limit(MAX_PRODUCERS)
    )
    return IntakeView(
        chunks=intake.chunks,
        refused_chunks=intake.refused_chunks,
        refused_bytes=intake.refused_bytes,
        last_chunk_at=intake.last_chunk_at,
        sealed_at=intake.sealed_at,
        sealed_by=intake.sealed_by,
        seals_at=None
        if intake.sealed_at is not None
        else intake.last_chunk_at + silence(intake.longest_gap_s, silence_limit_s, intake.pause_s),
        producers=tuple(
            ProducerView(name, chunks, int(operations), int(body_bytes), final)
            for name, chunks, operations, body_bytes, final in producers
        ),
        waiting_chunks=waiting,
        refused=refused_chunks(tx, session_id) if intake.refused_chunks else (),
    )


def no_session(session_id: uuid.UUID) -> NotFoundError:
    """Return the error for an unknown session."""
    return NotFoundError(f"There is no session {session_id}.")


def no_trace(state: SessionState, removed_at: datetime | None) -> NotFoundError:
    """Return the error for a session whose trace is not stored yet or was deleted."""
    if removed_at is not None:
        return NotFoundError(
            f"The operations were deleted on {removed_at:%Y-%m-%d}; the report stays "
            "as long as the project keeps reports.",
            code="trace.removed",
        )
    if state.underway:
        return NotFoundError(
            f"There is no timeline yet: the session is {state}.", code="report.not_ready"
        )
    return NotFoundError(f"The session is {state}; its chunks are no trace.", code="report.none")


# Number of sessions whose heatmaps stay in memory: paging through a session's steps must not read a
# report of megabytes each time. The heatmaps of 1,024 × 64 workers and 50 steps have 13 MB.
CACHED_HEATMAPS: Final = 4


def report_json(tx: Reads, session_id: uuid.UUID) -> bytes:
    """Return the report of a session as JSON text, schema ``paceline.report/1``.

    Raises
    ------
    NotFoundError
        If there is no such session, or it has no report (yet).
    UnknownDocumentError
        If a later version of Paceline stored it.
    """
    text = read_document(tx, _report(tx, session_id))
    check_version(text)
    return text


def report_document(tx: Reads, session_id: uuid.UUID) -> document.Report:
    """Return the report of a session.

    Raises
    ------
    NotFoundError
        As `report_json` does.
    UnknownDocumentError
        If a later version of Paceline stored it.
    """
    return open_report(read_document(tx, _report(tx, session_id)))


def heatmap(tx: Reads, session_id: uuid.UUID, step: int | None = None) -> NDArray[np.float32]:
    """Return the slowdown S_w of each worker in one step, float32, shape (dp, pp).

    S_w is the slowdown if only this worker kept its recorded durations.

    Parameters
    ----------
    step : int, optional
        A training step; without it the mean over the analyzed steps.

    Raises
    ------
    NotFoundError
        If there is no such session, no report, or the step was not analyzed.
    """
    report = _report(tx, session_id)
    blob = report.heatmap_blob
    if blob is None:
        if step is None:
            mean = open_report(read_document(tx, report)).by_worker.exact
            return np.asarray(mean, np.float32)
        raise NotFoundError(
            "The heatmaps of single steps were deleted.", code="report.heatmaps_removed"
        )
    maps = _heatmaps.get(blob)
    if maps is None:
        steps = open_report(read_document(tx, report)).steps.analyzed
        maps = _Heatmaps({number: at for at, number in enumerate(steps)}, read_heatmaps(tx, blob))
        _heatmaps.put(blob, maps)
    if step is None:
        return mean_heatmap(maps.values)
    at = maps.position.get(step)
    if at is None:
        raise NotFoundError(f"Step {step} was not analyzed.", code="step_not_analyzed")
    return cast("NDArray[np.float32]", maps.values[at])


def _report(tx: Reads, session_id: uuid.UUID) -> StoredReport:
    report = tx.session.get(StoredReport, session_id)
    if report is not None:
        return report
    session = tx.session.get(Session, session_id)
    if session is None:
        raise no_session(session_id)
    if session.state.underway:
        raise NotFoundError(
            f"There is no report yet: the session is {session.state}.", code="report.not_ready"
        )
    if session.report_removed_at is not None:
        raise NotFoundError(
            f"The report was deleted on {session.report_removed_at:%Y-%m-%d}.",
            code="report.removed",
        )
    why = f": {session.reason}" if session.reason else "."
    raise NotFoundError(f"The session is {session.state}{why}", code="report.none")


@dataclass(frozen=True, slots=True, eq=False)
class _Heatmaps:
    position: Mapping[int, int]
    values: NDArray[np.float32]


class _HeatmapCache:
    """Cache of the most recently used heatmaps by blob id; blobs are immutable."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[uuid.UUID, _Heatmaps] = OrderedDict()

    def get(self, blob_id: uuid.UUID) -> _Heatmaps | None:
        with self._lock:
            if blob_id in self._kept:
                self._kept.move_to_end(blob_id)
            return self._kept.get(blob_id)

    def put(self, blob_id: uuid.UUID, maps: _Heatmaps) -> None:
        with self._lock:
            self._kept[blob_id] = maps
            while len(self._kept) > CACHED_HEATMAPS:
                self._kept.popitem(last=False)


_heatmaps = _HeatmapCache()

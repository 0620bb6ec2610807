"""The read side: sessions, their reports, heatmaps and timelines, for pages and the API."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from sqlalchemy import Select, func, or_, select

from app.analysis.timeline import perfetto, step_timeline
from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.storage import unpack
from app.db.blobs import read_blob
from app.db.models import ANALYZE_SESSION, Job, Report, Session, TaskRun
from app.errors import NotFoundError
from app.services.report_store import read_document, read_heatmaps

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from app.analysis.timeline import Timeline
    from app.analysis.trace.model import Trace
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

# What a session may still become something else from.
PENDING_STATES: Final = ("open", "sealed", "queued", "analyzing")

# A stream of events that starts is told at most this many states.
MAX_STATES: Final = 1000

# Heatmaps of so many sessions stay in memory: choosing step after step must not read a report of
# megabytes each time. 1,024 × 64 workers and 50 steps are 13 MB.
CACHED_HEATMAPS: Final = 4


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as lists show it; the numbers of its verdict are None until there is one."""

    id: uuid.UUID
    job: str
    attempt: int
    number: int
    state: str
    received_at: datetime
    state_changed_at: datetime
    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    world: int
    trace_format: str
    body_bytes: int
    operations: int
    steps: int
    reason_code: str | None
    reason: str | None
    slowdown: float | None
    slowdown_low: float | None
    slowdown_high: float | None
    waste: float | None
    gpu_hours_lost: float | None
    discrepancy: float | None
    headline: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class WorkStatus:
    """The latest analysis of a session.

    Parameters
    ----------
    state : str
        Of the task run: queued, running, done, dead.
    attempt : int
        Counts from 1 once a worker has claimed it.
    position : int or None
        Place in the queue, from 1; None unless queued.
    error_code, error : str or None
        Why it is dead.
    """

    state: str
    attempt: int
    position: int | None
    error_code: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class SessionView:
    """Everything of one session but its report.

    Parameters
    ----------
    row : SessionRow
    meta : mapping
        Metadata document, normalized.
    reason_detail : mapping or None
        Faults behind `row.reason`.
    work : WorkStatus or None
        None where nothing was ever to be done.
    has_report : bool
    now : datetime
        The database's time of this view.
    """

    row: SessionRow
    meta: Mapping[str, Any]
    reason_detail: Mapping[str, Any] | None
    work: WorkStatus | None
    has_report: bool
    now: datetime


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session's state and since when, in microseconds of the database's time since 1970."""

    session: uuid.UUID
    state: str
    changed_us: int


def list_sessions(
    container: Container, limit: int, job: str | None = None, state: str | None = None
) -> list[SessionRow]:
    """Return sessions, newest first.

    Parameters
    ----------
    container : Container
    limit : int
        At most so many.
    job, state : str, optional
        Only those of this job, in this state.
    """
    query = _rows().order_by(Session.received_at.desc(), Session.id).limit(limit)
    if job is not None:
        query = query.where(Job.name == job)
    if state is not None:
        query = query.where(Session.state == state)
    with container.uow() as tx:
        return [SessionRow(*row) for row in tx.session.execute(query)]


def get_session(container: Container, session_id: uuid.UUID) -> SessionView:
    """Return one session.

    Raises
    ------
    NotFoundError
        If there is no such session.
    """
    query = (
        _rows()
        .add_columns(Session.meta, Session.reason_detail, Report.session_id)
        .outerjoin(Report, Report.session_id == Session.id)
        .where(Session.id == session_id)
    )
    with container.uow() as tx:
        found = tx.session.execute(query).one_or_none()
        if found is None:
            raise _no_session(session_id)
        *row, meta, reason_detail, report = found
        return SessionView(
            row=SessionRow(*row),
            meta=meta,
            reason_detail=reason_detail,
            work=_work(tx, session_id),
            has_report=report is not None,
            now=tx.now,
        )


def report_json(container: Container, session_id: uuid.UUID) -> bytes:
    """Return the report of a session as JSON text, schema ``paceline.report/1``.

    Raises
    ------
    NotFoundError
        If there is no such session, or it has no report (yet).
    """
    with container.uow() as tx:
        return read_document(tx, _report(tx, session_id))


def report_document(container: Container, session_id: uuid.UUID) -> dict[str, Any]:
    """Return the report of a session; raises as `report_json` does."""
    return cast("dict[str, Any]", json.loads(report_json(container, session_id)))


def heatmap(
    container: Container, session_id: uuid.UUID, step: int | None = None
) -> NDArray[np.float32]:
    """Return the slowdown of one step if only that worker kept its recorded durations.

    Parameters
    ----------
    container : Container
    session_id : UUID
    step : int, optional
        A training step; without it the mean over the analyzed steps.

    Returns
    -------
    float32 array, shape (dp, pp)
        NaN where nothing is known.

    Raises
    ------
    NotFoundError
        If there is no such session, no report, or the step was not analyzed.
    """
    with container.uow() as tx:
        report = _report(tx, session_id)
        maps = _heatmaps.get(report.heatmap_blob)
        if maps is None:
            steps = json.loads(read_document(tx, report))["steps"]["analyzed"]
            maps = _Heatmaps(
                {number: at for at, number in enumerate(steps)}, read_heatmaps(tx, report)
            )
            _heatmaps.put(report.heatmap_blob, maps)
    if step is None:
        return maps.mean
    at = maps.position.get(step)
    if at is None:
        raise NotFoundError(f"Step {step} was not analyzed.", code="step_not_analyzed")
    return cast("NDArray[np.float32]", maps.values[at])


def timeline(
    container: Container,
    session_id: uuid.UUID,
    step: int,
    dp_ranks: Sequence[int] | None = None,
) -> Timeline:
    """Return the recorded and the ideal timeline of one step.

    Parameters
    ----------
    container : Container
    session_id : UUID
    step : int
        A training step.
    dp_ranks : sequence of int, optional
        Only these DP ranks.

    Raises
    ------
    NotFoundError
        If there is no such session, or the trace has no such step or DP rank.
    UnanalyzableError
        If the trace cannot be replayed.
    """
    return step_timeline(stored_trace(container, session_id), step, dp_ranks)


def perfetto_timeline(
    container: Container,
    session_id: uuid.UUID,
    step: int,
    dp_ranks: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return what `timeline` does as a Chrome trace, which Perfetto opens, with names of hosts."""
    trace = stored_trace(container, session_id)
    return perfetto(step_timeline(trace, step, dp_ranks), _hosts_of_workers(trace, step))


def session_states(container: Container, ids: Collection[uuid.UUID]) -> list[SessionState]:
    """Return the states of these sessions, in the order in which they changed."""
    with container.uow() as tx:
        return _states(tx, _state_rows().where(Session.id.in_(ids)))


def recent_states(
    container: Container, since_s: float, after_us: int | None = None
) -> list[SessionState]:
    """Return the states of sessions that are pending or changed lately, in order of their changes.

    Parameters
    ----------
    container : Container
    since_s : float
        How long ago "lately" begins, in seconds of the database's clock.
    after_us : int, optional
        A `SessionState.changed_us`, where it begins if that is earlier.
    """
    begin = func.now() - timedelta(seconds=since_s)
    if after_us is not None:
        begin = func.least(begin, func.to_timestamp(after_us / 1e6))
    query = _state_rows().where(
        or_(Session.state.in_(PENDING_STATES), Session.state_changed_at >= begin)
    )
    with container.uow() as tx:
        return _states(tx, query)


@dataclass(frozen=True, slots=True, eq=False)
class _Heatmaps:
    position: Mapping[int, int]
    values: NDArray[np.float32]

    @property
    def mean(self) -> NDArray[np.float32]:
        # By hand: nanmean warns of workers that no step knows.
        known = ~np.isnan(self.values)
        total = np.where(known, self.values, 0).sum(axis=0, dtype=np.float64)
        count = known.sum(axis=0)
        mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
        return cast("NDArray[np.float32]", mean.astype(np.float32))


class _HeatmapCache:
    """The heatmaps used last, by their blob, which never changes."""

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


def _rows() -> Select[Any]:
    columns = (
        Job.name if name == "job" else getattr(Session, name) for name in SessionRow.__slots__
    )
    return select(*columns).select_from(Session).join(Job)


def stored_trace(container: Container, session_id: uuid.UUID) -> Trace:
    """Return the operations of a session.

    Raises
    ------
    NotFoundError
        If there is no such session.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Session.meta, Session.trace_blob).where(Session.id == session_id)
        ).one_or_none()
        if row is None:
            raise _no_session(session_id)
        parts = list(read_blob(tx, row.trace_blob))
    return unpack(parts, parse_metadata(row.meta))


def _hosts_of_workers(trace: Trace, step: int) -> dict[tuple[int, int], str]:
    """Return the host of each (DP rank, stage): that of its lowest rank, which is analyzed."""
    at_step = trace.step == step
    triples = np.stack((trace.dp[at_step], trace.pp[at_step], trace.rank[at_step]), axis=1)
    # Sorted by rank last, highest first: the lowest one of a worker is what remains.
    ranks = {(dp, pp): rank for dp, pp, rank in np.unique(triples, axis=0)[::-1].tolist()}
    hosts = trace.meta.hosts
    return {worker: hosts[rank] for worker, rank in ranks.items() if rank in hosts}


def _work(tx: UnitOfWork, session_id: uuid.UUID) -> WorkStatus | None:
    run = tx.session.execute(
        select(TaskRun)
        .where(TaskRun.kind == ANALYZE_SESSION, TaskRun.subject_id == session_id)
        .order_by(TaskRun.created_at.desc(), TaskRun.id)
        .limit(1)
    ).scalar_one_or_none()
    if run is None:
        return None
    position = None
    if run.state == "queued":
        position = (
            1
            + tx.session.execute(
                select(func.count()).where(
                    TaskRun.kind == run.kind,
                    TaskRun.state == "queued",
                    TaskRun.created_at < run.created_at,
                )
            ).scalar_one()
        )
    return WorkStatus(run.state, run.attempt, position, run.error_code, run.error)


def _report(tx: UnitOfWork, session_id: uuid.UUID) -> Report:
    report = tx.session.get(Report, session_id)
    if report is not None:
        return report
    session = tx.session.get(Session, session_id)
    if session is None:
        raise _no_session(session_id)
    if session.state in PENDING_STATES:
        raise NotFoundError(
            f"There is no report yet: the session is {session.state}.", code="report.not_ready"
        )
    why = f": {session.reason}" if session.reason else "."
    raise NotFoundError(f"The session is {session.state}{why}", code="report.none")


def _state_rows() -> Select[uuid.UUID, str, datetime]:
    # The latest ones count where there are too many; `_states` puts them in order.
    return (
        select(Session.id, Session.state, Session.state_changed_at)
        .order_by(Session.state_changed_at.desc())
        .limit(MAX_STATES)
    )


def _states(tx: UnitOfWork, query: Select[uuid.UUID, str, datetime]) -> list[SessionState]:
    rows = tx.session.execute(query).all()
    return [
        SessionState(session, state, _microseconds(changed_at))
        for session, state, changed_at in reversed(rows)
    ]


def _microseconds(time: datetime) -> int:
    # Through a float the last digits would be lost, and with them the order of quick changes.
    return int(time.timestamp()) * 1_000_000 + time.microsecond


def _no_session(session_id: uuid.UUID) -> NotFoundError:
    return NotFoundError(f"There is no session {session_id}.")

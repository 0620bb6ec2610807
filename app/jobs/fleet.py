"""Queries of the fleet: sums over all jobs, one page of jobs, and jobs for files, in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    CTE,
    ColumnElement,
    ScalarSelect,
    Select,
    and_,
    case,
    func,
    or_,
    select,
    true,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import aliased

from app.analysis.budget.split import Losses
from app.analysis.report.session_verdict import VerdictCause
from app.incidents.models.tables import IncidentState
from app.jobs.current import (
    FleetFilter,
    JobRow,
    JobStatus,
    Loss,
    Moment,
    Show,
    job_status,
    job_statuses,
    matches,
    order,
    sessions_of,
    shown,
    silent_order,
)
from app.jobs.models import Job
from app.platform.database.columns import as_json, total
from app.platform.database.projects import Project
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads
from app.sessions.history import FLEET_SESSIONS
from app.sessions.models.tables import CAUSES, Session, StoredVerdict
from app.web.lists import Page, PageRequest, last_page

# Numbers of jobs on a page, and of silent jobs below them.
PAGE: Final = 50
SILENT_PAGE: Final = 20
# Largest number of owners that the filter offers.
OWNERS: Final = 50


@dataclass(frozen=True, slots=True)
class Group:
    """Number and losses of the jobs with the same status."""

    state: SessionState  # of the latest session
    slow: bool
    verdict: bool  # whether a slowdown is known
    incident: IncidentState | None  # of the most pressing one
    has_data: bool  # whether there is a session in the time; the other jobs are silent
    finished: bool  # whether the jobs reported their end
    jobs: int  # all
    filtered: int  # jobs that match the filter apart from `Show`
    matching: int  # jobs that match the filter
    with_verdict: int  # matching jobs with a verdict of the time; the sums below are theirs
    gpus: int
    lost: float  # GPU-hours each hour: the largest loss of each job
    wasted: float  # GPU-hours each hour, to stragglers
    between: float  # GPU-hours each hour, between steps
    together: float  # GPU-hours each hour, in steps in which all workers compute slower
    most: float  # loss of the job that loses most
    job: str | None  # its name


@dataclass(frozen=True, slots=True)
class FleetView:
    """A page of the fleet, with sums over all its jobs."""

    now: datetime
    filters: FleetFilter
    groups: Sequence[Group]  # of all jobs, either without the archive or of the archive alone
    owners: Sequence[str]
    page: Page[JobStatus]  # jobs with data in the time
    silent: Page[JobStatus]  # jobs without


_FIRST: Final = PageRequest(size=PAGE)
_GROUPS: Final = TypeAdapter(tuple[Group, ...])
_ROWS: Final = TypeAdapter(tuple[JobRow, ...])


def fleet_view(  # noqa: PLR0913 - what an address may ask for
    tx: Reads,
    at: Moment,
    filters: FleetFilter,
    *,
    page: PageRequest = _FIRST,
    silent_page: int = 1,
    brief: bool = False,
) -> FleetView:
    """Return a page of the fleet.

    Parameters
    ----------
    silent_page : int
        Page of silent jobs; a number beyond the last page means the last page.
    brief : bool
        Omit the slowdowns of earlier sessions.
    """
    jobs = job_statuses(at, archived=filters.show is Show.ARCHIVED)
    columns = jobs.c
    found_by = matches(columns, filters)
    matching = and_(found_by, shown(columns, filters.show))
    owner = jobs.c.labels["owner"].astext
    owners = (
        select(owner.label("owner"))
        .where(owner.is_not(None))
        .distinct()
        .order_by(owner)
        .limit(OWNERS)
        .subquery("owners")
    )
    answer = tx.session.execute(
        select(
            _groups(jobs, found_by, matching),
            select(func.jsonb_agg(owners.c.owner)).scalar_subquery(),
            _page(
                jobs,
                and_(columns.has_data, matching),
                order(columns, page.sort),
                page.page,
                page.size,
            ),
            _page(
                jobs,
                and_(~columns.has_data, matching),
                silent_order(columns),
                silent_page,
                SILENT_PAGE,
            ),
        )
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    groups = _GROUPS.validate_python(answer[0] or ())
    rows, silent = (_ROWS.validate_python(part or ()) for part in answer[2:])
    names = [*rows, *silent]
    sessions = sessions_of(tx, {id_ for row in names for id_ in (row.latest, row.verdict_session)})
    slowdowns = {} if brief else _slowdowns(tx, [row.job for row in rows], at)
    total, quiet = (
        sum(group.matching for group in groups if group.has_data is has_data)
        for has_data in (True, False)
    )
    return FleetView(
        now=tx.now,
        filters=filters,
        groups=groups,
        owners=sorted(answer[1] or (), key=str.lower),
        page=Page(
            [job_status(row, sessions, slowdowns.get(row.job, ())) for row in rows],
            last_page(page.page, total, page.size),
            total,
            page.size,
        ),
        silent=Page(
            [job_status(row, sessions, ()) for row in silent],
            last_page(silent_page, quiet, SILENT_PAGE),
            quiet,
            SILENT_PAGE,
        ),
    )


def _groups(
    jobs: CTE, filtered: ColumnElement[bool], matching: ColumnElement[bool]
) -> ScalarSelect[Any]:
    columns = jobs.c
    key = (
        columns.state,
        columns.slow,
        columns.slowdown.is_not(None),
        columns.incident_state,
        columns.has_data,
        columns.finished,
    )
    counted = columns.has_data & columns.verdict_lost.is_not(None) & matching
    first = func.array_agg(
        aggregate_order_by(columns.name, columns.verdict_lost.desc(), columns.name)
    )
    groups = select(
        columns.state,
        columns.slow,
        columns.slowdown.is_not(None).label("verdict"),
        columns.incident_state.label("incident"),
        columns.has_data,
        columns.finished,
        func.count().label("jobs"),
        func.count().filter(filtered).label("filtered"),
        func.count().filter(matching).label("matching"),
        func.count().filter(counted).label("with_verdict"),
        func.coalesce(func.sum(columns.verdict_gpus).filter(counted), 0).label("gpus"),
        func.coalesce(total(columns.verdict_lost, counted), 0.0).label("lost"),
        *(
            func.coalesce(total(columns.verdict_gpus * columns[loss], counted), 0.0).label(loss)
            for loss in (Loss.BETWEEN, Loss.TOGETHER)
        ),
        func.coalesce(total(columns.verdict_wasted, counted), 0.0).label("wasted"),
        func.coalesce(func.max(columns.verdict_lost).filter(counted), 0.0).label("most"),
        first.filter(counted)[1].label("job"),
    ).group_by(*key)
    return as_json(groups)


def _page(
    jobs: CTE,
    listed: ColumnElement[bool],
    ordered: Sequence[ColumnElement[Any]],
    number: int,
    size: int,
) -> ScalarSelect[Any]:
    """Return the jobs of a page in their order; of the last page if the number is too large."""
    columns = jobs.c
    total = select(func.count()).select_from(jobs).where(listed).scalar_subquery()
    last = func.greatest(0, (total - 1) // size) * size
    place = func.row_number().over(order_by=list(ordered))
    rows = (
        select(
            columns.job_id.label("job"),
            columns.name,
            columns.latest,
            columns.verdict_session,
            columns.labels,
            columns.incident,
            columns.incident_state,
            columns.finished,
            place.label("place"),
        )
        .where(listed)
        .order_by(place)
        .limit(size)
        .offset(func.least(size * (number - 1), last))
        .subquery()
    )
    row = func.to_jsonb(rows.table_valued())
    return select(func.jsonb_agg(aggregate_order_by(row, rows.c.place))).scalar_subquery()


def _slowdowns(tx: Reads, jobs: Sequence[int], at: Moment) -> dict[int, list[float | None]]:
    """Return the slowdowns of the latest completed sessions of each job, oldest first."""
    session = aliased(Session)
    of_job = (
        select(
            session.state,
            session.received_at,
            session.id,
            case((session.state == SessionState.ANALYZED, StoredVerdict.slowdown)).label(
                "slowdown"
            ),
        )
        .outerjoin(StoredVerdict, StoredVerdict.session_id == session.id)
        .where(session.job_id == Job.id)
        .order_by(session.received_at.desc(), session.id)
        .limit(FLEET_SESSIONS)
        .correlate(Job)
    )
    if at.until is not None:
        of_job = of_job.where(session.received_at <= at.until)
    latest = of_job.lateral("latest")
    slowdowns: dict[int, list[float | None]] = {}
    for job, slowdown in tx.session.execute(
        select(Job.id, latest.c.slowdown)
        .join(latest, true())
        .where(Job.id.in_(jobs), latest.c.state.not_in(SessionState.UNDERWAY))
        .order_by(Job.id, latest.c.received_at, latest.c.id.desc())
    ):
        slowdowns.setdefault(job, []).append(slowdown)
    return slowdowns


@dataclass(frozen=True, slots=True)
class VerdictSession:
    """The latest completed session of a job in a file; its verdict represents the job."""

    state: SessionState
    world: int
    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    # fields of the session's verdict
    level: str | None
    slowdown: float | None
    low: float | None
    high: float | None
    published: float | None
    lost: float | None
    stragglers: float | None
    between: float | None
    together: float | None
    causes: Sequence[VerdictCause] | None  # None if the line names no cause

    @property
    def measured(self) -> float | None:
        """Return the slowdown; None without a verdict, or while the session is analyzed again."""
        return self.slowdown if self.state is SessionState.ANALYZED else None

    @property
    def lost_each_hour(self) -> float | None:
        """Return the largest known loss in GPU-hours per hour; None without one."""
        is_known = self.state in SessionState.REPORTED and self.lost is not None
        return self.world * self.lost if is_known and self.lost is not None else None

    @property
    def losses(self) -> Losses | None:
        """Return the lost shares of the time by kind of loss; None if any share is unknown."""
        shares = (self.stragglers, self.between, self.together)
        if self.state not in SessionState.REPORTED or None in shares:
            return None
        return Losses(*(share or 0.0 for share in shares))


@dataclass(frozen=True, slots=True)
class FileJob:
    """A job as a line of a CSV file."""

    name: str
    labels: Mapping[str, str]
    incident: IncidentState | None  # of the most pressing open one
    verdict_session: VerdictSession
    # fields of the job's latest session
    state: SessionState
    number: int
    received_at: datetime
    reason: str | None
    reason_code: str | None
    discrepancy: float | None


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a job in the order of silent jobs: its sort key."""

    rank: int
    received_at: datetime
    name: str


# Number of columns of `_query` before the columns of `VerdictSession`, and including them.
_LATEST: Final = 9
_VERDICT_SESSION: Final = _LATEST + len(fields(VerdictSession))

_latest, _verdict_session = aliased(Session), aliased(Session)
_of_latest, _verdict = aliased(StoredVerdict), aliased(StoredVerdict)


def jobs_with_data(tx: Reads, at: Moment, filters: FleetFilter, page: PageRequest) -> list[FileJob]:
    """Return a page of the jobs with data in a period; an incomplete page is the last page."""
    columns = job_statuses(at, archived=filters.show is Show.ARCHIVED).c
    query = (
        _query(columns, at, filters).where(columns.has_data).order_by(*order(columns, page.sort))
    )
    query = query.limit(page.size).offset(page.size * (page.page - 1))
    return [_job(row) for row in tx.session.execute(query)]


def silent_jobs(
    tx: Reads, at: Moment, filters: FleetFilter, after: Place | None, size: int
) -> tuple[list[FileJob], Place | None]:
    """Return the next silent jobs in their order, and the position of the last returned job.

    Parameters
    ----------
    after : Place or None
        Position of the last job of the previous batch; None for the first batch.
    size : int
        Largest number of jobs; a smaller batch is the last one and has the position None.
    """
    columns = job_statuses(at, archived=filters.show is Show.ARCHIVED).c
    query = (
        _query(columns, at, filters)
        .where(~columns.has_data)
        .order_by(*silent_order(columns))
        .limit(size)
    )
    if after is not None:
        query = query.where(
            or_(
                columns.rank > after.rank,
                and_(
                    columns.rank == after.rank,
                    or_(
                        columns.received_at < after.received_at,
                        and_(columns.received_at == after.received_at, columns.name > after.name),
                    ),
                ),
            )
        )
    rows = tx.session.execute(query.add_columns(columns.rank)).all()
    jobs = [_job(row) for row in rows]
    last = jobs[-1] if len(jobs) == size else None
    place = None if last is None else Place(rows[-1].rank, last.received_at, last.name)
    return jobs, place


def _query(columns: Any, at: Moment, filters: FleetFilter) -> Select[Any]:  # noqa: ANN401 - of a CTE
    is_slow = or_(_verdict.level == "slow", _verdict.slowdown >= at.slow)
    named = or_(
        and_(_verdict_session.state == SessionState.ANALYZED, is_slow),
        _verdict_session.state == SessionState.NO_VERDICT,
    )
    selected: list[ColumnElement[Any]] = [
        columns.name,
        columns.labels,
        columns.incident_state,
        _latest.state.label("state"),
        _latest.number.label("number"),
        _latest.received_at.label("received_at"),
        _latest.reason.label("reason"),
        _latest.reason_code.label("reason_code"),
        _of_latest.discrepancy.label("discrepancy"),
        _verdict_session.state.label("verdict_state"),
        _verdict_session.world.label("world"),
        _verdict_session.dp.label("dp"),
        _verdict_session.pp.label("pp"),
        _verdict_session.tp.label("tp"),
        _verdict_session.cp.label("cp"),
        _verdict_session.vpp.label("vpp"),
        _verdict.level.label("level"),
        _verdict.slowdown.label("slowdown"),
        _verdict.low.label("low"),
        _verdict.high.label("high"),
        _verdict.published.label("published"),
        _verdict.lost.label("lost"),
        _verdict.lost_to_stragglers.label("stragglers"),
        _verdict.lost_between.label("between"),
        _verdict.lost_together.label("together"),
        # Parsing a document takes as long as the rest of a line, so it is read only if a cause is
        # named.
        type_coerce(case((named, _verdict.document["causes"])), CAUSES).label("causes"),
    ]
    return (
        select(*selected)
        .join(_latest, _latest.id == columns.latest)
        .join(_verdict_session, _verdict_session.id == columns.verdict_session)
        .outerjoin(_of_latest, _of_latest.session_id == columns.latest)
        .outerjoin(_verdict, _verdict.session_id == columns.verdict_session)
        .where(matches(columns, filters), shown(columns, filters.show))
    )


def _job(row: Any) -> FileJob:  # noqa: ANN401 - a row of `_query`
    name, labels, incident = row[:3]
    state = None if incident is None else IncidentState(incident)
    # The order of the other columns is that of the dataclass fields.
    latest, verdict_session = row[3:_LATEST], row[_LATEST:_VERDICT_SESSION]
    return FileJob(name, labels or {}, state, VerdictSession(*verdict_session), *latest)

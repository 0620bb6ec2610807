"""The read side of the fleet: its sums over all jobs, and a page of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import and_, case, func, select, true
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import aliased

from app.alerts.states import IncidentState
from app.db.json_values import as_json
from app.db.models.access import Project
from app.db.models.sessions import Job, Session, StoredVerdict
from app.db.states import SessionState
from app.db.sums import total
from app.lists.listing import PageRequest
from app.lists.pages import Page, last_page
from app.services.fleet.rows import Found, Standing, sessions_of, standing_of
from app.services.fleet.standing import (
    FleetFilter,
    Loss,
    Moment,
    Show,
    matches,
    order,
    shown,
    silent_order,
    standing,
)
from app.services.sessions.fleet import FLEET_SESSIONS

if TYPE_CHECKING:
    from sqlalchemy import CTE, ColumnElement, ScalarSelect

    from app.db.unit_of_work import Reads

# Jobs on a page, and silent ones below them.
PAGE: Final = 50
SILENT_PAGE: Final = 20
# Most owners that may be chosen.
OWNERS: Final = 50


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that stand alike: how many, and what they lose."""

    state: SessionState  # of the latest session
    slow: bool
    verdict: bool  # whether a slowdown is known
    incident: IncidentState | None  # of the most pressing one
    heard: bool  # whether there is a session in the time; the others are silent
    finished: bool  # whether the jobs said that they ended
    jobs: int  # all
    found: int  # like what is asked for, whatever they are to show: slow ones, or others
    matching: int  # that are asked for; the others of the numbers below are theirs
    told: int  # with a verdict of the time; the sums below are theirs
    gpus: int
    lost: float  # GPU-hours each hour: of each job its largest loss
    # wasted, between, together: all that is lost to stragglers, between steps, and as all workers
    # compute slower, GPU-hours each hour
    wasted: float
    between: float
    together: float
    most: float  # of the job that loses most
    job: str | None  # its name


@dataclass(frozen=True, slots=True)
class FleetView:
    """A page of the fleet, with the sums over all of it."""

    now: datetime
    filters: FleetFilter
    # Of all jobs, but for those of the archive, which are their own.
    groups: Sequence[Group]
    owners: Sequence[str]  # that jobs have
    # Those with data in the time, and those without.
    page: Page[Standing]
    silent: Page[Standing]


_FIRST: Final = PageRequest(size=PAGE)
_GROUPS: Final = TypeAdapter(tuple[Group, ...])
_FOUND: Final = TypeAdapter(tuple[Found, ...])


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
        The last one where there are not that many.
    brief : bool
        Whether no slowdowns of earlier sessions are needed: for files of many jobs.
    """
    jobs = standing(at, archived=filters.show is Show.ARCHIVED)
    one = jobs.c
    found_by = matches(one, filters)
    matching = and_(found_by, shown(one, filters.show))
    found = tx.session.execute(
        select(
            _groups(jobs, found_by, matching),
            _owners(jobs),
            _page(jobs, and_(one.heard, matching), order(one, page.sort), page.page, page.size),
            _page(jobs, and_(~one.heard, matching), silent_order(one), silent_page, SILENT_PAGE),
        )
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    groups = _GROUPS.validate_python(found[0] or ())
    rows, silent = (_FOUND.validate_python(part or ()) for part in found[2:])
    names = [*rows, *silent]
    sessions = sessions_of(tx, {id_ for row in names for id_ in (row.latest, row.told)})
    slowdowns = {} if brief else _slowdowns(tx, [row.job for row in rows], at)
    total, quiet = (
        sum(group.matching for group in groups if group.heard is heard) for heard in (True, False)
    )
    return FleetView(
        now=tx.now,
        filters=filters,
        groups=groups,
        owners=sorted(found[1] or (), key=str.lower),
        page=Page(
            [standing_of(row, sessions, slowdowns.get(row.job, ())) for row in rows],
            last_page(page.page, total, page.size),
            total,
            page.size,
        ),
        silent=Page(
            [standing_of(row, sessions, ()) for row in silent],
            last_page(silent_page, quiet, SILENT_PAGE),
            quiet,
            SILENT_PAGE,
        ),
    )


def _groups(
    jobs: CTE, found: ColumnElement[bool], matching: ColumnElement[bool]
) -> ScalarSelect[Any]:
    one = jobs.c
    key = (
        one.state,
        one.slow,
        one.slowdown.is_not(None),
        one.incident_state,
        one.heard,
        one.finished,
    )
    counted = one.heard & one.told_lost.is_not(None) & matching
    first = func.array_agg(aggregate_order_by(one.name, one.told_lost.desc(), one.name))
    groups = select(
        one.state,
        one.slow,
        one.slowdown.is_not(None).label("verdict"),
        one.incident_state.label("incident"),
        one.heard,
        one.finished,
        func.count().label("jobs"),
        func.count().filter(found).label("found"),
        func.count().filter(matching).label("matching"),
        func.count().filter(counted).label("told"),
        func.coalesce(func.sum(one.told_gpus).filter(counted), 0).label("gpus"),
        func.coalesce(total(one.told_lost, counted), 0.0).label("lost"),
        *(
            func.coalesce(total(one.told_gpus * one[loss], counted), 0.0).label(loss)
            for loss in (Loss.BETWEEN, Loss.TOGETHER)
        ),
        func.coalesce(total(one.told_wasted, counted), 0.0).label("wasted"),
        func.coalesce(func.max(one.told_lost).filter(counted), 0.0).label("most"),
        first.filter(counted)[1].label("job"),
    ).group_by(*key)
    return as_json(groups)


def _owners(jobs: CTE) -> ScalarSelect[Any]:
    owner = jobs.c.labels["owner"].astext
    owners = (
        select(owner.label("owner"))
        .where(owner.is_not(None))
        .distinct()
        .order_by(owner)
        .limit(OWNERS)
        .subquery("owners")
    )
    return select(func.jsonb_agg(owners.c.owner)).scalar_subquery()


def _page(
    jobs: CTE,
    listed: ColumnElement[bool],
    ordered: Sequence[ColumnElement[Any]],
    number: int,
    size: int,
) -> ScalarSelect[Any]:
    """Return the jobs of a page in their order; of the last one where there are not that many."""
    one = jobs.c
    total = select(func.count()).select_from(jobs).where(listed).scalar_subquery()
    last = func.greatest(0, (total - 1) // size) * size
    place = func.row_number().over(order_by=list(ordered))
    rows = (
        select(
            one.job_id.label("job"),
            one.name,
            one.latest,
            one.told,
            one.labels,
            one.incident,
            one.incident_state,
            one.finished,
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
    """Return the slowdowns of the latest sessions of each job, as far as they are through."""
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
    found: dict[int, list[float | None]] = {}
    for job, slowdown in tx.session.execute(
        select(Job.id, latest.c.slowdown)
        .join(latest, true())
        .where(Job.id.in_(jobs), latest.c.state.not_in(SessionState.UNDERWAY))
        .order_by(Job.id, latest.c.received_at, latest.c.id.desc())
    ):
        found.setdefault(job, []).append(slowdown)
    return found

"""What the pages of incidents read: what is open or just over, and one with its deliveries."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, RowMapping, ScalarSelect, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import aliased

from app.incidents.delivery_reads import DELIVERIES, DeliveryRow
from app.incidents.models.facts import Facts
from app.incidents.models.tables import (
    AlertAssignee,
    AlertChannel,
    AlertDelivery,
    AlertGroup,
    AlertIncident,
    AlertOnHost,
    DeliveryState,
    IncidentState,
)
from app.incidents.reads import (
    CAUSE,
    INCIDENTS,
    LABELS,
    LOST,
    SESSION_ID,
    IncidentFilter,
    IncidentRow,
    IncidentView,
    Measured,
    counted,
    incident_and_sessions,
    list_incidents,
    listed,
    matches,
    order,
)
from app.incidents.store import INSIDE, OPEN, FactsRow, facts_of_row, sessions_with_facts
from app.jobs.models import Job
from app.platform.database.columns import as_json, total
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import Session
from app.web.lists import last_page, pages_of

# More open incidents than a person reads; the most pressing ones of each job come first.
OPEN_LISTED: Final = 500
# Incidents on a page of the list: with the jobs inside of them it has several times as many rows.
PAGE: Final = 35
# Resolved incidents that are listed with the open ones, of the last days.
RESOLVED_LISTED: Final = 30
RESOLVED_FOR: Final = timedelta(days=7)
DELIVERIES_LISTED: Final = 50
# Most owners, projects and so on that may be chosen.
CHOICES: Final = 50

_OVER: Final = IncidentFilter(state=IncidentState.RESOLVED)

# The last session with facts before its end, as an array that holds at most that.
_its: Final = aliased(Session)
_AFTER: Final = as_json(
    sessions_with_facts()
    .join(_its, _its.job_id == Session.job_id)
    .where(
        _its.id == SESSION_ID,
        Session.received_at > _its.received_at,
        Session.received_at <= AlertIncident.resolved_at,
    )
    .order_by(Session.received_at.desc())
    .limit(1)
    .correlate(AlertIncident)
)
_LATER: Final = TypeAdapter(tuple[FactsRow, ...])


@dataclass(frozen=True, slots=True)
class Over:
    """An incident that is over, and the latest session that was there by then, if it is newer."""

    row: IncidentRow
    after: Facts | None


@dataclass(frozen=True, slots=True)
class Choices:
    """What incidents can be asked for by: what those that are open have, in no order."""

    causes: Sequence[str]
    owners: Sequence[str]
    projects: Sequence[str]
    assignees: Sequence[str]


@dataclass(frozen=True, slots=True)
class Incidents:
    """What the list shows."""

    now: datetime
    """The database's time."""
    filtered: IncidentFilter
    """What was asked for."""
    number: int
    """Of the page: the last one where there are not that many."""
    size: int
    """Incidents on a full page."""
    present: Sequence[IncidentRow]
    """This page's, in the order that was asked for."""
    counts: Mapping[IncidentState, int]
    """How many there are of each open state, whichever was asked for;
    where those that are over are asked for, of these."""
    lost: Mapping[IncidentState, Lost]
    """What jobs lose with incidents of each state."""
    choices: Choices
    over: Sequence[Over]
    """Of the last seven days, the latest first, at most 30; where those that are over are asked
    for, this page of them."""
    over_count: int

    @property
    def total(self) -> int:
        """Return how many there are on all pages together."""
        return _total(self.counts, self.filtered)

    @property
    def pages(self) -> int:
        """Return how many pages there are."""
        return pages_of(self.total, self.size)


@dataclass(frozen=True, slots=True)
class Lost:
    """GPU-hours that jobs lose each hour: together, and the one that loses most.

    Jobs without a verdict lose none that is known; a job counts once, however many incidents it
    has.
    """

    jobs: int
    hourly: float
    most: float
    job: str


@dataclass(frozen=True, slots=True)
class IncidentLife:
    """An incident, what was sent about it (the latest first), and the sessions it went through."""

    view: IncidentView
    deliveries: Sequence[DeliveryRow]
    sessions: Mapping[uuid.UUID, Measured]


def incidents(
    tx: Reads,
    filtered: IncidentFilter | None = None,
    *,
    sort: str = "",
    number: int = 1,
    size: int = PAGE,
) -> Incidents:
    """Return a page of the incidents that are asked for, and those that ended in seven days.

    Parameters
    ----------
    sort : str
        See `app.incidents.reads.INCIDENTS`.
    size : int
        Incidents on a page.
    """
    filtered = IncidentFilter() if filtered is None else filtered
    summary, choices = _summary(tx, filtered)
    counts = {IncidentState(one["state"]): one["shown"] for one in summary}
    number = last_page(number, _total(counts, filtered), size)
    page = (
        INCIDENTS.query()
        .outerjoin(Session, Session.id == SESSION_ID)
        .where(*listed(filtered), *_matching(filtered))
        .order_by(*order(sort, filtered))
        .limit(size)
        .offset(size * (number - 1))
    )
    rows: Sequence[RowMapping] = []
    # Without open incidents one page of what is over, else the latest of it below them.
    query = page
    if not filtered.over:
        rows = tx.session.execute(page).mappings().all()
        query = (
            INCIDENTS.query()
            .where(AlertIncident.resolved_at >= tx.now - RESOLVED_FOR, *listed(_OVER))
            .order_by(AlertIncident.resolved_at.desc(), AlertIncident.id)
            .limit(RESOLVED_LISTED)
        )
    more = (_AFTER.label("after"), func.count().over().label("in_all"))
    ended = tx.session.execute(query.add_columns(*more)).mappings().all()
    return Incidents(
        now=tx.now,
        filtered=filtered,
        number=number,
        size=size,
        present=INCIDENTS.rows(rows),
        counts={state: shown for state, shown in counts.items() if shown},
        lost={
            IncidentState(one["state"]): Lost(
                one["jobs"], one["hourly"], one["most"], one["job"] or ""
            )
            for one in summary
            if one["jobs"]
        },
        choices=choices,
        over=[
            Over(row, next(map(facts_of_row, _LATER.validate_python(found["after"] or ())), None))
            for row, found in zip(INCIDENTS.rows(ended), ended, strict=True)
        ],
        over_count=ended[0]["in_all"] if ended else 0,
    )


def _total(counts: Mapping[IncidentState, int], filtered: IncidentFilter) -> int:
    if filtered.state is None:
        return sum(counts.values())
    return counts.get(filtered.state, 0)


def _matching(filtered: IncidentFilter) -> list[ColumnElement[bool]]:
    """Return that an incident, or one inside of it, is like what is asked for."""
    conditions = matches(filtered)
    if not conditions:
        return []
    inner = (
        select(func.coalesce(AlertOnHost.lead_id, AlertIncident.id))
        .select_from(AlertIncident)
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .outerjoin(AlertAssignee, AlertAssignee.incident_id == AlertIncident.id)
        .outerjoin(AlertOnHost, AlertOnHost.incident_id == AlertIncident.id)
        .where(*counted(filtered), *conditions)
        .correlate(None)
    )
    return [AlertIncident.id.in_(inner)]


def _summary(tx: Reads, filtered: IncidentFilter) -> tuple[list[dict[str, Any]], Choices]:
    """Return counts and losses by state, and what may be chosen, with one statement."""
    by_job = (
        select(
            AlertIncident.state.label("state"),
            Job.name.label("job"),
            func.count().filter(~INSIDE).label("shown"),
            func.max(LOST).label("lost"),
        )
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .outerjoin(AlertAssignee, AlertAssignee.incident_id == AlertIncident.id)
        .outerjoin(Session, Session.id == SESSION_ID)
        .where(*counted(filtered), *_matching(filtered))
        .group_by(AlertIncident.state, Job.name)
        .subquery()
    )
    first = func.array_agg(aggregate_order_by(by_job.c.job, by_job.c.lost.desc()))
    by_state = (
        select(
            by_job.c.state,
            func.sum(by_job.c.shown).label("shown"),
            func.count(by_job.c.lost).label("jobs"),
            func.coalesce(total(by_job.c.lost), 0.0).label("hourly"),
            func.coalesce(func.max(by_job.c.lost), 0.0).label("most"),
            first.filter(by_job.c.lost.is_not(None))[1].label("job"),
        )
        .group_by(by_job.c.state)
        .subquery()
    )
    found = tx.session.execute(
        select(
            select(func.jsonb_agg(func.to_jsonb(by_state.table_valued()))).scalar_subquery(),
            _chosen(CAUSE),
            _chosen(LABELS["owner"].astext),
            _chosen(LABELS["project"].astext),
            _chosen(AlertAssignee.name.expression),
        )
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    summary, *given = found
    return summary or [], Choices(*((names or []) for names in given))


def _chosen(column: ColumnElement[Any]) -> ScalarSelect[Any]:
    """Return what open incidents have of something."""
    values = (
        select(column.label("value"))
        .select_from(AlertIncident)
        .outerjoin(AlertAssignee, AlertAssignee.incident_id == AlertIncident.id)
        .where(OPEN, column.is_not(None))
        .distinct()
        .limit(CHOICES)
        .subquery()
    )
    return select(func.jsonb_agg(values.c.value)).scalar_subquery()


def open_by_job(tx: Reads, job: str | None = None) -> dict[str, list[IncidentRow]]:
    """Return the open incidents by job, of each job the most pressing first.

    "No data" hides the others of its job.
    """
    found: dict[str, list[IncidentRow]] = {}
    for row in list_incidents(tx, OPEN_LISTED, job=job, current=True):
        found.setdefault(row.job, []).append(row)
    return found


def incident_life(tx: Reads, incident_id: uuid.UUID) -> IncidentLife:
    """Return an incident with everything that happened to it.

    Raises
    ------
    NotFoundError
    """
    view, sessions = incident_and_sessions(tx, incident_id)
    group = select(AlertIncident.group_id).where(AlertIncident.id == incident_id)
    query = (
        DELIVERIES.query()
        .where(
            AlertDelivery.group_id == group.scalar_subquery(),
            AlertDelivery.created_at >= view.row.incident.opened_at,
        )
        .order_by(AlertDelivery.created_at.desc(), AlertChannel.name)
        .limit(DELIVERIES_LISTED)
    )
    sent = DELIVERIES.rows(tx.session.execute(query).mappings())
    return IncidentLife(
        view=view,
        deliveries=[item for item in sent if _is_about(item, incident_id)],
        sessions=sessions,
    )


def _is_about(sent: DeliveryRow, incident_id: uuid.UUID) -> bool:
    # The first attempt makes the message, of all incidents that are open by then.
    if sent.message is None:
        return sent.state != DeliveryState.SUPERSEDED
    return any(alert.incident == incident_id for alert in sent.message.alerts)

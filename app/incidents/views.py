"""Reads for the incident pages: lists with totals, and an incident with its deliveries."""

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

# Maximum of open incidents that are read, the most urgent first.
OPEN_LISTED: Final = 500
# Incidents on a page of the list; with their members the page has several times as many rows.
PAGE: Final = 35
# Maximum of resolved incidents, of the last days, that are listed below the open incidents.
RESOLVED_LISTED: Final = 30
RESOLVED_FOR: Final = timedelta(days=7)
DELIVERIES_LISTED: Final = 50
# Maximum of values that a filter offers.
CHOICES: Final = 50

_RESOLVED: Final = IncidentFilter(state=IncidentState.RESOLVED)

# Subquery of the last session with facts before an incident's end, as an array of at most one row.
_facts_session: Final = aliased(Session)
_AFTER: Final = as_json(
    sessions_with_facts()
    .join(_facts_session, _facts_session.job_id == Session.job_id)
    .where(
        _facts_session.id == SESSION_ID,
        Session.received_at > _facts_session.received_at,
        Session.received_at <= AlertIncident.resolved_at,
    )
    .order_by(Session.received_at.desc())
    .limit(1)
    .correlate(AlertIncident)
)
_LATER: Final = TypeAdapter(tuple[FactsRow, ...])


@dataclass(frozen=True, slots=True)
class ResolvedIncident:
    """A resolved incident, and the last session before its end if it is newer than the facts."""

    row: IncidentRow
    after: Facts | None


@dataclass(frozen=True, slots=True)
class Choices:
    """Values of open incidents that the filters offer, unsorted."""

    causes: Sequence[str]
    owners: Sequence[str]
    projects: Sequence[str]
    assignees: Sequence[str]


@dataclass(frozen=True, slots=True)
class Incidents:
    """A page of the list of incidents, with totals by state."""

    now: datetime
    """The database's time."""
    filtered: IncidentFilter
    """The filters that the incidents match."""
    number: int
    """Number of the page, from 1 to the number of the last page."""
    size: int
    """Number of incidents on a full page."""
    present: Sequence[IncidentRow]
    """Open incidents on this page, in the requested order."""
    counts: Mapping[IncidentState, int]
    """Number of matching incidents by state: open states, or resolved if the filter selects it."""
    lost: Mapping[IncidentState, Lost]
    """Losses of the jobs with matching incidents, by state."""
    choices: Choices
    over: Sequence[ResolvedIncident]
    """Resolved incidents of the last seven days, the latest 30 first; if the filter selects
    resolved incidents, those on this page.
    """
    over_count: int

    @property
    def total(self) -> int:
        """Return the number of incidents on all pages together."""
        return _total(self.counts, self.filtered)

    @property
    def pages(self) -> int:
        """Return the number of pages."""
        return pages_of(self.total, self.size)


@dataclass(frozen=True, slots=True)
class Lost:
    """GPU-hours lost each hour by all jobs with a verdict, and by the job that loses most.

    A job counts once, however many incidents it has.
    """

    jobs: int
    hourly: float
    most: float
    job: str


@dataclass(frozen=True, slots=True)
class IncidentLife:
    """An incident, its deliveries from newest to oldest, and the sessions of its transitions."""

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
    """Return a page of matching incidents, and incidents that ended in the last seven days.

    Parameters
    ----------
    sort : str
        See `app.incidents.reads.INCIDENTS`.
    size : int
        Number of incidents on a page.
    """
    filtered = IncidentFilter() if filtered is None else filtered
    summary, choices = _summary(tx, filtered)
    counts = {IncidentState(row["state"]): row["shown"] for row in summary}
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
    # Either a page of resolved incidents, or the latest resolved incidents below the open ones.
    query = page
    if not filtered.over:
        rows = tx.session.execute(page).mappings().all()
        query = (
            INCIDENTS.query()
            .where(AlertIncident.resolved_at >= tx.now - RESOLVED_FOR, *listed(_RESOLVED))
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
            IncidentState(row["state"]): Lost(
                row["jobs"], row["hourly"], row["most"], row["job"] or ""
            )
            for row in summary
            if row["jobs"]
        },
        choices=choices,
        over=[
            ResolvedIncident(
                row, next(map(facts_of_row, _LATER.validate_python(document["after"] or ())), None)
            )
            for row, document in zip(INCIDENTS.rows(ended), ended, strict=True)
        ],
        over_count=ended[0]["in_all"] if ended else 0,
    )


def _total(counts: Mapping[IncidentState, int], filtered: IncidentFilter) -> int:
    if filtered.state is None:
        return sum(counts.values())
    return counts.get(filtered.state, 0)


def _matching(filtered: IncidentFilter) -> list[ColumnElement[bool]]:
    """Return the condition that an incident or one of its members matches the filters."""
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
    """Return counts and losses by state, and the values of the filters, with one statement."""
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
    row = tx.session.execute(
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
    summary, *given = row
    return summary or [], Choices(*((names or []) for names in given))


def _chosen(column: ColumnElement[Any]) -> ScalarSelect[Any]:
    """Return the expression of a column's distinct values among open incidents, as a JSON array."""
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
    """Return the open incidents grouped by job, the most urgent incident of each job first."""
    by_job: dict[str, list[IncidentRow]] = {}
    for row in list_incidents(tx, OPEN_LISTED, job=job, current=True):
        by_job.setdefault(row.job, []).append(row)
    return by_job


def incident_life(tx: Reads, incident_id: uuid.UUID) -> IncidentLife:
    """Return an incident with its history and deliveries.

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
        deliveries=[
            delivery
            for delivery in sent
            # Before the first attempt there is no message yet; it will contain all open incidents.
            if (
                delivery.state != DeliveryState.SUPERSEDED
                if delivery.message is None
                else any(alert.incident == incident_id for alert in delivery.message.alerts)
            )
        ],
        sessions=sessions,
    )

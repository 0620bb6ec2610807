"""What the pages of incidents read: what is open or just over, and one with its deliveries."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from app.alerts.facts import FACTS, Facts
from app.alerts.states import DeliveryState, IncidentState
from app.db.models.alerts import AlertChannel, AlertDelivery, AlertFacts, AlertIncident
from app.db.models.sessions import Session
from app.services.alerts.deliveries.reads import DeliveryRow, delivery_row
from app.services.alerts.incident_reads import (
    SHOWN,
    IncidentRow,
    IncidentView,
    Measured,
    incident_and_sessions,
    incident_row,
    incident_rows,
    list_incidents,
)
from app.services.alerts.store import HIDDEN, OPEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from app.db.unit_of_work import Reads

# More than a person reads. A page ranks these; firing incidents come first.
OPEN_LISTED: Final = 500
RESOLVED_LISTED: Final = 30
RESOLVED_FOR: Final = timedelta(days=7)
DELIVERIES_LISTED: Final = 50

# The latest session that shows an incident, and what the last session before its end was like.
_SESSION: Final = AlertIncident.document["facts"]["session"].astext.cast(Session.id.type)
_AFTER: Final = (
    select(AlertFacts.document)
    .join(Session, Session.job_id == AlertFacts.job_id)
    .where(
        Session.id == _SESSION,
        AlertFacts.received_at > Session.received_at,
        AlertFacts.received_at <= AlertIncident.resolved_at,
    )
    .order_by(AlertFacts.received_at.desc())
    .limit(1)
    .correlate(AlertIncident)
    .scalar_subquery()
)


@dataclass(frozen=True, slots=True)
class Over:
    """An incident that is over, and the latest session that was there by then, if it is newer."""

    row: IncidentRow
    after: Facts | None


@dataclass(frozen=True, slots=True)
class Incidents:
    """What the list shows.

    Parameters
    ----------
    now : datetime
        The database's time.
    present : sequence of IncidentRow
        Firing ones first, at most 500; not those that "no data" hides.
    counts : mapping of IncidentState to int
        How many there are of each open state, without the hidden ones.
    hidden : int
        How many are.
    over : sequence of Over
        Of the last seven days, the latest first, at most 30.
    over_count : int
    sessions : mapping of UUID to Measured
        The latest session of each incident in `present`.
    """

    now: datetime
    present: Sequence[IncidentRow]
    counts: Mapping[IncidentState, int]
    hidden: int
    over: Sequence[Over]
    over_count: int
    sessions: Mapping[uuid.UUID, Measured]


@dataclass(frozen=True, slots=True)
class IncidentLife:
    """An incident, what was sent about it (the latest first), and the sessions it went through."""

    view: IncidentView
    deliveries: Sequence[DeliveryRow]
    sessions: Mapping[uuid.UUID, Measured]


def incidents(tx: Reads) -> Incidents:
    """Return every open incident, and those that ended in the last seven days."""
    rows = tx.session.execute(
        incident_rows(OPEN_LISTED)
        .add_columns(_SESSION, Session.number, SHOWN, Session.world)
        .outerjoin(Session, Session.id == _SESSION)
        .where(OPEN, ~HIDDEN)
    ).all()
    ended = tx.session.execute(
        incident_rows(RESOLVED_LISTED)
        .add_columns(_AFTER, func.count().over())
        .where(AlertIncident.resolved_at >= tx.now - RESOLVED_FOR)
    ).all()
    counts = tx.session.execute(
        select(
            AlertIncident.state,
            func.count().filter(~HIDDEN).label("shown"),
            func.count().filter(HIDDEN).label("hidden"),
        )
        .where(OPEN)
        .group_by(AlertIncident.state)
    ).all()
    return Incidents(
        now=tx.now,
        present=[incident_row(*row[:4]) for row in rows],
        counts={row.state: row.shown for row in counts},
        hidden=sum(row.hidden for row in counts),
        over=[
            Over(incident_row(*row), None if after is None else FACTS.validate_python(after))
            for *row, after, _ in ended
        ],
        over_count=ended[0][-1] if ended else 0,
        sessions={
            session: Measured(number, slowdown, world)
            for *_, session, number, slowdown, world in rows
            if number is not None
        },
    )


def open_by_job(tx: Reads, job: str | None = None) -> dict[str, list[IncidentRow]]:
    """Return the open incidents by job, of each job the most pressing first.

    "No data" hides the others of its job.

    Parameters
    ----------
    tx : Reads
    job : str, optional
        Only of this one.
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
    rows = tx.session.execute(
        select(AlertDelivery, AlertChannel.name)
        .join(AlertChannel, AlertChannel.id == AlertDelivery.channel_id)
        .where(
            AlertDelivery.group_id == group.scalar_subquery(),
            AlertDelivery.created_at >= view.row.incident.opened_at,
        )
        .order_by(AlertDelivery.created_at.desc(), AlertChannel.name)
        .limit(DELIVERIES_LISTED)
    ).all()
    sent = [delivery_row(row, name, view.row.job) for row, name in rows]
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

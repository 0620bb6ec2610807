"""What the pages of alerts read: open incidents by cost, deliveries of one, health of channels."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on

from app.alerts.facts import FACTS, Facts
from app.db.models.alerts import AlertChannel, AlertDelivery, AlertFacts, AlertIncident
from app.db.models.sessions import Session
from app.errors import NotFoundError
from app.services.alerts.deliveries import DeliveryRow, delivery_row
from app.services.alerts.incidents import IncidentRow, IncidentView, get_incident, list_incidents
from app.services.alerts.store import OPEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from app.services.container import Container

# More than anybody reads, and what a page is ranked of; what fires comes first.
OPEN_LISTED: Final = 500
RESOLVED_LISTED: Final = 30
RESOLVED_FOR: Final = timedelta(days=7)
DELIVERIES_LISTED: Final = 50
COUNTED_FOR: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Measured:
    """A session that an incident is about.

    Parameters
    ----------
    number : int
    slowdown : float or None
    world : int
        Ranks of the job in it.
    """

    number: int
    slowdown: float | None
    world: int


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
        Firing ones first, at most 500.
    counts : mapping of str to int
        How many there are of each open state.
    over : sequence of Over
        Of the last seven days, the latest first, at most 30.
    over_count : int
    sessions : mapping of UUID to Measured
        The latest session of each incident in `present`.
    """

    now: datetime
    present: Sequence[IncidentRow]
    counts: Mapping[str, int]
    over: Sequence[Over]
    over_count: int
    sessions: Mapping[uuid.UUID, Measured]


@dataclass(frozen=True, slots=True)
class IncidentLife:
    """An incident, what was sent about it (the latest first), and the sessions it went through."""

    view: IncidentView
    deliveries: Sequence[DeliveryRow]
    sessions: Mapping[uuid.UUID, Measured]


@dataclass(frozen=True, slots=True)
class Tally:
    """Deliveries of a channel in the last 24 hours, and what became of the latest attempt.

    Parameters
    ----------
    delivered, failed : int
    status : int or None
        Of the receiver's answer.
    error, answer : str or None
        Our sentence on a failure, and the beginning of what the receiver said.
    """

    delivered: int = 0
    failed: int = 0
    status: int | None = None
    error: str | None = None
    answer: str | None = None


def incidents(container: Container) -> Incidents:
    """Return every open incident, and those that ended in the last seven days."""
    present = list_incidents(container, OPEN_LISTED, open_only=True)
    resolved = list_incidents(container, RESOLVED_LISTED, state="resolved")
    with container.uow() as tx:
        now = tx.now
        recent = [
            row
            for row in resolved
            if row.incident.resolved_at is not None
            and row.incident.resolved_at >= now - RESOLVED_FOR
        ]
        after = {
            incident_id: FACTS.validate_python(document)
            for incident_id, document in tx.session.execute(
                select(AlertIncident.id, AlertFacts.document)
                .join(
                    Session,
                    Session.id
                    == AlertIncident.document["facts"]["session"].astext.cast(Session.id.type),
                )
                .join(AlertFacts, AlertFacts.job_id == Session.job_id)
                .where(
                    AlertIncident.id.in_([row.incident.id for row in recent]),
                    AlertFacts.received_at > Session.received_at,
                    AlertFacts.received_at <= AlertIncident.resolved_at,
                )
                .ext(distinct_on(AlertIncident.id))
                .order_by(AlertIncident.id, AlertFacts.received_at.desc())
            )
        }
        ids = {row.incident.facts.session for row in present if row.incident.facts is not None}
        sessions = _measured(tx.session, ids)
        by_state = select(AlertIncident.state, func.count()).group_by(AlertIncident.state)
        counts = dict(tx.session.execute(by_state.where(OPEN)).all())
        over_count = tx.session.execute(
            select(func.count()).where(
                AlertIncident.fired_at.is_not(None),
                AlertIncident.resolved_at >= now - RESOLVED_FOR,
            )
        ).scalar_one()
    over = [Over(row, after.get(row.incident.id)) for row in recent]
    return Incidents(now, present, counts, over, over_count, sessions)


def open_by_job(container: Container, job: str | None = None) -> dict[str, list[IncidentRow]]:
    """Return the open incidents by job, of each job the most pressing first.

    Parameters
    ----------
    container : Container
    job : str, optional
        Only of this one.
    """
    found: dict[str, list[IncidentRow]] = {}
    for row in list_incidents(container, OPEN_LISTED, job=job, open_only=True):
        found.setdefault(row.job, []).append(row)
    return found


def incident_life(container: Container, incident_id: uuid.UUID) -> IncidentLife:
    """Return an incident with everything that happened to it.

    Raises
    ------
    NotFoundError
    """
    view = get_incident(container, incident_id)
    ids = {event.session for event in view.events if event.session is not None}
    with container.uow() as tx:
        group_id = tx.session.execute(
            select(AlertIncident.group_id).where(AlertIncident.id == incident_id)
        ).scalar()
        if group_id is None:
            raise NotFoundError(f"There is no incident {incident_id}.")
        rows = tx.session.execute(
            select(AlertDelivery, AlertChannel.name)
            .join(AlertChannel, AlertChannel.id == AlertDelivery.channel_id)
            .where(
                AlertDelivery.group_id == group_id,
                AlertDelivery.created_at >= view.row.incident.opened_at,
            )
            .order_by(AlertDelivery.created_at.desc(), AlertChannel.name)
            .limit(DELIVERIES_LISTED)
        ).all()
        sessions = _measured(tx.session, ids)
    sent = [delivery_row(row, name, view.row.job) for row, name in rows]
    return IncidentLife(
        view=view,
        deliveries=[item for item in sent if _is_about(item, incident_id)],
        sessions=sessions,
    )


def tallies(container: Container) -> dict[uuid.UUID, Tally]:
    """Return by channel what became of its deliveries in the last 24 hours."""
    state = AlertDelivery.state
    # What waits for another attempt has no end yet.
    moment = func.coalesce(AlertDelivery.finished_at, AlertDelivery.next_attempt_at)
    with container.uow() as tx:
        recent = AlertDelivery.created_at >= tx.now - COUNTED_FOR
        counted = tx.session.execute(
            select(
                AlertDelivery.channel_id,
                func.count().filter(state == "delivered"),
                func.count().filter(state == "failed"),
            )
            .where(recent)
            .group_by(AlertDelivery.channel_id)
        ).all()
        latest = tx.session.execute(
            select(
                AlertDelivery.channel_id,
                AlertDelivery.answer_status,
                AlertDelivery.error,
                AlertDelivery.answer,
            )
            .where(recent, AlertDelivery.attempt > 0)
            .ext(distinct_on(AlertDelivery.channel_id))
            .order_by(AlertDelivery.channel_id, moment.desc())
        ).all()
    said = {channel: (status, error, answer) for channel, status, error, answer in latest}
    return {
        channel: Tally(delivered, failed, *said.get(channel, (None, None, None)))
        for channel, delivered, failed in counted
    }


def _measured(session: Any, ids: set[uuid.UUID]) -> dict[uuid.UUID, Measured]:  # noqa: ANN401 - of SQLAlchemy
    rows = session.execute(
        select(Session.id, Session.number, Session.slowdown, Session.world).where(
            Session.id.in_(ids)
        )
    )
    return {id_: Measured(number, slowdown, world) for id_, number, slowdown, world in rows}


def _is_about(sent: DeliveryRow, incident_id: uuid.UUID) -> bool:
    # What was not tried yet says what is so by then, and so also this.
    if sent.message is None:
        return sent.state != "superseded"
    return any(alert.incident == incident_id for alert in sent.message.alerts)

"""Jobs as lists of the fleet have them, made from what a statement finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from sqlalchemy import ARRAY, Text, Uuid, func, literal, type_coerce

from app.alerts.states import IncidentState
from app.db.documents import VERDICT
from app.db.models.sessions import Session, StoredVerdict
from app.lists.columns import Column
from app.lists.listing import Listing, read
from app.services.sessions.read import SESSIONS, SessionRow

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class Urgent:
    """The most pressing open incident of a job."""

    id: UUID
    state: IncidentState


@dataclass(frozen=True, slots=True)
class Standing:
    """A job on a page."""

    name: str
    # latest, told: the latest session, and the one whose numbers stand for the job: the latest
    # that is through
    latest: SessionRow
    told: SessionRow
    # sequence of (float or None): of its latest sessions that are through, oldest first; None
    # without a verdict
    slowdowns: Sequence[float | None]
    labels: Mapping[str, str]
    incident: Urgent | None
    finished: bool = False  # the job said that it ended


# Of a verdict, what comparisons and later sessions read: a quarter of its text, and no line's.
_UNLISTED: Final = literal(["steps_s", "computing"], ARRAY(Text))
# Sessions with as much of their verdicts as lines tell.
_LISTED: Final = replace(
    SESSIONS,
    others={
        **SESSIONS.others,
        "verdict": Column(type_coerce(StoredVerdict.document.op("-")(_UNLISTED), VERDICT)),
    },
)

# Ordered by columns of `app.services.fleet.standing.standing`.
FLEET: Final = Listing(
    Standing,
    default_sort="-lost",
    others={
        "rank": Column(sort="state"),
        "name": Column(sort="job"),
        "slowdown": Column(sort="-slowdown"),
        "lost": Column(sort="-lost"),
        "cause": Column(sort="cause"),
        # Shares of the time: all that is lost, and of it each kind.
        "time": Column(sort="-time"),
        "stragglers": Column(sort="-stragglers"),
        "between": Column(sort="-between"),
        "together": Column(sort="-together"),
        "owner": Column(sort="owner"),
        "gpus": Column(sort="-gpus"),
        "received_at": Column(sort="data"),
    },
)


@dataclass(frozen=True, slots=True)
class Found:
    """A job of a page, as the first statement returns it."""

    job: int
    name: str
    latest: UUID
    told: UUID
    labels: dict[str, str] | None
    incident: UUID | None
    incident_state: IncidentState | None
    finished: bool


def standing_of(
    row: Found, sessions: Mapping[UUID, SessionRow], slowdowns: Sequence[float | None]
) -> Standing:
    """Return a job with its sessions, which `sessions_of` read."""
    urgent = (
        None
        if row.incident is None or row.incident_state is None
        else Urgent(row.incident, row.incident_state)
    )
    return Standing(
        row.name,
        sessions[row.latest],
        sessions[row.told],
        slowdowns,
        row.labels or {},
        urgent,
        row.finished,
    )


def sessions_of(tx: Reads, ids: set[UUID]) -> dict[UUID, SessionRow]:
    """Return sessions by id, of whose verdicts `_UNLISTED` is left out."""
    # One value: of a thousand, each of its own, the statement alone takes 20 ms to write and read.
    wanted = func.any(literal(list(ids), ARRAY(Uuid)))
    return {row.id: row for row in read(tx, _LISTED, Session.id == wanted)}

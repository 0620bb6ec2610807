"""States of sessions in the order of their changes: what streams of events tell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import Select, func, or_, select

from app.db.models.sessions import Session
from app.db.states import SessionState

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection
    from datetime import datetime

    from app.db.unit_of_work import Reads

# A stream of events that starts is told at most this many states.
MAX_STATES: Final = 1000


@dataclass(frozen=True, slots=True)
class StateChange:
    """A session's state and since when, in microseconds of the database's time since 1970."""

    project_id: int
    session: uuid.UUID
    state: SessionState
    changed_us: int


def session_states(tx: Reads, ids: Collection[uuid.UUID]) -> list[StateChange]:
    """Return the states of these sessions, in the order in which they changed."""
    return _states(tx, _state_rows().where(Session.id.in_(ids)))


def recent_states(tx: Reads, since_s: float, after_us: int | None = None) -> list[StateChange]:
    """Return the states of sessions that are pending or changed lately, in order of their changes.

    Parameters
    ----------
    since_s : float
        How long ago "lately" begins, in seconds of the database's clock.
    after_us : int, optional
        A `StateChange.changed_us`, where it begins if that is earlier.
    """
    begin = func.now() - timedelta(seconds=since_s)
    if after_us is not None:
        begin = func.least(begin, func.to_timestamp(after_us / 1e6))
    query = _state_rows().where(
        or_(Session.state.in_(SessionState.UNDERWAY), Session.state_changed_at >= begin)
    )
    return _states(tx, query)


def _state_rows() -> Select[int, uuid.UUID, SessionState, datetime]:
    # The latest ones count where there are too many; `_states` puts them in order.
    return (
        select(Session.project_id, Session.id, Session.state, Session.state_changed_at)
        .order_by(Session.state_changed_at.desc())
        .limit(MAX_STATES)
    )


def _states(tx: Reads, query: Select[int, uuid.UUID, SessionState, datetime]) -> list[StateChange]:
    rows = tx.session.execute(query).all()
    return [
        StateChange(project, session, state, _microseconds(changed_at))
        for project, session, state, changed_at in reversed(rows)
    ]


def _microseconds(time: datetime) -> int:
    # Through a float the last digits would be lost, and with them the order of quick changes.
    return int(time.timestamp()) * 1_000_000 + time.microsecond

"""Decode received bodies, next to the transaction that stores them; states of sessions.

A body in a storable format is stored as it was sent, while it is decoded; any other is stored in
the format of `app.analysis.trace.storage` once it is decoded.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from sqlalchemy import Select, func, or_, select

from app.analysis.trace.compression import ZSTD_MAGIC, open_body
from app.analysis.trace.decode import recognize
from app.analysis.trace.formats.kind import TraceFormat
from app.analysis.trace.storage import is_stored_as_received, pack
from app.platform.blobs import PART_BYTES
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads
from app.platform.killable import Call
from app.platform.settings import MIB, Settings
from app.sessions.body import Body, Read, reading_of, trace_limits
from app.sessions.models.tables import Session

# A larger body is decoded before the database writes any of it: a rollback costs the database as
# much as a commit, and the transaction would be idle for seconds.
KEPT_BYTES: Final = 64 * MIB


class Decoding:
    """The decoding of a body in another process, which `begin` starts."""

    def __init__(self, settings: Settings, body: Body) -> None:
        self._settings = settings
        self._body = body
        self._reading: Call[Read] | None = None

    @cached_property
    def kept(self) -> TraceFormat | None:
        """Return the format of a body that is stored as sent; None if the body is converted.

        Raises
        ------
        InvalidTraceError, UnsupportedFormatError
            The body is in no known format.
        """
        body = self._body
        if body.size > KEPT_BYTES or body.own is not None or body.is_archive:
            return None
        recognized = recognize(
            body.source,
            limits=trace_limits(self._settings),
            content_type=body.content_type,
            format_name=body.format_name,
        )
        magic = body.begin(len(ZSTD_MAGIC))
        return recognized if is_stored_as_received(recognized, magic) else None

    def begin(self) -> None:
        """Start decoding unless it has started; raises what `kept` raises."""
        if self._reading is None:
            kept = None if self.kept is None else self.kept.name
            self._reading = reading_of(self._settings, self._body, kept)

    def result(self) -> Read:
        """Return the decoded body once it is complete; raises as `read_body` and `Call.result`."""
        return self._read

    @cached_property
    def _read(self) -> Read:
        self.begin()
        if self._reading is None:
            raise RuntimeError("the decoding has not begun")
        return self._reading.result()

    def as_it_came(self) -> Iterator[bytes]:
        """Yield the body as it was sent, in parts."""
        if isinstance(self._body.source, bytes):
            yield self._body.source
            return
        with open_body(self._body.source) as file:
            while piece := file.read(PART_BYTES):
                yield piece

    def packed(self) -> Iterator[bytes]:
        """Yield the decoded operations, packed for storage, in parts; raises as `result` does."""
        yield from pack(self.result().decoded.trace)

    def end(self) -> None:
        """End the other process unless it has ended; the body's file may then be closed."""
        if self._reading is not None:
            self._reading.close()


@contextlib.contextmanager
def decoding(settings: Settings, body: Body) -> Iterator[Decoding]:
    """Provide the decoding of a body; it starts on demand and ends with the context."""
    decoded = Decoding(settings, body)
    try:
        yield decoded
    finally:
        decoded.end()


# Limit of the states sent at the start of an event stream.
MAX_STATES: Final = 1000


@dataclass(frozen=True, slots=True)
class StateChange:
    """A session's state and the time of its change: µs since 1970 by the database's clock."""

    project_id: int
    session: uuid.UUID
    state: SessionState
    changed_us: int


def session_states(tx: Reads, ids: Collection[uuid.UUID]) -> list[StateChange]:
    """Return the states of sessions, sorted by the time of change."""
    return _states(tx, _state_rows().where(Session.id.in_(ids)))


def recent_states(tx: Reads, since_s: float, after_us: int | None = None) -> list[StateChange]:
    """Return the states of pending and recently changed sessions, sorted by the time of change.

    Parameters
    ----------
    since_s : float
        Age of the oldest change, in seconds of the database's clock.
    after_us : int, optional
        A `StateChange.changed_us`; if it is earlier than `since_s` ago, changes from it on are
        returned too.
    """
    begin = func.now() - timedelta(seconds=since_s)
    if after_us is not None:
        begin = func.least(begin, func.to_timestamp(after_us / 1e6))
    query = _state_rows().where(
        or_(Session.state.in_(SessionState.UNDERWAY), Session.state_changed_at >= begin)
    )
    return _states(tx, query)


def _state_rows() -> Select[int, uuid.UUID, SessionState, datetime]:
    # Newest first, so that the limit drops the oldest changes; `_states` reverses the order.
    return (
        select(Session.project_id, Session.id, Session.state, Session.state_changed_at)
        .order_by(Session.state_changed_at.desc())
        .limit(MAX_STATES)
    )


def _states(tx: Reads, query: Select[int, uuid.UUID, SessionState, datetime]) -> list[StateChange]:
    rows = tx.session.execute(query).all()
    return [
        # Integer arithmetic: a float of µs would lose digits, and with them the order of quick
        # changes.
        StateChange(project, session, state, int(at.timestamp()) * 1_000_000 + at.microsecond)
        for project, session, state, at in reversed(rows)
    ]

"""Pass changes of sessions' states from the database to all open event streams.

Runs on the event loop. One database connection per process listens for all streams: one per stream
would exhaust the database's connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final

import anyio
import psycopg
import structlog
from psycopg.conninfo import make_conninfo
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from app.platform.container import Container
from app.platform.database.unit_of_work import SESSION_CHANNEL
from app.sessions.decoding import StateChange, recent_states, session_states

log = structlog.get_logger(__name__)

RECONNECT_S: Final = 1.0

# Lifetime of a stream. The browser then reconnects, which fails if the token was revoked or the
# sign-in has expired.
STREAM_LASTS_S: Final = 300.0

# After a reconnection, changes of this period are read again: a change has the start time of its
# transaction, but becomes visible only with the commit.
LONGEST_TRANSACTION_S: Final = 120.0

# Without TCP keepalives a broken connection would stay unnoticed for hours.
CONNECTION: Final = {
    "application_name": "paceline events",
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}


class Stream:
    """The unsent changes for one client: the latest state of each changed session.

    Parameters
    ----------
    project_id : int
        Project of the sessions.
    only : UUID or None
        Only this session; None for all of the project.
    """

    def __init__(self, project_id: int, only: uuid.UUID | None) -> None:
        self._project_id = project_id
        self._only = only
        self._pending: dict[uuid.UUID, StateChange] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def push(self, states: Sequence[StateChange]) -> None:
        """Add states; a later state of a session replaces an unsent earlier state."""
        for state in states:
            if state.project_id == self._project_id and self._only in (None, state.session):
                self._pending.pop(state.session, None)
                self._pending[state.session] = state
        if self._pending:
            self._wake.set()

    def close(self) -> None:
        """End the stream once its unsent changes are sent."""
        self._closed = True
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[StateChange]:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pending, self._pending = self._pending, {}
            for state in pending.values():
                yield state
            if self._closed:
                return


class LiveStates:
    """Listens to the database and passes changes to the streams; used on one event loop only.

    Parameters
    ----------
    container : Container
    lasts_s : float
        Lifetime of a stream.
    """

    def __init__(self, container: Container, lasts_s: float = STREAM_LASTS_S) -> None:
        self._lasts_s = lasts_s
        self._everywhere = container.everywhere()
        self._conninfo = _conninfo(container.engine.url)
        self._streams: set[Stream] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def streams(self) -> int:
        """Return the number of open streams."""
        return len(self._streams)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen to the database while the block runs."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            listener = tasks.create_task(self._listen())
            try:
                yield
            finally:
                listener.cancel()

    def close_soon(self) -> None:
        """End all open streams and each later stream at once; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._close)

    @contextlib.contextmanager
    def stream(self, project_id: int, only: uuid.UUID | None = None) -> Iterator[Stream]:
        """Return a stream of the changes from now on; the stream ends after `lasts_s`."""
        stream = Stream(project_id, only)
        end = asyncio.get_running_loop().call_later(self._lasts_s, stream.close)
        if self._closed:
            stream.close()
        self._streams.add(stream)
        try:
            yield stream
        finally:
            end.cancel()
            self._streams.discard(stream)

    def _close(self) -> None:
        self._closed = True
        for stream in self._streams:
            stream.close()

    async def _listen(self) -> None:
        heard_at_s = time.monotonic()
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._conninfo, autocommit=True
                ) as connection:
                    await connection.execute(f"LISTEN {SESSION_CHANNEL}")
                    # Changes during which this process did not listen are read from the tables.
                    silent_s = time.monotonic() - heard_at_s
                    since_s = silent_s + LONGEST_TRANSACTION_S
                    await self._feed(partial(recent, self._everywhere, since_s))
                    while True:
                        ids = {
                            uuid.UUID(notify.payload)
                            async for notify in connection.notifies(stop_after=1)
                        }
                        await self._feed(partial(states, self._everywhere, ids))
                        heard_at_s = time.monotonic()
            except (psycopg.Error, SQLAlchemyError) as error:
                log.warning("events interrupted", error=str(error).splitlines()[0])
                await asyncio.sleep(RECONNECT_S)

    async def _feed(self, read: Callable[[], Awaitable[list[StateChange]]]) -> None:
        if not self._streams:
            return
        read_states = await read()
        for stream in self._streams:
            stream.push(read_states)


async def states(container: Container, ids: Collection[uuid.UUID]) -> list[StateChange]:
    """Return the states of these sessions, sorted by the time of change."""

    def read() -> list[StateChange]:
        with container.reading() as tx:
            return session_states(tx, ids)

    return await anyio.to_thread.run_sync(read)


async def recent(
    container: Container, since_s: float, after_us: int | None = None
) -> list[StateChange]:
    """Call `recent_states` in a thread and return its result."""

    def read() -> list[StateChange]:
        with container.reading() as tx:
            return recent_states(tx, since_s, after_us)

    return await anyio.to_thread.run_sync(read)


def _conninfo(url: URL) -> str:
    """Return libpq's connection parameters for the database of a SQLAlchemy URL.

    Libpq cannot read the URL's text: SQLAlchemy encodes a space as "+", which libpq takes
    literally.
    """
    options = {
        name: value if isinstance(value, str) else ",".join(value)
        for name, value in url.query.items()
    }
    server = url.translate_connect_args(username="user", database="dbname")
    return make_conninfo(**server | options | CONNECTION)

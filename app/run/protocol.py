"""HTTP connections that no peer can hold for nothing.

What uvicorn has no settings for: how many connections a peer may have, how long the head of a
request may take, how long the rest of a body that is not read, and how long an answer may wait to
be read. Bodies that are wanted have `app.api.frame.bodies`.
"""

from __future__ import annotations

import asyncio
import http
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.access.peers import peer_of
from app.api.frame.problems import RETRY_AFTER_S, problem, retry_after

if TYPE_CHECKING:
    from uvicorn.server import ServerState

    from app.settings import Settings


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a connection may cost."""

    # At the same time; a peer is an IPv4 address, or an IPv6 network of 64 bits.
    connections_a_peer: int
    # From the connection, or from the first byte of a later request, to the end of its head; and
    # from an answer to the end of the body that was not read.
    head_s: float
    unread_s: float  # for how long a peer may read nothing of an answer that waits for it

    @classmethod
    def of(cls, settings: Settings) -> Bounds:
        """Return the bounds that the settings say."""
        return cls(
            connections_a_peer=settings.max_connections_per_peer,
            head_s=settings.header_timeout_s,
            unread_s=settings.unread_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Peers:
    """Who has how many connections; used on the event loop only."""

    connections: Counter[str] = field(default_factory=Counter)

    def enter(self, peer: str) -> int:
        """Count a connection; return how many the peer has with it."""
        self.connections[peer] += 1
        return self.connections[peer]

    def leave(self, peer: str) -> None:
        """Forget a connection, and with its last one the peer."""
        self.connections[peer] -= 1
        if not self.connections[peer]:
            del self.connections[peer]


class BoundedConfig(uvicorn.Config):
    """The configuration of a server whose connections have bounds.

    Parameters
    ----------
    app : ASGI application
    bounds : Bounds
    **options
        Those of uvicorn.
    """

    def __init__(self, app: Any, bounds: Bounds, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(app, http=BoundedProtocol, **options)
        self.bounds = bounds
        self.peers = Peers()


class BoundedProtocol(H11Protocol):
    """One connection."""

    def __init__(
        self,
        config: BoundedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds = config.bounds
        self._peers = config.peers
        self._peer = ""
        # Whether there was a request.
        self._begun = False
        self._waiting: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless its peer has enough of them."""
        super().connection_made(transport)
        self._peer = peer_of(self.client[0]) if self.client else ""
        if self._peers.enter(self._peer) > self._bounds.connections_a_peer:
            self._end("connections.too_many", "This address has as many connections as it may.")
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        super().connection_lost(exc)
        self._peers.leave(self._peer)
        self._stop_waiting()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take bytes of requests."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Look whether there is a body that is not read any more."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Begin to wait until the peer reads."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._bounds.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the peer has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _look(self) -> None:
        """Begin to wait for the end of what has begun, or stop to."""
        state = self.conn.their_state
        # Between requests, without a byte of the next, uvicorn's own timeout ends the connection.
        self._begun = self._begun or state is not h11.IDLE
        within_head = state is h11.IDLE and (not self._begun or self.conn.trailing_data[0])
        unwanted = state is h11.SEND_BODY and self.cycle.response_complete
        if (within_head or unwanted) and not self.transport.is_closing():
            self._wait()
        else:
            self._stop_waiting()

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(self._bounds.head_s, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _too_slow(self) -> None:
        self._waiting = None
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._end("head.timeout", "The head of the request came too slowly.")
        else:
            self.transport.close()

    def _end(self, code: str, detail: str) -> None:
        """Say why, and close the connection."""
        answer = problem(code, detail, headers={"Connection": "close"})
        if answer.status_code == http.HTTPStatus.TOO_MANY_REQUESTS:
            answer.headers["Retry-After"] = retry_after(RETRY_AFTER_S)
        head = h11.Response(status_code=answer.status_code, headers=answer.raw_headers)
        parts: tuple[h11.Event, ...] = (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage())
        for part in parts:
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

"""The HTTP server: uvicorn in a thread, with limits on connections that uvicorn lacks.

The limits: number of connections of a peer, time for the head of a request, time for the unread
rest of a body, and time for the peer to read an answer. `app.web.bodies` limits bodies that are
read.
"""

from __future__ import annotations

import asyncio
import http
import ipaddress
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from app.errors import StartupError
from app.platform.settings import Settings
from app.web.addresses import peer_of
from app.web.problems import RETRY_AFTER_S, problem, retry_after


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a connection: numbers and times."""

    # Maximum of simultaneous connections of a peer: an IPv4 address, or an IPv6 network of 64 bits.
    connections_a_peer: int
    # Time limit in seconds from the connection, or from the first byte of a later request, to the
    # end of the request's head; also from an answer to the end of the request's unread body.
    head_s: float
    unread_s: float  # for how long a peer may read nothing of an answer that waits for it

    @classmethod
    def of(cls, settings: Settings) -> Bounds:
        """Return the limits in the settings."""
        return cls(
            connections_a_peer=settings.max_connections_per_peer,
            head_s=settings.header_timeout_s,
            unread_s=settings.unread_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Peers:
    """Number of connections of each peer; for use on the event loop only."""

    connections: Counter[str] = field(default_factory=Counter)

    def enter(self, peer: str) -> int:
        """Count a new connection; return its peer's number of connections."""
        self.connections[peer] += 1
        return self.connections[peer]

    def leave(self, peer: str) -> None:
        """Subtract a closed connection from its peer's number."""
        self.connections[peer] -= 1
        if not self.connections[peer]:
            del self.connections[peer]


class BoundedConfig(uvicorn.Config):
    """Uvicorn's configuration with limits on connections.

    Parameters
    ----------
    app : ASGI application
    bounds : Bounds
    **options
        Options of uvicorn's configuration.
    """

    def __init__(self, app: Any, bounds: Bounds, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(app, http=BoundedProtocol, **options)
        self.bounds = bounds
        self.peers = Peers()


class BoundedProtocol(H11Protocol):
    """A connection with limits on the time of its phases."""

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
        # Whether a request has begun on this connection.
        self._begun = False
        self._waiting: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless its peer has reached the limit of connections."""
        super().connection_made(transport)
        self._peer = peer_of(self.client[0]) if self.client else ""
        if self._peers.enter(self._peer) > self._bounds.connections_a_peer:
            self._end("connections.too_many", "This address has as many connections as it may.")
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Subtract the closed connection from its peer's number."""
        super().connection_lost(exc)
        self._peers.leave(self._peer)
        self._stop_waiting()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Pass on received bytes, and check the connection's phase."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Limit the time for the unread rest of the request's body."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Start the time limit for the peer to read the answer."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._bounds.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """End the time limit, because the peer has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _look(self) -> None:
        """Start or stop the timer for the connection's current phase."""
        state = self.conn.their_state
        # Between requests, before the first byte of the next, uvicorn's own timeout ends the
        # connection.
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
        """Log the reason, and close the connection."""
        answer = problem(code, detail, headers={"Connection": "close"})
        if answer.status_code == http.HTTPStatus.TOO_MANY_REQUESTS:
            answer.headers["Retry-After"] = retry_after(RETRY_AFTER_S)
        head = h11.Response(status_code=answer.status_code, headers=answer.raw_headers)
        parts: tuple[h11.Event, ...] = (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage())
        for part in parts:
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


# On Linux a child process can request to be killed when its parent ends, and "parent" means the
# thread that started it: only the main thread certainly lives as long as the process.


# Time in seconds for running requests to finish when the server stops; `app.state.closing` ends
# event streams.
GRACEFUL_SHUTDOWN_S: Final = 5
# After this additional time in seconds the server's thread is abandoned, so that a stop always
# ends.
_ABANDON_AFTER_S: Final = 5.0
_POLL_S: Final = 0.02
_BACKLOG: Final = 2048


def listen(settings: Settings) -> socket.socket:
    """Return a socket that listens on the settings' host and port; port 0 is any free port.

    Raises
    ------
    StartupError
        If the address is not an address of this machine, or the port is in use.
    """
    family, address = _addresses(settings)[0]
    try:
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StartupError(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror}. "
            "Choose another one with PACELINE_PORT; 0 is any free one."
        ) from error
    # asyncio sets this option only on sockets with an explicit protocol, which this socket lacks.
    # Without the option an answer in two pieces waits 40 ms for the client's delayed
    # acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def reachable_by_others(settings: Settings) -> bool:
    """Return whether the settings' address is reachable from other machines.

    Raises
    ------
    StartupError
        If the address is not an address of this machine.
    """
    return any(
        not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        for _, address in _addresses(settings)
    )


def _addresses(settings: Settings) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        entries = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise StartupError(f"Cannot listen on {settings.host}: {error}") from error
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in entries]


def address_of(listener: socket.socket) -> str:
    """Return the URL of the listener for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"  # noqa: PLR2004 - of the protocol
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class HttpServer:
    """Serves an application in its own thread.

    Parameters
    ----------
    app : FastAPI
        The application. Its optional ``app.state.closing``, a function without parameters, is
        called from another thread when the server begins to stop, and has to end all endless
        streams. Its ``app.state.settings`` contain the limits of connections.
    listener : socket
        The listening socket; the server closes it.
    """

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        self._app = app
        self._listener = listener
        self._server = uvicorn.Server(
            BoundedConfig(
                app,
                Bounds.of(getattr(app.state, "settings", None) or Settings()),
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
            )
        )
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the server is running."""
        return self._thread.is_alive()

    def start(self, give_up: Callable[[], bool]) -> None:
        """Start the server; return once it answers requests, or once `give_up` returns true.

        Raises
        ------
        StartupError
            If the application did not start; the log contains the reason.
        """
        self._thread.start()
        while not self._server.started and not give_up():
            if not self._thread.is_alive():
                raise StartupError("The HTTP server did not start; the log says why.")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop accepting connections, let requests finish for some time, then abort the rest."""
        closing: Callable[[], None] | None = getattr(self._app.state, "closing", None)
        if closing is not None:
            closing()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(GRACEFUL_SHUTDOWN_S + _ABANDON_AFTER_S)
        self._listener.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])

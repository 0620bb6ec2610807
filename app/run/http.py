"""The HTTP server: uvicorn in a thread, so that the main thread can look after child processes.

On Linux a child may ask to die with its parent, and "parent" means the thread that started it:
only the main thread is sure to live as long as the process.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

import uvicorn

from app.errors import StartupError
from app.run.protocol import BoundedConfig, Bounds
from app.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

# Requests under way at the stop get this long; event streams are ended by `app.state.closing`.
GRACEFUL_SHUTDOWN_S: Final = 5
# After this much more the thread is left behind: a stop must end.
_ABANDON_AFTER_S: Final = 5.0
_POLL_S: Final = 0.02
_BACKLOG: Final = 2048


def listen(settings: Settings) -> socket.socket:
    """Return a socket that listens where the settings say; port 0 is any free one.

    Raises
    ------
    StartupError
        The address is not this machine's, or the port is taken.
    """
    family, address = _addresses(settings)[0]
    try:
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StartupError(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror}. "
            "Choose another one with PACELINE_PORT; 0 is any free one."
        ) from error
    # asyncio does so only for sockets that name their protocol; this one's does not. Without it an
    # answer in two pieces waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def reachable_by_others(settings: Settings) -> bool:
    """Return whether others than this machine's can reach what listens where the settings say.

    Raises
    ------
    StartupError
        The address is not this machine's.
    """
    return any(
        not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        for _, address in _addresses(settings)
    )


def _addresses(settings: Settings) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise StartupError(f"Cannot listen on {settings.host}: {error}") from error
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found]


def address_of(listener: socket.socket) -> str:
    """Return the URL under which a browser on this machine finds the listener."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"  # noqa: PLR2004 - of the protocol
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class HttpServer:
    """Serves an application in a thread of its own.

    Parameters
    ----------
    app : FastAPI
        If it has ``app.state.closing``, a function without parameters, that is called from another
        thread when the server begins to stop: streams that would never end must end then. The
        bounds of connections are those of its ``app.state.settings``.
    listener : socket
        Where; the server closes it.
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
        """Whether the server still serves."""
        return self._thread.is_alive()

    def start(self, give_up: Callable[[], bool]) -> None:
        """Start serving and return when requests are answered, or when `give_up` says so.

        Raises
        ------
        StartupError
            The application did not start; the log says why.
        """
        self._thread.start()
        while not self._server.started and not give_up():
            if not self._thread.is_alive():
                raise StartupError("The HTTP server did not start; the log says why.")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop accepting, let requests finish for a while, then end the rest."""
        closing: Callable[[], None] | None = getattr(self._app.state, "closing", None)
        if closing is not None:
            closing()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(GRACEFUL_SHUTDOWN_S + _ABANDON_AFTER_S)
        self._listener.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])

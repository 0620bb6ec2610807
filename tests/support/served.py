"""A server in this process, without workers, and a client for it."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Final

import httpx

from app.run.application import create_app
from app.run.http import HttpServer, address_of, listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping

    from app.platform.container import Container

# An empty TLS context, for clients that use plain HTTP only: reading the machine's certificates
# takes longer than all else that a client does, and every test has one.
_NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@contextlib.contextmanager
def served(container: Container, listener: socket.socket | None = None) -> Iterator[str]:
    """Serve an installation, by default on a free port, and yield its address.

    The container stays open.
    """
    if listener is None:
        listener = listen(container.settings.model_copy(update={"port": 0}))
    server = HttpServer(create_app(container), listener)
    try:
        server.start(lambda: False)
        yield address_of(listener).rstrip("/")
    finally:
        server.stop()


def client_of(url: str, *, headers: Mapping[str, str] | None = None) -> httpx.Client:
    """Return a client of a server on this machine."""
    return httpx.Client(
        base_url=url, headers=headers, timeout=60, trust_env=False, verify=_NO_AUTHORITIES
    )


@contextlib.contextmanager
def client_of_served(container: Container, *, below: str = "") -> Iterator[httpx.Client]:
    """Serve an installation, and yield a client for addresses that begin with `below`."""
    with served(container) as url, client_of(url + below) as client:
        yield client

"""An installation of real processes, with a database and a broker of the tests or embedded."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

import httpx

from tests.support.waiting import wait_for
from tests.support.worker import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# A limit for hangs: the first start creates a database on a busy machine.
_READY_WITHIN_S = 240.0


@contextlib.contextmanager
def running(environment: dict[str, str], *words: str) -> Iterator[None]:
    """Run a command of the program, and stop it at the end of the context."""
    with subprocess.Popen(  # noqa: S603 - our own argument list
        [sys.executable, "-c", "from app.cli.main import main; main()", *words],
        env=os.environ | environment,
    ) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@contextlib.contextmanager
def serving(
    directory: Path,
    database_url: str = "",
    broker_url: str = "",
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Run an installation, and yield its address.

    With the URLs of a database and a broker, workers are separate processes; without them, the
    server runs an embedded database and its workers. `settings` are further environment variables.
    """
    compiled()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"PACELINE_DATA_DIR": str(directory / "data"), "PACELINE_PORT": str(port)}
    environment |= settings
    if database_url:
        environment |= {
            "PACELINE_DATABASE_URL": database_url,
            "PACELINE_BROKER_URL": broker_url,
        }
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(environment, "serve"))
        if database_url:
            stack.enter_context(running(environment, "worker"))
        address = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{address}/readyz", trust_env=False).is_success
            return False

        wait_for(ready, "server", limit_s=_READY_WITHIN_S)
        yield address

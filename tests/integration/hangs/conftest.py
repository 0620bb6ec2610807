"""A real server on a free port, and a client of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from app.run.http import HttpServer, address_of, listen
from app.web import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.bootstrap import Container


@pytest.fixture
def client(container: Container) -> Iterator[httpx.Client]:
    """Yield a client of a server without workers."""
    listener = listen(container.settings.model_copy(update={"port": 0}))
    server = HttpServer(create_app(container), listener)
    server.start(lambda: False)
    with httpx.Client(base_url=address_of(listener), timeout=60, trust_env=False) as client:
        yield client
    server.stop()

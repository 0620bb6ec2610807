from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.demo import told_demo
from tests.support.served import client_of


@pytest.fixture(scope="session")
def told() -> Iterator[httpx.Client]:
    """Yield a client of a demo with its whole history."""
    with told_demo() as url, client_of(url) as client:
        yield client

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.demo import told_demo


@pytest.fixture(scope="session")
def told() -> Iterator[httpx.Client]:
    """Yield a client of a demo whose history is there whole."""
    with told_demo() as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        yield client

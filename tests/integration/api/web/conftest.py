"""One server for all tests that do not change its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.platform.settings import Settings
from tests.integration.api.conftest import serving
from tests.support import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx


@pytest.fixture(scope="package")
def client(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Yield a client for reading; tests that store data use `installation`."""
    data = tmp_path_factory.mktemp("frame")
    with (
        postgres.clone(postgres_url) as url,
        serving(Settings(database_url=url, data_dir=data)) as running,
    ):
        yield running.client

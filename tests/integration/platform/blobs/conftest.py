"""An S3 server, the proxy in front of it, and an installation whose blobs go through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.project import build
from tests.support.s3 import Proxy, S3Server, with_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container
    from app.platform.settings import Settings


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[Proxy]:
    with Proxy(s3.port) as between:
        yield between


@pytest.fixture
def stored_settings(settings: Settings, proxy: Proxy) -> Settings:
    return with_store(settings, proxy.url)


@pytest.fixture
def installation(stored_settings: Settings) -> Iterator[Container]:
    built = build(stored_settings)
    yield built
    built.close()

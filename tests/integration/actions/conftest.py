"""An installation whose actions go to receivers on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from app.platform.settings import Settings
from tests.support.acting import Acting
from tests.support.alerting import LOOPBACK
from tests.support.project import build
from tests.support.receiver import Receiver
from tests.support.served import client_of_served


@pytest.fixture
def acting(settings: Settings) -> Iterator[Acting]:
    container = build(
        settings.model_copy(
            update={
                "alert_allowed_networks": LOOPBACK,
                "alert_attempt_limit_s": 5.0,
                "external_url": "https://paceline.example",
            }
        )
    )
    yield Acting(container)
    container.close()


@pytest.fixture
def client(acting: Acting) -> Iterator[httpx.Client]:
    with client_of_served(acting.container) as client:
        yield client


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running

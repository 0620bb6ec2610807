"""An installation whose alerts go to receivers on this machine, without waiting for minutes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.platform.settings import Settings
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.project import build
from tests.support.receiver import Receiver


@pytest.fixture
def alerting(settings: Settings) -> Iterator[Alerting]:
    container = build(
        settings.model_copy(
            update={
                "alert_allowed_networks": LOOPBACK,
                "alert_attempt_limit_s": 5.0,
                "external_url": "https://paceline.example",
            }
        )
    )
    yield Alerting(container)
    container.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running

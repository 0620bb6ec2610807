"""A server whose alerts are driven by tests, and a receiver for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.api.conftest import Install, Installation
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def served(install: Install) -> Iterator[Installation]:
    with install(alert_allowed_networks=LOOPBACK, alert_attempt_limit_s=5.0) as installed:
        yield installed


@pytest.fixture
def alerting(served: Installation) -> Alerting:
    return Alerting(served.container)

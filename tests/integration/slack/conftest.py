"""A server with a channel of Slack whose buttons do something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest

from app.actions.states import ActionMode
from app.run.http import HttpServer, address_of, listen
from app.services.alerts.channels.write import create_channel
from app.web import create_app
from tests.support.acting import Acting
from tests.support.alerting import LOOPBACK
from tests.support.project import build
from tests.support.receiver import Receiver
from tests.support.slack import MEMBER, SIGNING_SECRET, Slack

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator

    from app.settings import Settings


@dataclass(frozen=True, slots=True)
class Workspace:
    """A server, what moves its machines, and Slack."""

    acting: Acting
    slack: Slack
    hardware: Receiver  # where events about machines go
    channel: uuid.UUID


@pytest.fixture
def workspace(settings: Settings) -> Iterator[Workspace]:
    container = build(
        settings.model_copy(
            update={"alert_allowed_networks": LOOPBACK, "alert_attempt_limit_s": 5.0}
        )
    )
    listener = listen(container.settings.model_copy(update={"port": 0}))
    server = HttpServer(create_app(container), listener)
    server.start(lambda: False)
    with (
        Receiver() as hook,
        Receiver() as hardware,
        httpx.Client(base_url=address_of(listener), timeout=60) as client,
    ):
        config = {"url": hook.url, "signing_secret": SIGNING_SECRET, "operators": [MEMBER]}
        channel = create_channel(container, name="slack", kind="slack", config=config).id
        acting = Acting(container)
        acting.events(hardware, ActionMode.ASK)
        yield Workspace(acting, Slack(hook, client), hardware, channel)
    server.stop()
    container.close()

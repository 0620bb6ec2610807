"""A server with a channel of Slack whose messages have buttons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from app.actions.models import ActionMode
from app.incidents.channel_writes import create_channel
from tests.support.acting import Acting
from tests.support.alerting import LOOPBACK
from tests.support.project import build
from tests.support.receiver import Receiver
from tests.support.served import client_of_served
from tests.support.slack import MEMBER, SIGNING_SECRET, Slack

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator

    from app.platform.settings import Settings


@dataclass(frozen=True, slots=True)
class Workspace:
    """A server, shortcuts to its actions, and Slack."""

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
    with (
        Receiver() as hook,
        Receiver() as hardware,
        client_of_served(container) as client,
    ):
        config = {"url": hook.url, "signing_secret": SIGNING_SECRET, "operators": [MEMBER]}
        channel = create_channel(container, name="slack", kind="slack", config=config).id
        acting = Acting(container)
        acting.events(hardware, ActionMode.ASK)
        yield Workspace(acting, Slack(hook, client), hardware, channel)
    container.close()

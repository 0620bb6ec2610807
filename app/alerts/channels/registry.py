"""All kinds of channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.alerts.channels.alertmanager import ALERTMANAGER
from app.alerts.channels.apprise import APPRISE
from app.alerts.channels.discord import DISCORD
from app.alerts.channels.feishu import FEISHU
from app.alerts.channels.kind import ChannelKind
from app.alerts.channels.mail import MAIL
from app.alerts.channels.pagerduty import PAGERDUTY
from app.alerts.channels.slack import SLACK
from app.alerts.channels.teams import TEAMS
from app.alerts.channels.webhook import WEBHOOK

KINDS: Final[Mapping[str, ChannelKind]] = {
    kind.name: kind
    for kind in (WEBHOOK, SLACK, DISCORD, TEAMS, FEISHU, PAGERDUTY, ALERTMANAGER, MAIL, APPRISE)
}

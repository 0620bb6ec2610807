"""Registry of all kinds of channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.incidents.channels.alertmanager import ALERTMANAGER
from app.incidents.channels.apprise import APPRISE
from app.incidents.channels.discord import DISCORD
from app.incidents.channels.feishu import FEISHU
from app.incidents.channels.kind import ChannelKind
from app.incidents.channels.mail import MAIL
from app.incidents.channels.pagerduty import PAGERDUTY
from app.incidents.channels.slack import SLACK
from app.incidents.channels.teams import TEAMS
from app.incidents.channels.webhook import WEBHOOK

KINDS: Final[Mapping[str, ChannelKind]] = {
    kind.name: kind
    for kind in (WEBHOOK, SLACK, DISCORD, TEAMS, FEISHU, PAGERDUTY, ALERTMANAGER, MAIL, APPRISE)
}

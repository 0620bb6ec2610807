"""The health of channels: their deliveries, and their receivers' answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.dashboard.alerts.parts import dead, said
from app.dashboard.ui.format import age, plural
from app.services.alerts.channels.reads import DISABLED_BY_PERSON

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from app.services.alerts.channels.reads import ChannelView, Tally


@dataclass(frozen=True, slots=True)
class ChannelHealth:
    """A channel in the short table."""

    name: str
    url: str
    dead: bool
    sent: int
    waiting: int
    failed: int
    answer: str


def health(channel: ChannelView, tally: Tally | None, now: datetime) -> ChannelHealth:
    """Return how a channel does.

    Parameters
    ----------
    tally : Tally or None
        None where nothing was sent to it.
    now : datetime
    """
    return ChannelHealth(
        name=channel.name,
        url=f"/channels/{channel.id}",
        dead=bool(dead([channel])),
        sent=tally.delivered if tally else 0,
        waiting=channel.waiting,
        failed=tally.failed if tally else 0,
        answer=last_answer(channel, tally, now),
    )


def last_answer(channel: ChannelView, tally: Tally | None, now: datetime) -> str:
    """Return a channel's health, in the words of its receiver where there are any."""
    if not channel.readable:
        return "no available key decrypts its secrets"
    why = channel.last_error if channel.enabled else channel.disabled_reason or DISABLED_BY_PERSON
    if why:
        return said(why, tally.answer if tally and tally.error == why else None)
    if channel.last_success_at is None:
        return "nothing sent yet"
    ago = f"{age((now - channel.last_success_at).total_seconds())} ago"
    status = tally.status if tally else None
    return ago if status is None else f"{status}, {ago}"


def channels_title(channels: Sequence[ChannelView]) -> str:
    """Return a sentence on all channels."""
    if not channels:
        return "There is no channel: no messages are sent"
    gone = dead(channels)
    if len(gone) == 1:
        return f"The channel {gone[0].name} is dead"
    if gone:
        return f"{len(gone)} channels are dead"
    enabled = sum(channel.enabled for channel in channels)
    return f"{plural(enabled, 'channel')} in order" if enabled else "No channel is enabled"

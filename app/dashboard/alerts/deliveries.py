"""Messages about an incident: the latest one in words, and each delivery of them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from app.alerts.lines import lines_of
from app.alerts.message import view_url
from app.alerts.states import DeliveryState
from app.dashboard.alerts.parts import said
from app.dashboard.ui.format import listing, plural
from app.dashboard.ui.parts import StateLabel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.services.alerts.channels.reads import ChannelView
    from app.services.alerts.deliveries.reads import DeliveryRow
    from app.services.alerts.views import IncidentLife

DELIVERY_STATES: Final = {
    DeliveryState.WAITING: StateLabel("wait", "Waiting", 1),
    DeliveryState.SENDING: StateLabel("run", "Sending", 1),
    DeliveryState.DELIVERED: StateLabel("done", "Delivered", 2),
    DeliveryState.FAILED: StateLabel("fail", "Failed", 0),
    DeliveryState.SUPERSEDED: StateLabel("none", "Superseded", 3, quiet=True),
}


@dataclass(frozen=True, slots=True)
class Words:
    """The latest message; `heading` and `note` say whether anybody has it."""

    heading: str
    note: str
    title: str
    summary: str
    fields: Sequence[tuple[str, str]]
    evidence: Sequence[str]
    view_url: str


@dataclass(frozen=True, slots=True)
class Attempted:
    """A delivery of an incident's message."""

    id: uuid.UUID
    channel: str
    state: StateLabel
    attempts: str
    answer: str
    at: datetime
    failed: bool


def words_of(life: IncidentLife) -> Words | None:
    """Return the latest message about the incident."""
    for sent in life.deliveries:
        if sent.message is None:
            continue
        for alert in sent.message.alerts:
            if alert.incident == life.view.row.incident.id:
                lines = lines_of(alert, sent.message.at)
                heading, note = _told(sent.number, life.deliveries)
                return Words(
                    heading=heading,
                    note=note,
                    title=sent.message.title,
                    summary=lines.summary,
                    fields=lines.fields,
                    evidence=lines.evidence,
                    view_url=view_url("/", alert.facts, alert.hang)
                    if alert.facts or alert.hang
                    else f"/jobs/{quote(life.view.row.job, safe='')}",
                )
    return None


def _told(number: int, deliveries: Sequence[DeliveryRow]) -> tuple[str, str]:
    """Return what is said of a message: whether it was sent, and to whom."""
    by_state: dict[DeliveryState, list[str]] = {}
    for sent in deliveries:
        if sent.number == number:
            by_state.setdefault(sent.state, []).append(sent.channel)
    told = by_state.get(DeliveryState.DELIVERED)
    if told:
        to = f"To {listing(sorted(told))}; the same text to every channel"
        return "The message that was sent", f"{to}, with the heatmap where it can show one"
    underway = [
        name
        for state, names in by_state.items()
        if state in DeliveryState.UNDERWAY
        for name in names
    ]
    if underway:
        tried = f"Still trying: {listing(sorted(underway))}"
        return "A message that has not been delivered", tried
    failed = by_state.get(DeliveryState.FAILED)
    if failed:
        return "The undelivered message", f"Not delivered to {listing(sorted(failed))}"
    return "A superseded message", "A newer message was due before it was sent"


def attempted(sent: DeliveryRow) -> Attempted:
    """Return a delivery, with what the receiver answered."""
    words = said(sent.error, sent.answer)
    status = "" if sent.answer_status is None else str(sent.answer_status)
    answer = words if sent.error else " ".join(part for part in (status, words) if part)
    return Attempted(
        id=sent.id,
        channel=sent.channel,
        state=DELIVERY_STATES[sent.state],
        attempts=plural(sent.attempt, "try", "tries") if sent.attempt else "not tried yet",
        answer=answer,
        at=sent.finished_at or sent.created_at,
        failed=sent.state == DeliveryState.FAILED,
    )


def failing(deliveries: Sequence[DeliveryRow], channels: Sequence[ChannelView]) -> str:
    """Return a sentence on what did not arrive."""
    failed = sorted({sent.channel for sent in deliveries if sent.state == DeliveryState.FAILED})
    if failed:
        return f"Not delivered to {listing(failed)}"
    if deliveries:
        return "Deliveries of its messages"
    if not any(channel.enabled for channel in channels):
        return "No message was sent: there is no channel"
    return "Nothing was sent yet"

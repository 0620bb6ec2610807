"""PagerDuty, Events API v2: one event for each incident with news.

The fingerprint is the ``dedup_key``: repetitions and returning incidents are one incident there.
Limits: 1,024 characters of summary, 512 kB an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from app.incidents.channels.kind import (
    JSON_HEADERS,
    ChannelKind,
    OutgoingMessage,
    Secret,
    Url,
    encode,
)
from app.incidents.grouping import DeliveryStyle, Status
from app.incidents.message import Alert, Message
from app.incidents.text import clip, lines_of
from app.platform.outbound import ReceiverAnswer, check

EVENTS_URL: Final = "https://events.pagerduty.com/v2/enqueue"
MAX_SUMMARY: Final = 1024

ACTIONS: Final = {
    Status.FIRING: "trigger",
    Status.ACKNOWLEDGED: "acknowledge",
    Status.RESOLVED: "resolve",
}


@dataclass(frozen=True, slots=True)
class PagerDutyConfig:
    """The integration key of a PagerDuty service."""

    routing_key: Annotated[
        Secret, Field(description="Of a service's integration with the Events API v2.")
    ]
    url: Annotated[
        Url, Field(description="In the EU: https://events.eu.pagerduty.com/v2/enqueue")
    ] = EVENTS_URL


def events(message: Message, routing_key: str) -> list[dict[str, Any]]:
    """Return one event for each incident with news, or for each open incident in a repetition."""
    news = [alert for alert in message.alerts if alert.news]
    return [_event(message, alert, routing_key) for alert in news or message.present]


def _event(message: Message, alert: Alert, routing_key: str) -> dict[str, Any]:
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": ACTIONS[alert.status],
        "dedup_key": f"paceline-{message.key_of(alert)}" + ("-test" if message.test else ""),
    }
    if alert.status is not Status.FIRING:
        return event
    lines = lines_of(alert, message.at)
    mark = "TEST · " if message.test else ""
    event["payload"] = {
        "summary": clip(f"{mark}{message.job}: {lines.summary}", MAX_SUMMARY),
        "source": alert.where or message.job,
        "severity": alert.severity,
        "timestamp": alert.since.isoformat(),
        "component": alert.where or message.job,
        "group": message.job,
        "class": alert.cause,
        "custom_details": dict(lines.fields) | {"Evidence": list(lines.evidence)},
    }
    event["client"] = "Paceline"
    event["client_url"] = alert.view_url
    event["links"] = [
        {"href": alert.view_url, "text": "Open"},
        {"href": alert.incident_url, "text": alert.incident_link},
    ]
    return event


def send(config: PagerDutyConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Post the events one at a time; the service deduplicates events that are sent again."""
    answer = ReceiverAnswer(None, "There was nothing to send.")
    for event in events(outgoing.message, config.routing_key):
        answer = check(outgoing.outbound.post(config.url, encode(event), JSON_HEADERS))
    return answer


PAGERDUTY: Final = ChannelKind(
    name="pagerduty",
    title="PagerDuty",
    config=TypeAdapter(PagerDutyConfig),
    secrets=frozenset({"routing_key"}),
    send=send,
    style=DeliveryStyle(acknowledgements=True, digests=False),
)

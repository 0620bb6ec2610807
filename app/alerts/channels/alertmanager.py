"""Push to an Alertmanager, which then groups, silences and routes by its own rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from app.alerts.channels.alertmanager_format import annotations_of, labels_of, timestamp
from app.alerts.channels.kind import JSON_HEADERS, ChannelKind, Parcel, Secret, Url, encode
from app.alerts.delivery import ReceiverAnswer
from app.alerts.grouping import Manner, Status
from app.alerts.message import Alert, Message
from app.alerts.outbound import check
from app.alerts.rules import Severity

# An alert that is not pushed again ends by itself: only after one repeat was missed.
REPEATS_UNTIL_END: Final = 2

_SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True)
class AlertmanagerConfig:
    """The address of an Alertmanager, and what it asks for."""

    # Without ``/api/v2/alerts``.
    url: Annotated[
        Url, Field(description="Without /api/v2/alerts.", examples=["http://alertmanager:9093"])
    ]
    # The header of that name: ``Bearer …`` or ``Basic …``.
    authorization: Annotated[
        Secret | None, Field(description="The header: Bearer … or Basic …")
    ] = None


def push_body(message: Message) -> list[dict[str, Any]]:
    """Return the alerts of a message as ``POST /api/v2/alerts`` takes them.

    Labels are an alert's identity there, and the severity is one of them because routes need it.
    So whatever severity an incident had before, that alert is told to be over.
    """
    body = []
    for alert in message.alerts:
        body.append(_alert(message, alert, over=alert.status is Status.RESOLVED))
        body.extend(
            _alert(message, replace(alert, severity=severity), over=True)
            for severity in _SEVERITIES
            if severity != alert.severity
        )
    return body


def _alert(message: Message, alert: Alert, *, over: bool) -> dict[str, Any]:
    ends = (
        max(alert.resolved_at or message.at, alert.since)
        if over
        else message.at + REPEATS_UNTIL_END * message.repeat
    )
    return {
        "labels": labels_of(message, alert),
        "annotations": annotations_of(message, alert),
        "startsAt": timestamp(alert.since),
        "endsAt": timestamp(ends),
        "generatorURL": alert.view_url,
    }


def send(config: AlertmanagerConfig, parcel: Parcel) -> ReceiverAnswer:
    """Push the alerts; 200 is good, 400 means that it refuses them for good."""
    headers = dict(JSON_HEADERS)
    if config.authorization:
        headers["Authorization"] = config.authorization
    body = encode(push_body(parcel.message))
    url = f"{config.url.rstrip('/')}/api/v2/alerts"
    return check(parcel.outbound.post(url, body, headers))


ALERTMANAGER: Final = ChannelKind(
    name="alertmanager",
    title="Alertmanager",
    config=TypeAdapter(AlertmanagerConfig),
    secrets=frozenset({"authorization"}),
    send=send,
    manner=Manner(refreshes=True, digests=False),
)

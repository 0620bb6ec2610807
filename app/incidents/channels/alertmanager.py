"""Alertmanager: its webhook body, and the channel that pushes alerts to an Alertmanager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from app.incidents.channels.kind import (
    JSON_HEADERS,
    ChannelKind,
    HeaderValue,
    OutgoingMessage,
    Url,
    encode,
)
from app.incidents.grouping import DeliveryStyle, Status
from app.incidents.message import Alert, Message, cause_name
from app.incidents.models.rules import Severity
from app.incidents.text import lines_of
from app.platform.outbound import ReceiverAnswer, check

# Labels of jobs by which Alertmanager selects the receiver of a message.
ROUTING: Final = ("team", "owner")
# Duration of an example alert: no later message ends it.
TEST_LASTS: Final = timedelta(minutes=5)
# Go's zero time, which Alertmanager reads as "not ended".
NEVER = "0001-01-01T00:00:00Z"


def webhook_body(message: Message) -> dict[str, Any]:
    """Return a message as version 4 of Alertmanager's webhook body."""
    alerts = [_webhook_alert(message, alert) for alert in message.alerts]
    return {
        "version": "4",
        "groupKey": message.group_key,
        "truncatedAlerts": 0,
        "status": "firing" if message.firing else "resolved",
        "receiver": message.receiver,
        "groupLabels": {} if message.digest else {"job": message.job},
        "commonLabels": _common([alert["labels"] for alert in alerts]),
        "commonAnnotations": _common([alert["annotations"] for alert in alerts]),
        "externalURL": message.base_url,
        "alerts": alerts,
    }


def labels_of(message: Message, alert: Alert) -> dict[str, str]:
    """Return the labels that identify an alert, without empty values, which Alertmanager drops.

    They contain the project, since projects may have jobs of the same name, and the labels of the
    job by which messages are routed.
    """
    of_job = alert.facts.labels if alert.facts is not None else {}
    labels = {
        **{name: of_job[name] for name in ROUTING if of_job.get(name)},
        "project": message.project,
        "alertname": cause_name(alert.cause),
        "job": alert.job or message.job,
        "cause": alert.cause,
        "severity": alert.severity,
    }
    if alert.where:
        labels["where"] = alert.where
    if message.test:
        labels["test"] = "true"
    return labels


def annotations_of(message: Message, alert: Alert) -> dict[str, str]:
    """Return the annotations of an alert, without empty values."""
    lines = lines_of(alert, message.at)
    details = [f"{name}: {value}" for name, value in lines.fields]
    named = alert.job or alert.of_many
    annotations = {
        "summary": lines.summary if named else f"{message.job}: {lines.summary}",
        "description": "\n".join((*details, *lines.evidence)),
        "dashboard": alert.view_url,
        "incident": alert.incident_url,
    }
    return {name: value for name, value in annotations.items() if value}


def timestamp(at: datetime) -> str:
    """Return a time as RFC 3339 in UTC."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _webhook_alert(message: Message, alert: Alert) -> dict[str, Any]:
    over = alert.status is Status.RESOLVED
    return {
        "status": "resolved" if over else "firing",
        "labels": labels_of(message, alert),
        "annotations": annotations_of(message, alert),
        "startsAt": timestamp(alert.since),
        "endsAt": timestamp(alert.resolved_at or message.at) if over else NEVER,
        "generatorURL": alert.view_url,
        "fingerprint": message.key_of(alert),
    }


def _common(documents: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first, *rest = documents
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in rest)
    }


# A pushed alert ends by itself after this number of repeat intervals, that is after one missed
# repetition.
REPEATS_UNTIL_END: Final = 2

_SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True)
class AlertmanagerConfig:
    """The address of an Alertmanager, and an authorization header."""

    # The address without ``/api/v2/alerts``.
    url: Annotated[
        Url, Field(description="Without /api/v2/alerts.", examples=["http://alertmanager:9093"])
    ]
    # The value of the HTTP header ``Authorization``: ``Bearer …`` or ``Basic …``.
    authorization: Annotated[
        HeaderValue | None, Field(description="The header: Bearer … or Basic …")
    ] = None


def push_body(message: Message) -> list[dict[str, Any]]:
    """Return the alerts of a message as a body of ``POST /api/v2/alerts``.

    Alertmanager identifies an alert by its labels, which include the severity because routes need
    it. So for each alert the body also ends the alerts with the other severities that the incident
    may have had.
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
        else message.at + (TEST_LASTS if message.test else REPEATS_UNTIL_END * message.repeat)
    )
    return {
        "labels": labels_of(message, alert),
        "annotations": annotations_of(message, alert),
        "startsAt": timestamp(alert.since),
        "endsAt": timestamp(ends),
        "generatorURL": alert.view_url,
    }


def send(config: AlertmanagerConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Push the alerts; status 200 is success, 400 a permanent refusal."""
    headers = dict(JSON_HEADERS)
    if config.authorization:
        headers["Authorization"] = config.authorization
    body = encode(push_body(outgoing.message))
    url = f"{config.url.rstrip('/')}/api/v2/alerts"
    return check(outgoing.outbound.post(url, body, headers))


ALERTMANAGER: Final = ChannelKind(
    name="alertmanager",
    title="Alertmanager",
    config=TypeAdapter(AlertmanagerConfig),
    secrets=frozenset({"authorization"}),
    send=send,
    style=DeliveryStyle(refreshes=True, digests=False),
)

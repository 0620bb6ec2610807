"""Alerts as Alertmanager writes them: for its own API, and for webhooks that understand it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from app.alerts.grouping import Status
from app.alerts.lines import lines_of
from app.alerts.message import Alert, Message, cause_name

# Go's zero time: has not ended.
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
    """Return what identifies an alert; Alertmanager has no empty labels."""
    found = {
        "alertname": cause_name(alert.cause),
        "job": alert.job or message.job,
        "cause": alert.cause,
        "severity": alert.severity,
    }
    if alert.where:
        found["where"] = alert.where
    if message.test:
        found["test"] = "true"
    return found


def annotations_of(message: Message, alert: Alert) -> dict[str, str]:
    """Return what is said of an alert."""
    lines = lines_of(alert, message.at)
    details = [f"{name}: {value}" for name, value in lines.fields]
    named = alert.job or alert.of_many
    found = {
        "summary": lines.summary if named else f"{message.job}: {lines.summary}",
        "description": "\n".join((*details, *lines.evidence)),
        "dashboard": alert.view_url,
        "incident": alert.incident_url,
    }
    return {name: value for name, value in found.items() if value}


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
        "fingerprint": alert.fingerprint,
    }


def _common(documents: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first, *rest = documents
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in rest)
    }

"""Receivers that behave like the real services: accepted requests, limits and errors."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
from standardwebhooks import Webhook, WebhookVerificationError

from benchmarks.support.receiver import Got, Reply

SCHEMAS = Path(__file__).parent / "schemas"

WEBHOOK_SECRETS = tuple(
    f"whsec_{base64.b64encode(bytes((number,)) * 32).decode()}" for number in (1, 2)
)
FEISHU_SECRET = "feishu-secret"  # noqa: S105 - of a server that lives for a test
ROUTING_KEY = "0123456789abcdef0123456789abcdef"

Service = Callable[[Got], Reply]


def fits(name: str, document: Any) -> str | None:  # noqa: ANN401 - any document
    """Return why a document does not fit a recorded schema; None if it fits."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    errors = jsonschema.Draft202012Validator(schema, format_checker=checker).iter_errors(document)
    return next((f"{error.json_path}: {error.message[:300]}" for error in errors), None)


def _json(status: int, document: object) -> Reply:
    return Reply(status, json.dumps(document).encode(), {"Content-Type": "application/json"})


def webhook(got: Got) -> Reply:
    """A receiver of Standard Webhooks that knows only the newest secret."""
    try:
        Webhook(WEBHOOK_SECRETS[0]).verify(got.body, dict(got.headers))
    except WebhookVerificationError as error:
        return Reply(401, str(error).encode())
    why = fits("webhook", got.json)
    return Reply(422, why.encode()) if why else Reply(204)


def slack(got: Got) -> Reply:
    """An incoming webhook of Slack."""
    why = fits("slack", got.json)
    if why:
        return Reply(400, f"invalid_payload {why}".encode())
    # A mention must be escaped with entities; plain text is not parsed.
    if any(re.search(r"<[!@#]", text) for text in _marked_up(got.json)):
        return Reply(400, b"invalid_payload: mention")
    return Reply(200, b"ok")


def _marked_up(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("type") == "mrkdwn":
            yield value["text"]
        for inner in value.values():
            yield from _marked_up(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _marked_up(inner)


def discord(got: Got) -> Reply:
    """A webhook of Discord, with or without a file."""
    kind = got.headers["content-type"]
    body: Any
    if kind.startswith("multipart/form-data; boundary="):
        boundary = kind.partition("boundary=")[2].encode()
        parts = got.body.split(b"--" + boundary)[1:-1]
        contents = [part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n") for part in parts]
        if len(contents) != 2 or not contents[1].startswith(b"\x89PNG\r\n\x1a\n"):
            return _json(400, {"message": "Invalid Form Body", "code": 50035})
        body = json.loads(contents[0])
        names = {embed["image"]["url"] for embed in body["embeds"] if "image" in embed}
        if names != {f"attachment://{body['attachments'][0]['filename']}"}:
            return _json(400, {"message": "Unknown attachment", "code": 50035})
    else:
        body = got.json
    why = fits("discord", body)
    total = sum(
        len(embed.get("title", ""))
        + len(embed.get("description", ""))
        + sum(len(field["name"]) + len(field["value"]) for field in embed.get("fields", ()))
        for embed in body["embeds"]
    )
    if why or total > 6000:
        return _json(400, {"message": why or "Embed size", "code": 50035})
    return Reply(204)


def teams(got: Got) -> Reply:
    """A workflow of Teams."""
    if len(got.body) > 28_000:
        return _json(413, {"error": {"code": "RequestEntityTooLarge"}})
    why = fits("teams", got.json)
    return _json(400, {"error": {"code": "BadRequest", "message": why}}) if why else Reply(202)


def feishu(got: Got) -> Reply:
    """A custom bot of Feishu with a signing secret: its errors are HTTP 200."""
    if len(got.body) > 20_000:
        return _json(200, {"code": 11246, "msg": "request body too large"})
    document = got.json
    why = fits("feishu", document)
    if why:
        return _json(200, {"code": 9499, "msg": f"Bad Request: {why}", "data": {}})
    key = f"{document.get('timestamp')}\n{FEISHU_SECRET}".encode()
    expected = base64.b64encode(hmac.new(key, digestmod=hashlib.sha256).digest()).decode()
    if document.get("sign") != expected:
        return _json(200, {"code": 19021, "msg": "sign match fail or timestamp is not within"})
    return _json(200, {"code": 0, "msg": "success", "StatusCode": 0, "data": {}})


def pagerduty(got: Got) -> Reply:
    """The Events API v2 of PagerDuty."""
    if len(got.body) > 512 * 1024:
        return Reply(413)
    why = fits("pagerduty", got.json)
    if why or got.json["routing_key"] != ROUTING_KEY:
        errors = [why or "Invalid routing key"]
        return _json(400, {"status": "invalid event", "message": "Invalid", "errors": errors})
    key = got.json.get("dedup_key", "made-up")
    return _json(202, {"status": "success", "message": "Event processed", "dedup_key": key})


def alertmanager(got: Got) -> Reply:
    """An Alertmanager; the real one is in `test_alertmanager.py`."""
    if got.path != "/hook/api/v2/alerts":
        return Reply(404)
    why = fits("alertmanager", got.json)
    return _json(400, why) if why else Reply(200)


SERVICES: dict[str, Service] = {
    "webhook": webhook,
    "slack": slack,
    "discord": discord,
    "teams": teams,
    "feishu": feishu,
    "pagerduty": pagerduty,
    "alertmanager": alertmanager,
}


def config_of(kind: str, url: str) -> dict[str, Any]:
    """Return the configuration of a channel for such a service."""
    extra: dict[str, dict[str, Any]] = {
        "webhook": {"signing_secrets": list(WEBHOOK_SECRETS)},
        "feishu": {"signing_secret": FEISHU_SECRET},
        "pagerduty": {"routing_key": ROUTING_KEY},
    }
    return {"url": url} | extra.get(kind, {})

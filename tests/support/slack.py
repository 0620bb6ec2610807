"""Slack by its documentation: accepts messages with buttons, and sends pressed buttons.

https://docs.slack.dev/reference/interaction-payloads/block_actions-payload and
https://docs.slack.dev/authentication/verifying-requests-from-slack
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

if TYPE_CHECKING:
    import httpx

    from tests.support.receiver import Receiver

SIGNING_SECRET: Final = "8f742231b10e8888abcd99yyyzzz85a5"  # noqa: S105 - of Slack's own example
MEMBER: Final = "U012AB3CD"
ADDRESS: Final = "/api/v1/slack/interactions"


def signed(body: bytes, timestamp: str, secret: str = SIGNING_SECRET) -> str:
    """Return the signature of a request by Slack's documentation."""
    base = f"v0:{timestamp}:{body.decode()}"
    return "v0=" + hmac.new(secret.encode(), base.encode(), hashlib.sha256).hexdigest()


def buttons(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the buttons of a message whose clicks Slack sends."""
    found: list[dict[str, Any]] = []
    for block in message["blocks"]:
        found += block.get("elements", []) if block["type"] == "actions" else []
        found += [block["accessory"]] if "accessory" in block else []
    return [one for one in found if "action_id" in one]


class Slack:
    """A workspace with one app, whose webhook is a test's receiver."""

    def __init__(self, receiver: Receiver, client: httpx.Client) -> None:
        self.receiver = receiver
        self.client = client

    def payload(
        self, button: dict[str, Any], *, member: str = MEMBER, **changes: object
    ) -> dict[str, Any]:
        """Return the payload of a member who presses a button."""
        return {
            "type": "block_actions",
            "user": {"id": member, "username": "ann", "name": "ann", "team_id": "T9TK3CUKW"},
            "api_app_id": "A02",
            "token": "Shh_its_a_seekrit",
            "container": {"type": "message", "message_ts": "1548261231.000200"},
            "trigger_id": "12321423423.333649436676.d8c1bb837935619ccad0f624c448ffb3",
            "team": {"id": "T9TK3CUKW", "domain": "example"},
            "channel": {"id": "CBR2V3XEX", "name": "on-call"},
            "message": self.receiver.got[-1].json if self.receiver.got else {},
            "response_url": f"http://127.0.0.1:{self.receiver.port}/actions/T9TK3CUKW/1",
            "actions": [
                {
                    "action_id": button["action_id"],
                    "block_id": "=qXel",
                    "text": button.get("text"),
                    "value": button.get("value"),
                    "type": "button",
                    "action_ts": f"{time.time():.6f}",
                }
            ],
            **changes,
        }

    def send(
        self,
        payload: dict[str, Any] | bytes,
        *,
        secret: str = SIGNING_SECRET,
        at: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a signed payload; `at` is the time in seconds, by default now."""
        body = (
            payload
            if isinstance(payload, bytes)
            else urlencode({"payload": json.dumps(payload)}).encode()
        )
        timestamp = str(int(time.time()) if at is None else at)
        given = {
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Slack-Request-Timestamp": timestamp,
            "X-Slack-Signature": signed(body, timestamp, secret),
            **(headers or {}),
        }
        return self.client.post(ADDRESS, content=body, headers=given)

    def press(self, button: dict[str, Any], *, member: str = MEMBER) -> httpx.Response:
        """Press a button of a message."""
        return self.send(self.payload(button, member=member))

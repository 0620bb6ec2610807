"""Ask a server to try a channel, or to encrypt the secrets of all channels anew."""

from __future__ import annotations

import sys

from app.cli.server import Server
from app.errors import PacelineError


class AlertsCommandError(PacelineError):
    """There is no such channel, or its receiver did not take the example."""

    code = "alerts.failed"


def send_test(channel: str, *, server: str) -> None:
    """Send a marked example to a channel and print what its receiver answered."""
    with Server(server) as api:
        found = [
            known["id"]
            for known in api.get("/api/v1/channels")["channels"]
            if channel in (known["name"], known["id"])
        ]
        if not found:
            raise AlertsCommandError(f"There is no channel {channel}.", code="not_found")
        result = api.post(f"/api/v1/channels/{found[0]}/test")
    said = " ".join(str(part) for part in (result["status"], result["answer"]) if part)
    if not result["delivered"]:
        answer = f" Its answer: {said}" if said else ""
        raise AlertsCommandError(f"{result['error']}{answer}", code=result["code"])
    sys.stdout.write(f"delivered: {said}\n")


def reseal(*, server: str) -> None:
    """Encrypt the secrets of all channels with the server's newest key, and print how many."""
    with Server(server) as api:
        count = api.post("/api/v1/channels/reseal")["channels"]
    sys.stdout.write(f"channels encrypted with the newest key: {count}\n")

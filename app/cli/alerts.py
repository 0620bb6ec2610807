"""Ask a server to try a channel, or to encrypt the secrets of all channels anew."""

from __future__ import annotations

import sys
from typing import Any, Final

import httpx

from app.cli.upload import is_loopback
from app.errors import PacelineError

# The server answers within the time of one attempt.
TIMEOUT_S: Final = 60.0


class AlertsCommandError(PacelineError):
    """The server cannot be reached or refuses, or the receiver did not take the example."""

    code = "alerts.failed"


def send_test(channel: str, *, server: str) -> None:
    """Send a marked example to a channel and print what its receiver answered.

    Parameters
    ----------
    channel : str
        Name or id.
    server : str
        Address of the server.

    Raises
    ------
    AlertsCommandError
        With the code of the failed attempt.
    """
    with _client(server) as client:
        found = [
            known["id"]
            for known in _json(client, "GET", "/api/v1/channels")["channels"]
            if channel in (known["name"], known["id"])
        ]
        if not found:
            raise AlertsCommandError(f"There is no channel {channel}.", code="not_found")
        result = _json(client, "POST", f"/api/v1/channels/{found[0]}/test")
    said = " ".join(str(part) for part in (result["status"], result["answer"]) if part)
    if not result["delivered"]:
        answer = f" It said: {said}" if said else ""
        raise AlertsCommandError(f"{result['error']}{answer}", code=result["code"])
    sys.stdout.write(f"delivered: {said}\n")


def reseal(*, server: str) -> None:
    """Encrypt the secrets of all channels with the server's newest key, and print how many.

    Raises
    ------
    AlertsCommandError
    """
    with _client(server) as client:
        count = _json(client, "POST", "/api/v1/channels/reseal")["channels"]
    sys.stdout.write(f"channels encrypted with the newest key: {count}\n")


def _client(server: str) -> httpx.Client:
    return httpx.Client(base_url=server, timeout=TIMEOUT_S, trust_env=not is_loopback(server))


def _json(client: httpx.Client, method: str, path: str) -> dict[str, Any]:
    try:
        answer = client.request(method, path)
        document: dict[str, Any] = answer.json()
    except (httpx.TransportError, httpx.InvalidURL, ValueError) as error:
        raise AlertsCommandError(
            f"The server at {client.base_url} cannot be reached: {error}",
            code="alerts.unreachable",
        ) from error
    if answer.is_error:
        raise AlertsCommandError(document["detail"], code=document["code"])
    return document

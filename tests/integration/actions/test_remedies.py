"""Commands that take a machine out are shown only for causes that blame machines."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Final

import httpx
from mcp import Client

from app.actions.models import ActionMode
from app.analysis.diagnosis.causes.registry import KINDS, blames_machine
from app.analysis.diagnosis.finding import UNKNOWN
from app.incidents.channel_writes import MOST_MESSAGES, create_channel
from app.mcp.server import make_server
from tests.support.loops import in_a_loop

if TYPE_CHECKING:
    from tests.support.acting import Acting
    from tests.support.receiver import Receiver

# Words that every command, or every action's order, contains.
COMMANDS: Final = ("kubectl", "scontrol", "dev.paceline.machine")
CAUSES: Final = (*KINDS, UNKNOWN)
CHANNELS: Final = ("slack", "webhook", "discord", "teams")


def told_by_mcp(client: httpx.Client, incident: str) -> str:
    """Return the text that an assistant gets about an incident."""
    url = str(client.base_url).rstrip("/")

    async def run() -> str:
        async with (
            httpx.AsyncClient(base_url=url, trust_env=False) as http,
            Client(make_server(http, url, may_acknowledge=False)) as assistant,
        ):
            return str(await assistant.call_tool("get_incident", {"incident": incident}))

    found: str = in_a_loop(run)
    return found


def unpacked(archive: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        texts = [opened.read(name) for name in opened.namelist() if not name.endswith(".png")]
    return "\n".join(text.decode() for text in texts)


def test_commands_are_on_each_surface_only_of_causes_that_a_machine_can_have(
    acting: Acting, receiver: Receiver, client: httpx.Client
) -> None:
    for kind in CHANNELS:
        create_channel(
            acting.container,
            name=kind,
            kind=kind,
            config={"url": receiver.url},
            rate_limit=MOST_MESSAGES,
        )
    acting.events(receiver, ActionMode.ASK)
    for cause in CAUSES:
        acting.blame(f"node-of-{cause.replace('_', '-')}", job=f"job-{cause}", cause=cause)
    acting.look()
    acting.alerting.pass_and_work()
    # A digest contains many incidents; each of its alerts is checked separately.
    alerts = [
        json.dumps(alert)
        for got in receiver.got
        if got.body.startswith(b'{"version"')
        for alert in got.json["alerts"]
    ]
    incidents = {one.facts.causes[0].cause: one for one in acting.alerting.incidents() if one.facts}
    wrong, offered = {}, set()
    for cause in CAUSES:
        host, incident = f"node-of-{cause.replace('_', '-')}", incidents[cause]
        at = f"/incidents/{incident.id}"
        surfaces = {
            "page": client.get(at).text,
            "evidence": client.get(f"{at}/evidence").text,
            "pack": unpacked(client.get(f"{at}/evidence.zip").content),
            "host": client.get(f"/hosts/{host}").text,
            "actions": client.get("/actions.csv", params={"host": host}).text,
            "api": client.get(f"/api/v1/incidents/{incident.id}").text,
            "mcp": told_by_mcp(client, str(incident.id)),
            "messages": "\n".join(text for text in alerts if f'"job-{cause}"' in text),
        }
        assert f"job-{cause}" in surfaces["messages"], cause
        with_commands = {
            name for name, text in surfaces.items() if any(command in text for command in COMMANDS)
        }
        if not blames_machine(cause):
            if with_commands:
                wrong[cause] = with_commands
        else:
            offered |= with_commands
            if {"page", "evidence", "pack", "host", "actions"} - with_commands:
                wrong[cause] = with_commands
    assert wrong == {}
    # Actions that wait for a person are in messages too.
    assert "messages" in offered

"""Events about jobs that hang: one for each incident; no machine is taken out."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import httpx
import jsonschema
import pytest

from app.actions import hangs
from app.actions.kinds.event import EventType, schema_of
from app.actions.models import ActionMode
from app.actions.orders import allow, decline, put_back
from app.actions.policies import set_switch
from app.errors import ConflictError
from app.incidents.evaluate import resolve_incident
from tests.support.hanging import Hanging, archived, pickled

if TYPE_CHECKING:
    from tests.support.acting import Acting
    from tests.support.receiver import Receiver

WORLD = [(0, 1, 2, 3)]


def hang(client: httpx.Client, job: str = "moe") -> uuid.UUID:
    """Send the dumps of a hang; return its incident's id."""
    began_ns = time.time_ns() - 60 * 10**9
    hanging = Hanging(4, [WORLD, WORLD], host_stops={2: 1}, begin_ns=began_ns)
    dumps = {f"_dump_{rank}": pickled(dump) for rank, dump in hanging.dumps().items()}
    answer = client.post(f"/api/v1/jobs/{job}/hangs", content=archived(dumps))
    assert answer.status_code == 201, answer.text
    return uuid.UUID(answer.json()["hang"])


def test_a_hang_sends_one_event_that_fits_its_schema(
    acting: Acting, receiver: Receiver, client: httpx.Client
) -> None:
    acting.events(receiver)
    found = hang(client)
    acting.work()
    acting.work()
    [got] = receiver.got
    jsonschema.validate(
        got.json,
        schema_of(EventType.HANG),
        jsonschema.Draft202012Validator,
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
    )
    event = got.json
    assert (event["type"], event["subject"]) == ("dev.paceline.job.hang", "moe")
    assert event["data"]["hang"] == str(found)
    assert event["data"]["evidence_url"] == f"https://paceline.example/hangs/{found}"
    assert event["data"]["culprits"] == "2"
    assert event["data"]["lost_gpu_hours_each_hour"] == 4.0
    published = client.get("/api/v1/event-schemas", params={"type": event["type"]}).json()
    assert published == schema_of(EventType.HANG)
    action = acting.action()
    assert (str(action.state), action.host, action.hang) == ("done", "", found)
    incident = acting.alerting.incident()
    page = client.get(f"/incidents/{incident.id}").text
    assert "dev.paceline.job.hang about moe" in page
    assert f'href="/hangs/{found}"' in client.get("/actions").text


def test_jobs_that_hang_hold_no_machine_and_are_held_by_none(
    acting: Acting, receiver: Receiver, client: httpx.Client
) -> None:
    acting.events(receiver)
    for number in range(3):
        hang(client, f"moe-{number}")
    acting.blame("node-7")
    acting.work()
    types = sorted(got.json["type"] for got in receiver.got)
    assert types == ["dev.paceline.job.hang"] * 3 + ["dev.paceline.machine.confirmed"]


def test_hangs_beyond_the_limit_of_a_pass_are_sent_in_the_next_ones(
    acting: Acting, receiver: Receiver, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hangs, "MAX_JOBS", 1)
    acting.events(receiver, ActionMode.ASK)
    for number in range(3):
        hang(client, f"moe-{number}")
    for _ in range(3):
        acting.look()
    # Actions that wait for a person do not delay the others.
    assert [str(one.state) for one in acting.actions()] == ["asked"] * 3

    set_switch(acting.container, stopped=True)
    for _ in range(3):
        acting.look()
    assert [str(one.state) for one in acting.actions()] == ["held"] * 3
    set_switch(acting.container, stopped=False)
    acting.events(receiver)
    acting.work()
    assert len(receiver.got) == 3


def test_policy_and_switch_hold_for_hangs_too(
    acting: Acting, receiver: Receiver, client: httpx.Client
) -> None:
    acting.events(receiver, ActionMode.DRY_RUN)
    hang(client)
    acting.work()
    assert str(acting.action().state) == "dry_run"
    acting.events(receiver, ActionMode.ASK)
    acting.work()
    assert str(acting.action().state) == "asked"
    set_switch(acting.container, stopped=True)
    with pytest.raises(ConflictError) as refused:
        allow(acting.container, acting.action().id)
    assert refused.value.stable_code == "action.stopped"
    set_switch(acting.container, stopped=False)
    assert receiver.got == []
    allow(acting.container, acting.action().id)
    acting.work()
    assert len(receiver.got) == 1
    with pytest.raises(ConflictError) as kept:
        put_back(acting.container, acting.action().id)
    assert kept.value.stable_code == "action.wrong_state"


def test_hangs_that_are_declined_or_over_make_no_message(
    acting: Acting, receiver: Receiver, client: httpx.Client
) -> None:
    acting.events(receiver, ActionMode.ASK)
    hang(client, "one")
    hang(client, "two")
    acting.work()
    one, two = sorted(acting.actions(), key=lambda action: action.job)
    decline(acting.container, one.id)
    resolve_incident(acting.container, two.incident_id)
    with pytest.raises(ConflictError) as over:
        allow(acting.container, two.id)
    assert over.value.stable_code == "action.no_incident"
    acting.events(receiver)
    acting.work()
    assert {a.job: str(a.state) for a in acting.actions()} == {
        "one": "declined",
        "two": "withdrawn",
    }
    assert receiver.got == []

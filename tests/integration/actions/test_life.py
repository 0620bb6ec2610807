"""The life of an action: dry run, ask, automatic; done, failed, tried again, taken back."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from sqlalchemy import select

from app.access.audit import list_entries
from app.actions.kinds.event import EventType, schema_of
from app.actions.models import ActionMode
from app.actions.orders import allow, decline, put_back
from app.actions.policies import get_policy, list_policies, reseal_policies, set_policy, set_switch
from app.errors import ConflictError, InvalidActionError, NotFoundError
from app.hosts.models import HostReading, HostRepair
from app.hosts.probes import Measure, ProbedDevice, note_probe
from app.hosts.repairs import note_repair
from app.incidents.evaluate import resolve_incident
from app.installation.sweep import sweep
from benchmarks.support.receiver import Got, Reply
from tests.support.acting import SECRET
from tests.support.project import build
from tests.support.receiver import Receiver
from tests.support.waiting import wait_for
from tests.support.worker import WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.acting import Acting


def test_nothing_acts_by_default(acting: Acting) -> None:
    acting.blame()
    acting.work()
    assert acting.actions() == []
    with acting.container.reading() as tx:
        assert {str(one.mode) for one in list_policies(tx)} == {"off"}


def test_a_new_policy_only_shows_what_it_would_have_done(
    acting: Acting, receiver: Receiver
) -> None:
    set_policy(acting.container, "event", config={"url": receiver.url})
    acting.blame()
    acting.work()
    action = acting.action()
    assert (str(action.state), action.limits) == ("dry_run", [])
    assert action.command == "dev.paceline.machine.confirmed about node-7"
    with pytest.raises(ConflictError, match="dry run"):
        allow(acting.container, action.id)
    assert receiver.got == []


def test_a_dry_run_becomes_real_once_the_policy_says_so(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver, ActionMode.DRY_RUN)
    acting.blame()
    acting.work()
    acting.events(receiver)
    acting.work()
    assert acting.states() == {"node-7": ["done"]}


def test_a_person_says_yes_with_one_order(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver, ActionMode.ASK)
    acting.blame()
    acting.work()
    assert str(acting.action().state) == "asked"
    assert receiver.got == []
    allow(acting.container, acting.action().id)
    acting.work()
    assert str(acting.action().state) == "done"
    with pytest.raises(ConflictError) as refused:
        allow(acting.container, acting.action().id)
    assert refused.value.stable_code == "action.wrong_state"


def test_a_declined_action_is_not_proposed_again_for_the_same_incidents(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver, ActionMode.ASK)
    acting.blame()
    acting.blame(job="other")
    acting.work()
    decline(acting.container, acting.action().id)
    acting.work()
    assert acting.states() == {"node-7": ["declined"]}
    acting.blame(job="third")
    acting.work()
    assert acting.states() == {"node-7": ["declined", "asked"]}


def test_an_action_whose_incident_ends_before_approval_is_withdrawn(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver, ActionMode.ASK)
    acting.blame()
    acting.work()
    resolve_incident(acting.container, acting.alerting.incident().id)
    acting.work()
    assert acting.states() == {"node-7": ["withdrawn"]}


def test_events_are_of_their_published_schemas_and_signed(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    put_back(acting.container, acting.action().id)
    acting.work()
    confirmed, recovered = receiver.got
    for got, kind in (
        (confirmed, EventType.CONFIRMED),
        (recovered, EventType.RECOVERED),
    ):
        assert got.headers["content-type"] == "application/cloudevents+json"
        event = got.json
        checker = Draft202012Validator(schema_of(kind), format_checker=FormatChecker())
        assert list(checker.iter_errors(event)) == []
        assert event["type"] == kind
        assert event["subject"] == "node-7"
        assert event["dataschema"] == f"https://paceline.example/api/v1/event-schemas?type={kind}"
        key = b64decode(SECRET.removeprefix("whsec_"))
        signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode()
        digest = hmac.new(key, signed + got.body, hashlib.sha256).digest()
        assert got.headers["webhook-signature"] == f"v1,{b64encode(digest).decode()}"
    data = confirmed.json["data"]
    assert data["gpus"] == ["GPU-node-7-3"]
    assert data["recommended_action"] == "replace"
    assert data["evidence_url"].endswith(f"/incidents/{data['incident']}/evidence")
    assert recovered.json["data"]["recommended_action"] == "return"
    assert confirmed.json["id"] != recovered.json["id"]
    # The schema of another event type does not accept the event.
    other = Draft202012Validator(schema_of(EventType.RECOVERED))
    assert list(other.iter_errors(confirmed.json))


def test_a_fault_that_passes_is_tried_again_under_the_same_id(acting: Acting) -> None:
    answers = iter([Reply(503), Reply(200)])
    with Receiver(lambda _: next(answers)) as receiver:
        acting.events(receiver)
        acting.blame()
        acting.work()
        action = acting.action()
        assert (str(action.state), action.error_code) == ("waiting", "http.status")
        acting.time_passes(timedelta(minutes=2))
        acting.work()
        assert str(acting.action().state) == "done"
        first, second = receiver.got
    assert first.json["id"] == second.json["id"]
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


def test_a_fault_for_good_is_given_up_and_a_person_may_try_again(acting: Acting) -> None:
    answers = iter([Reply(400), Reply(200)])
    with Receiver(lambda _: next(answers)) as receiver:
        acting.events(receiver)
        acting.blame()
        acting.work()
        acting.work()
        assert str(acting.action().state) == "failed"
        assert len(receiver.got) == 1
        allow(acting.container, acting.action().id)
        acting.work()
        assert str(acting.action().state) == "done"


def test_a_repair_that_helped_takes_it_back(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    acting.time_passes(timedelta(hours=2))
    with acting.container.uow() as tx:
        now = tx.now
    note_repair(acting.container, "node-7", what="replaced GPU 3", at=now - timedelta(hours=1))
    acting.work()
    # One session after the repair does not show yet whether the repair helped.
    assert str(acting.action().state) == "done"
    acting.well(job="llm")
    acting.work()
    action = acting.action()
    assert (str(action.state), action.released_by) == ("released", None)
    assert receiver.got[-1].json["type"] == "dev.paceline.machine.recovered"


def test_a_probe_that_clears_every_device_after_a_repair_takes_it_back(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    acting.time_passes(timedelta(hours=2))
    for number in range(4):
        note(acting, f"other-{number}", 650.0, 651.0)
    # A probe before the repair does not count.
    note(acting, "node-7", 650.0, 651.0)
    note_repair(acting.container, "node-7", what="replaced GPU 1")
    acting.work()
    assert str(acting.action().state) == "done"
    note(acting, "node-7", 650.0, 520.0)
    acting.work()
    assert str(acting.action().state) == "done"
    note(acting, "node-7", 650.0, 651.0)
    acting.work()
    action = acting.action()
    assert (str(action.state), action.released_by) == ("released", None)
    assert receiver.got[-1].json["type"] == "dev.paceline.machine.recovered"


def test_a_probe_that_misses_a_gpu_of_the_machine_does_not_take_it_back(
    acting: Acting, receiver: Receiver
) -> None:
    acting.events(receiver)
    acting.blame()
    with acting.container.uow() as tx:
        for reading in tx.session.execute(select(HostReading)).scalars():
            reading.ranks = 2
            reading.gpus = [{"gpu": "1", "slowdown": 1.3, "computing": None, "slow": True}]
    acting.work()
    acting.time_passes(timedelta(hours=2))
    for number in range(4):
        note(acting, f"other-{number}", 650.0, 651.0)
    note_repair(acting.container, "node-7", what="reseated GPU 1")
    note(acting, "node-7", 650.0)
    acting.work()
    assert str(acting.action().state) == "done"
    note(acting, "node-7", 650.0, 651.0)
    acting.work()
    assert str(acting.action().state) == "released"


def note(acting: Acting, host: str, *tflops: float) -> None:
    with acting.container.reading() as tx:
        now = tx.now
    devices = [
        ProbedDevice(str(number), "NVIDIA H100", f"{host}-{number}", None, {Measure.MATMUL: value})
        for number, value in enumerate(tflops)
    ]
    note_probe(acting.container, host, devices, probe_id=uuid4(), at=now, guessed=False)


def test_a_repair_that_did_not_help_leaves_it_out(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    acting.time_passes(timedelta(hours=2))
    with acting.container.uow() as tx:
        tx.session.add(
            HostRepair(
                host="node-7", gpu=None, what="reseated", by="x", at=tx.now - timedelta(hours=1)
            )
        )
    acting.blame()
    acting.work()
    assert str(acting.action().state) == "done"


def test_a_done_action_outlives_its_incident(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    resolve_incident(acting.container, acting.alerting.incident().id)
    acting.work()
    assert acting.states() == {"node-7": ["done"]}


def test_everything_is_in_the_audit_log(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    acting.blame()
    acting.work()
    set_switch(acting.container, stopped=True, reason="storm")
    set_switch(acting.container, stopped=False)
    put_back(acting.container, acting.action().id)
    acting.work()
    with acting.container.everywhere().reading() as tx:
        said = [(one.action, one.subject) for one in list_entries(tx, 20)][::-1]
    assert said == [
        ("changed", "policy of actions event"),
        ("ordered", "event action on node-7"),
        ("did", "event action on node-7"),
        ("stopped", "all actions on machines"),
        ("let go on", "all actions on machines"),
        ("took back", "event action on node-7"),
        ("did", "event action on node-7"),
    ]


def test_secrets_go_in_and_never_come_out(acting: Acting, receiver: Receiver) -> None:
    acting.events(receiver)
    with acting.container.reading() as tx:
        view = get_policy(tx, "event")
    assert view.config == {}
    assert view.secrets == {"url": "127.0.0.1", "signing_secrets": None}
    assert SECRET not in repr(view)
    assert reseal_policies(acting.container.everywhere()) == 1
    acting.blame()
    acting.work()
    assert str(acting.action().state) == "done"


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/x",
        "ftp://hooks.example.com/x",
        "https://169.254.169.254/latest",
        "https://10.0.0.1/x",
        "http://127.0.0.1.evil.example/",
    ],
)
def test_events_go_over_tls_to_public_addresses(acting: Acting, url: str) -> None:
    with pytest.raises(InvalidActionError):
        set_policy(acting.container, "event", config={"url": url})
    with pytest.raises(NotFoundError):
        set_policy(acting.container, "shell", config={})


def test_a_worker_that_is_killed_in_the_middle_leaves_one_action(
    acting: Acting, tmp_path: Path
) -> None:
    killed: list[int] = []

    def killing(_: Got) -> Reply:
        # The worker is killed after the receiver got the event and before it answers.
        if not killed:
            first.kill()
            killed.append(1)
        return Reply()

    with Receiver(killing) as receiver:
        acting.events(receiver)
        acting.blame()
        soon = {"lease_s": 6.0, "lease_renew_s": 1.0, "republish_after_s": 0.5}
        settings = acting.container.settings.model_copy(update=soon)
        container = build(settings)
        with WorkerProcess(container, tmp_path / "first.log", queue="io") as first:
            first.wait_until_ready()
            acting.look()
            wait_for(lambda: bool(killed), "the kill")
        assert str(acting.action().state) == "waiting"

        def done() -> bool:
            sweep(container)
            return str(acting.action().state) == "done"

        with WorkerProcess(container, tmp_path / "second.log", queue="io") as second:
            second.wait_until_ready()
            wait_for(done, "what the killed worker was at")
        container.close()
        acting.work()
        assert len({got.json["id"] for got in receiver.got}) == 1
        assert len({got.body for got in receiver.got}) == 1
    assert acting.states() == {"node-7": ["done"]}

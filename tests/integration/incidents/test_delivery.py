"""From sessions to the receiver's requests: grouping, repetitions, failures, order."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from app.errors import ConflictError
from app.incidents.batching import IN_FLIGHT, flush_group, pump
from app.incidents.channel_reads import get_channel
from app.incidents.channel_writes import update_channel
from app.incidents.delivery_reads import replay_delivery
from app.incidents.evaluate import acknowledge_incident, reopen_incident, resolve_incident
from app.incidents.models.tables import AlertChannel, AlertDelivery, AlertGroup, IncidentState
from app.incidents.sweep import sweep_alerts
from app.installation.sweep import sweep
from app.platform.container import Container
from app.platform.database.task_runs import TaskRun
from app.platform.tasks.runs import claim
from benchmarks.support.receiver import Got, Reply
from tests.support.alerting import Alerting
from tests.support.reads import read
from tests.support.receiver import Receiver

MINUTE = timedelta(minutes=1)


def statuses(receiver: Receiver) -> list[str]:
    return [got.json["status"] for got in receiver.got]


def ids(receiver: Receiver) -> list[str]:
    return [got.headers["webhook-id"] for got in receiver.got]


def test_a_slow_job_and_its_end_make_one_message_each(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    alerting.slow()
    alerting.work()
    assert receiver.got == [], "told before group_wait was over"
    alerting.pass_and_work(MINUTE)
    assert statuses(receiver) == ["firing"]
    alerting.slow()
    alerting.pass_and_work(10 * MINUTE)
    assert statuses(receiver) == ["firing"]
    alerting.fast()
    alerting.pass_and_work(10 * MINUTE)
    assert statuses(receiver) == ["firing", "resolved"]
    alerting.pass_and_work(timedelta(days=2))
    assert statuses(receiver) == ["firing", "resolved"]
    assert alerting.states() == ["delivered", "delivered"]


def test_an_incident_that_ends_within_group_wait_makes_no_message(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    alerting.slow()
    alerting.fast()
    alerting.pass_and_work()
    assert receiver.got == []
    assert alerting.states() == []


def test_a_firing_incident_is_repeated_until_it_is_acknowledged(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    alerting.slow()
    for _ in range(3):
        alerting.pass_and_work()
    assert statuses(receiver) == ["firing"] * 3
    assert len(set(ids(receiver))) == 3
    acknowledge_incident(alerting.container, alerting.incident().id, by="ann")
    for _ in range(3):
        alerting.pass_and_work()
    assert statuses(receiver) == ["firing"] * 3


def test_a_fault_that_passes_is_tried_again_with_the_same_id_and_the_same_words(
    alerting: Alerting, receiver: Receiver
) -> None:
    replies = [Reply(503), Reply(429, headers={"Retry-After": "120"}), Reply(200)]
    receiver.answer = lambda _: replies[len(receiver.got) - 1]
    alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    assert alerting.states() == ["waiting"]
    alerting.pass_and_work(MINUTE)
    assert alerting.states() == ["waiting"]
    alerting.pass_and_work(MINUTE)
    assert len(receiver.got) == 2, "the receiver asked for two minutes"
    alerting.pass_and_work(2 * MINUTE)
    assert alerting.states() == ["delivered"]
    assert len(set(ids(receiver))) == 1
    assert len({got.body for got in receiver.got}) == 1
    assert alerting.deliveries()[0].attempt == 3


@pytest.mark.parametrize("status", [301, 302, 400])
def test_a_refusal_is_not_tried_again(alerting: Alerting, receiver: Receiver, status: int) -> None:
    receiver.answer = lambda _: Reply(status, b"no", {"Location": receiver.url})
    channel = alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    alerting.pass_and_work(timedelta(hours=1))
    assert len(receiver.got) == 1
    [delivery] = alerting.deliveries()
    assert (delivery.state, delivery.answer_status, delivery.answer) == ("failed", status, "no")
    view = read(alerting.container, get_channel, channel)
    assert view.enabled
    assert view.last_error is not None


def test_a_refused_message_is_sent_again_later(alerting: Alerting, receiver: Receiver) -> None:
    receiver.answer = lambda _: Reply(400 if len(receiver.got) == 1 else 200)
    alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    alerting.fast()
    alerting.pass_and_work(10 * MINUTE)
    assert alerting.states() == ["failed", "delivered"]
    assert statuses(receiver) == ["firing", "resolved"]


def test_a_channel_that_is_gone_is_disabled_and_gives_its_deliveries_up(
    alerting: Alerting, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Reply(410)
    channel = alerting.channel(receiver)
    for job in ("a", "b"):
        alerting.slow(job)
    alerting.pass_and_work(MINUTE)
    view = read(alerting.container, get_channel, channel)
    assert not view.enabled
    assert view.disabled_reason == "The receiver answered 410."
    assert set(alerting.states()) == {"failed"}
    count = len(receiver.got)
    alerting.pass_and_work()
    assert len(receiver.got) == count


def test_a_channel_that_is_enabled_again_gets_the_open_incidents(
    alerting: Alerting, receiver: Receiver
) -> None:
    channel = alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    update_channel(alerting.container, channel, enabled=False)
    update_channel(alerting.container, channel, enabled=True)
    alerting.pass_and_work(10 * MINUTE)
    assert statuses(receiver) == ["firing", "firing"]


def test_a_delivery_is_given_up_after_a_day(alerting: Alerting, receiver: Receiver) -> None:
    receiver.answer = lambda _: Reply(500)
    channel = alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    # Acknowledged, so that no repetition replaces the delivery.
    acknowledge_incident(alerting.container, alerting.incident().id, by="ann")
    with alerting.container.uow() as tx:
        tx.session.execute(update(AlertGroup).values(flush_at=None))
    for _ in range(20):
        alerting.pass_and_work(timedelta(hours=3))
        with alerting.container.uow() as tx:
            tx.session.execute(update(AlertGroup).values(flush_at=None))
    assert alerting.states() == ["failed"]
    assert 6 <= len(receiver.got) <= 12
    assert read(alerting.container, get_channel, channel).failures == len(receiver.got)


def test_a_newer_message_replaces_an_undelivered_one(
    alerting: Alerting, receiver: Receiver
) -> None:
    up = threading.Event()
    receiver.answer = lambda _: Reply(200 if up.is_set() else 503)
    alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    alerting.fast()
    alerting.pass_and_work(10 * MINUTE)
    assert alerting.states() == ["superseded", "waiting"]
    up.set()
    alerting.pass_and_work(10 * MINUTE)
    # The first message may have arrived, so the end of the incident is sent too.
    assert alerting.states() == ["superseded", "delivered"]
    assert statuses(receiver)[-1] == "resolved"


def test_a_channel_gets_no_end_of_an_incident_that_it_never_got(
    alerting: Alerting, receiver: Receiver
) -> None:
    channel = alerting.channel(receiver)
    with alerting.container.uow() as tx:
        tx.session.execute(update(AlertChannel).values(hold_until=tx.now + timedelta(hours=3)))
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    alerting.fast()
    alerting.pass_and_work(timedelta(hours=4))
    assert alerting.states() == ["superseded"]
    assert receiver.got == []
    assert read(alerting.container, get_channel, channel).waiting == 0


def test_messages_of_a_job_come_in_order_also_after_failures(
    alerting: Alerting, receiver: Receiver
) -> None:
    def answer(_: Got) -> Reply:
        return Reply(500 if len(receiver.got) % 3 else 200)

    receiver.answer = answer
    alerting.channel(receiver)
    for round_ in range(6):
        alerting.slow() if round_ % 2 == 0 else alerting.fast()
        for _ in range(4):
            alerting.pass_and_work(7 * MINUTE)
    numbers = [int(got.headers["paceline-sequence"]) for got in receiver.got]
    assert numbers == sorted(numbers)


def test_a_dead_channel_delays_no_other(alerting: Alerting, receiver: Receiver) -> None:
    with Receiver(lambda _: Reply(200, b"x" * 100, drip_s=0.5)) as slow:
        alerting.channel(slow, "slow")
        alerting.channel(receiver, "quick")
        jobs = [f"job-{number}" for number in range(IN_FLIGHT + 3)]
        for job in jobs:
            alerting.slow(job, host=f"host-of-{job}")
        alerting.time_passes(MINUTE)
        # The slow channel gets at most its share of threads, in any order of the deliveries.
        with alerting.container.uow() as tx:
            groups = list(tx.session.execute(select(AlertGroup.id)).scalars())
        for group in groups:
            for channel in flush_group(alerting.container, group):
                pump(alerting.container, channel)
        with alerting.container.uow() as tx:
            sending = list(
                tx.session.execute(
                    select(AlertDelivery.channel_id).where(AlertDelivery.state == "sending")
                ).scalars()
            )
        assert sorted(sending.count(channel) for channel in set(sending)) == [IN_FLIGHT] * 2


def test_a_receiver_that_drips_is_cut_off_in_time(alerting: Alerting, receiver: Receiver) -> None:
    receiver.answer = lambda _: Reply(200, b"x" * 1000, drip_s=0.1)
    alerting.container = _with(alerting, alert_attempt_limit_s=0.5)
    alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    [delivery] = alerting.deliveries()
    assert (delivery.state, delivery.error_code) == ("waiting", "timeout")


def test_a_worker_that_was_killed_leaves_a_delivery_that_is_sent_under_its_id(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    alerting.slow()
    alerting.time_passes(MINUTE)
    sweep_alerts(alerting.container)
    for _ in range(alerting.container.settings.max_attempts):
        with alerting.container.uow() as tx:
            run_id = tx.session.execute(
                select(TaskRun.id).where(TaskRun.state == "queued")
            ).scalar_one()
        assert claim(alerting.container, run_id) is not None
        with alerting.container.uow() as tx:
            tx.session.execute(
                update(TaskRun)
                .where(TaskRun.id == run_id)
                .values(lease_until=tx.now - timedelta(seconds=1))
            )
        # The lease must be short: an expired lease may not be older than the database server.
        settings = alerting.container.settings.model_copy(update={"lease_s": 0.1})
        sweep(replace(alerting.container, settings=settings))
    assert alerting.states() == ["waiting"]
    [before] = alerting.deliveries()
    alerting.pass_and_work(5 * MINUTE)
    assert alerting.states() == ["delivered"]
    assert ids(receiver) == [f"msg_{before.id.hex}"]


def test_an_attempt_whose_claim_was_lost_stores_nothing(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    alerting.slow()
    alerting.time_passes(MINUTE)

    def taken_over(_: Got) -> Reply:
        with alerting.container.uow() as tx:
            tx.session.execute(
                update(TaskRun)
                .where(TaskRun.state == "running")
                .values(claim_token=uuid.uuid4(), attempt=2)
            )
        return Reply(200)

    receiver.answer = taken_over
    alerting.work()
    assert alerting.states() == ["sending"]


def test_a_failed_delivery_can_be_sent_again_unless_a_later_one_was(
    alerting: Alerting, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Reply(400 if len(receiver.got) == 1 else 200)
    alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    [failed] = alerting.deliveries()
    replay_delivery(alerting.container, failed.id)
    alerting.work()
    assert alerting.states() == ["delivered"]
    assert len(set(ids(receiver))) == 1
    with pytest.raises(ConflictError):
        replay_delivery(alerting.container, failed.id)


def test_an_incident_that_a_person_resolves_closes_the_alerts_of_pagers(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    resolve_incident(alerting.container, alerting.incident().id, by="ann", note="replaced")
    alerting.pass_and_work(10 * MINUTE)
    assert statuses(receiver) == ["firing", "resolved"]
    assert alerting.incident().state is IncidentState.RESOLVED
    alert = receiver.got[-1].json["alerts"][0]
    assert alert["annotations"]["description"] == "Because: replaced"


def test_only_a_reopening_after_the_end_was_sent_makes_a_message(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    incident = alerting.incident().id
    resolve_incident(alerting.container, incident, by="ann")
    reopen_incident(alerting.container, incident, by="ann")
    alerting.pass_and_work(10 * MINUTE)
    assert statuses(receiver) == ["firing"]

    resolve_incident(alerting.container, incident, by="ann")
    alerting.pass_and_work(10 * MINUTE)
    reopen_incident(alerting.container, incident, by="ann")
    alerting.pass_and_work(10 * MINUTE)
    assert statuses(receiver) == ["firing", "resolved", "firing"]
    # Sessions after the reopening count again, and do not end the incident.
    assert alerting.incident().state is IncidentState.FIRING


def _with(alerting: Alerting, **changes: object) -> Container:
    settings = alerting.container.settings.model_copy(update=changes)
    return replace(alerting.container, settings=settings)

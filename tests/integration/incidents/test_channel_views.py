"""The data of the page of channels."""

from __future__ import annotations

from sqlalchemy import update

from app.incidents.channel_reads import channels_and_tallies, list_channels
from app.incidents.channel_settings import undelivered
from app.incidents.channel_writes import update_channel
from app.incidents.delivery_reads import replay_delivery
from app.incidents.everywhere import navigation
from app.incidents.models.tables import AlertChannel
from app.incidents.secrets import check_secrets
from app.incidents.views import incidents
from benchmarks.support.receiver import Reply
from tests.support.alerting import Alerting
from tests.support.reads import read
from tests.support.receiver import Receiver


def test_a_channel_is_dead_when_its_receiver_is_gone_and_alive_once_enabled(
    alerting: Alerting, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Reply(410, b"gone for good")
    channel = alerting.channel(receiver)
    assert read(alerting.container, navigation).dead_channels == ()
    alerting.slow()
    alerting.pass_and_work()
    assert read(alerting.container, navigation).dead_channels == ("hook",)
    [failed], count = read(alerting.container, undelivered)
    assert (failed.delivery.state, failed.delivery.answer, count) == ("failed", "gone for good", 1)
    assert not failed.can_replay
    update_channel(alerting.container, channel, enabled=True)
    assert read(alerting.container, navigation).dead_channels == ()
    [failed], _ = read(alerting.container, undelivered)
    assert failed.can_replay


def test_a_channel_that_a_user_disabled_is_not_dead(alerting: Alerting, receiver: Receiver) -> None:
    alerting.channel(receiver, enabled=False)
    assert read(alerting.container, navigation).dead_channels == ()


def test_a_channel_whose_secrets_no_key_opens_is_dead(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    with alerting.container.uow() as tx:
        tx.session.execute(update(AlertChannel).values(secrets=b"of another key"))
    alerting.work()
    assert read(alerting.container, navigation).dead_channels == ("hook",)
    assert [channel.readable for channel in read(alerting.container, list_channels)] == [False]


def test_an_outdated_message_is_not_offered_again(alerting: Alerting, receiver: Receiver) -> None:
    receiver.answer = lambda _: Reply(400, b"no")
    channel = alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work()
    receiver.answer = lambda _: Reply(200, b"yes")
    alerting.fast()
    alerting.pass_and_work()
    [failed], _ = read(alerting.container, undelivered, channel)
    assert (failed.delivery.state, failed.overtaken, failed.can_replay) == ("failed", True, False)


def test_a_delivery_that_failed_is_gone_from_the_list_once_it_arrived(
    alerting: Alerting, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Reply(400, b"no")
    channel = alerting.channel(receiver)
    alerting.slow()
    alerting.pass_and_work()
    [failed], _ = read(alerting.container, undelivered)
    tally = read(alerting.container, channels_and_tallies)[1][channel]
    assert (tally.failed, tally.status, tally.answer) == (1, 400, "no")
    receiver.answer = lambda _: Reply(200, b"yes")
    replay_delivery(alerting.container, failed.delivery.id)
    alerting.work()
    assert read(alerting.container, undelivered) == ([], 0)
    tally = read(alerting.container, channels_and_tallies)[1][channel]
    assert (tally.delivered, tally.failed, tally.status, tally.error) == (1, 0, 200, None)


def test_incidents_are_counted_by_state_and_those_that_are_over_listed_latest_first(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    for job in ("a", "b", "c"):
        alerting.slow(job)
    for job in ("b", "a"):
        alerting.fast(job)
    found = read(alerting.container, incidents)
    assert found.counts == {"firing": 1}
    assert [row.job for row in found.present] == ["c"]
    assert [item.row.job for item in found.over] == ["a", "b"]
    assert found.over_count == 2


def test_a_sweep_fills_what_a_channel_of_before_shows_and_sees_a_key_that_came_back(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    with alerting.container.uow() as tx:
        tx.session.execute(update(AlertChannel).values(secret_hints={}))
    assert check_secrets(alerting.container) == 1
    [channel] = read(alerting.container, list_channels)
    assert (channel.secrets, channel.readable) == ({"url": "127.0.0.1"}, True)
    key = alerting.container.settings.data_dir / "secret.key"
    key.rename(key.with_suffix(".away"))
    assert check_secrets(alerting.container) == 1
    [channel] = read(alerting.container, list_channels)
    assert (channel.secrets, channel.readable) == ({}, False)
    key.with_suffix(".away").rename(key)
    assert [check_secrets(alerting.container) for _ in range(2)] == [1, 0]
    assert read(alerting.container, navigation).dead_channels == ()

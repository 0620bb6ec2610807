"""Storms become digests, channels have a limit, and a new channel gets no past incidents."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from app.analysis.report.session_verdict import SuspectedCause
from app.incidents.channel_writes import update_channel
from app.incidents.message import MESSAGE
from app.incidents.pages.list import IncidentsQuery
from app.incidents.rule_store import save_rule
from app.incidents.store import load_rules
from app.incidents.views import incidents
from benchmarks.support.receiver import Reply
from tests.support.alerting import Alerting
from tests.support.reads import read
from tests.support.receiver import Receiver

MINUTE = timedelta(minutes=1)


def _storm(alerting: Alerting, jobs: int, slowdown: float = 1.3) -> None:
    for number in range(jobs):
        cause = SuspectedCause("slow_worker", (f"node-{number}",), confidence=0.95)
        for _ in range(2):
            alerting.session(slowdown + number / 1000, cause, job=f"job-{number}")


def _jobs(receiver: Receiver) -> list[set[str]]:
    return [{alert["labels"]["job"] for alert in got.json["alerts"]} for got in receiver.got]


def test_a_storm_is_one_message_with_the_worst_first(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    _storm(alerting, 9)
    alerting.pass_and_work(MINUTE)
    [got] = receiver.got
    assert len(got.json["alerts"]) == 9
    assert got.json["alerts"][0]["labels"]["job"] == "job-8"
    assert got.json["groupLabels"] == {}
    assert set(alerting.states()) == {"delivered"}
    [carrier] = [one for one in alerting.deliveries() if one.digest_id == one.id]
    told = MESSAGE.validate_python(carrier.message)
    assert told.title == "[FIRING] 9 incidents in 9 jobs; worst job-8: Slow worker: node-8"


def test_after_a_few_messages_the_rest_of_a_minute_is_one(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    _storm(alerting, 3)
    alerting.pass_and_work(MINUTE)
    assert len(receiver.got) == 3
    for job in "abcde":
        cause = SuspectedCause("slow_worker", (f"node-{job}",), confidence=0.95)
        for _ in range(2):
            alerting.session(1.3, cause, job=job)
    alerting.pass_and_work(timedelta(seconds=40))
    assert len(receiver.got) == 3
    alerting.pass_and_work(MINUTE)
    assert _jobs(receiver)[3:] == [set("abcde")]


def test_incidents_beyond_the_limit_are_in_the_next_digest(
    alerting: Alerting, receiver: Receiver
) -> None:
    channel = alerting.channel(receiver)
    update_channel(alerting.container, channel, rate_limit=1)
    _storm(alerting, 1)
    alerting.pass_and_work(MINUTE)
    assert len(receiver.got) == 1
    _storm(alerting, 4)
    alerting.pass_and_work(5 * MINUTE)
    assert len(receiver.got) == 1
    alerting.pass_and_work(10 * MINUTE)
    assert _jobs(receiver) == [{"job-0"}, {"job-1", "job-2", "job-3"}]


def test_a_digest_that_fails_comes_again_under_its_id(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    answers = iter([Reply(503)])
    receiver.answer = lambda _: next(answers, Reply())
    _storm(alerting, 5)
    alerting.pass_and_work(MINUTE)
    alerting.pass_and_work(10 * MINUTE)
    first, second = receiver.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.json == second.json
    assert set(alerting.states()) == {"delivered"}
    # The end of each job's incident is sent, as without a digest.
    for number in range(5):
        alerting.fast(f"job-{number}")
    alerting.pass_and_work(10 * MINUTE)
    assert {alert["status"] for alert in receiver.got[-1].json["alerts"]} == {"resolved"}
    assert len(receiver.got[-1].json["alerts"]) == 5


def test_a_digest_that_is_refused_is_failed_for_all(alerting: Alerting, receiver: Receiver) -> None:
    alerting.channel(receiver)
    receiver.answer = lambda _: Reply(400)
    _storm(alerting, 5)
    alerting.pass_and_work(MINUTE)
    assert alerting.states() == ["failed"] * 5


def test_a_new_channel_is_not_sent_the_past(alerting: Alerting, receiver: Receiver) -> None:
    alerting.slow("old")
    alerting.channel(receiver)
    alerting.pass_and_work(MINUTE)
    assert receiver.got == []
    for _ in range(2):
        alerting.session(
            1.3, SuspectedCause("slow_worker", ("node-9",), confidence=0.95), job="new"
        )
    alerting.pass_and_work(MINUTE)
    assert _jobs(receiver) == [{"new"}]
    alerting.fast("old")
    alerting.pass_and_work(10 * MINUTE)
    assert len(receiver.got) == 1


def test_a_channel_that_a_rule_gets_is_not_sent_its_past(
    alerting: Alerting, receiver: Receiver
) -> None:
    channel = alerting.channel(receiver, audience="owner")
    alerting.slow("old")
    for rule in read(alerting.container, load_rules):
        if rule.audience != "owner":
            save_rule(alerting.container, replace(rule, channels=(channel,)), new=False)
    alerting.pass_and_work(10 * MINUTE)
    assert receiver.got == []
    for _ in range(2):
        alerting.session(
            1.3, SuspectedCause("slow_worker", ("node-9",), confidence=0.95), job="new"
        )
    alerting.pass_and_work(10 * MINUTE)
    assert _jobs(receiver) == [{"new"}]


def test_people_get_one_screen_and_a_link_to_exactly_these_incidents(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver, kind="slack", config={"url": receiver.url})
    stage = SuspectedCause("stage_imbalance", ("stage 1",), confidence=0.9)
    _storm(alerting, 63)
    for _ in range(2):
        alerting.session(1.8, stage, job="other")
    alerting.pass_and_work(MINUTE)
    # This incident fires after the digest, so it is not in it.
    alerting.slow("later")
    [got] = receiver.got
    header, causes, worst, actions = got.json["blocks"]
    assert header["text"]["text"].startswith("[CRITICAL] 64 incidents in 64 jobs")
    lines = causes["text"]["text"].splitlines()
    assert lines[0] == "*By cause*"
    assert [line.split(",")[0] for line in lines[1:]] == [
        "• 63 × Slow worker",
        "• 1 × Stage imbalance",
    ]
    assert "GPU-hours each hour" in lines[1]
    named = [line.split(":")[0] for line in worst["text"]["text"].splitlines()]
    assert named == ["*Most expensive*", "• other", *(f"• job-{n}" for n in (62, 61, 60, 59))]
    [button] = actions["elements"]
    assert button["text"]["text"] == "Open all 64"
    query = IncidentsQuery(message=button["url"].rpartition("message=")[2])
    found = read(alerting.container, incidents, query.filtered)
    assert (found.total, query.narrowed) == (64, True)
    assert "later" not in {row.job for row in found.present}

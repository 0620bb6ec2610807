"""Deliveries: from a sent session to the receiver's request, and a repetition by hand."""

from __future__ import annotations

import uuid
from datetime import timedelta

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.model import Sizes
from benchmarks.support.receiver import Reply
from tests.integration.api.conftest import Installation
from tests.integration.api.incidents.asking import API, add_channel
from tests.support.alerting import Alerting
from tests.support.receiver import Receiver


def test_two_slow_sessions_that_are_sent_and_analyzed_reach_the_channel_with_their_cause(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    add_channel(served, receiver)
    sizes = {"dp": 2, "pp": 2, "tp": 1, "cp": 1, "vpp": 1, "world": 4}
    for seed in (1, 2):
        job = JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12)
        session = synthesize(job, [SlowWorker((1, 1), 1.8)], seed=seed)
        answer = served.client.post(
            f"{API}/jobs/llm/sessions", content=to_parquet(session.trace), params=sizes
        )
        assert answer.status_code == 202, answer.text
        served.analyze_all()
    alerting.pass_and_work(timedelta(minutes=1))
    [got] = receiver.got
    [alert] = [a for a in got.json["alerts"] if a["labels"]["cause"] == "slow_worker"]
    assert alert["labels"]["job"] == "llm"
    assert alert["labels"]["where"] == "worker (1, 1)"
    for words in (
        "Slowdown: 1.",
        "Published S: 1.",
        "GPU-hours each hour",
        "Worst workers: (DP 1, PP 1)",
        "Best fix",
    ):
        assert words in alert["annotations"]["description"], words
    page = alert["annotations"]["dashboard"].removeprefix("http://127.0.0.1:8765")
    assert served.client.get(page).status_code == 200


def test_a_picture_of_the_session_is_in_the_message(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    add_channel(served, receiver, kind="discord", config={"url": receiver.url})
    rules = served.client.get(f"{API}/alert-rules").json()["rules"]
    [slow] = [rule for rule in rules if rule["name"] == "Slow job"]
    served.client.put(f"{API}/alert-rules/{slow['id']}", json=slow | {"consecutive": 1})
    job = JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12)
    session = synthesize(job, [SlowWorker((1, 1), 1.8)], seed=1)
    served.client.post(
        f"{API}/jobs/llm/sessions", content=to_parquet(session.trace), params={"dp": 2, "pp": 2}
    )
    served.analyze_all()
    alerting.pass_and_work(timedelta(minutes=1))
    assert b"\x89PNG\r\n\x1a\n" in receiver.got[0].body


def test_deliveries_are_listed_and_sent_again(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Reply(400 if len(receiver.got) == 1 else 200)
    added = add_channel(served, receiver)
    alerting.slow()
    alerting.pass_and_work(timedelta(minutes=1))
    [failed] = served.client.get(f"{API}/deliveries").json()["deliveries"]
    assert (failed["state"], failed["answer_status"], failed["channel"]) == ("failed", 400, "hook")
    assert failed["title"] == "[FIRING] llm: Slow worker: node-7"
    health = served.client.get(f"{API}/channels/{added['id']}").json()
    assert (health["failures"], health["last_error"]) == (1, "The receiver answered 400.")
    path = f"{API}/deliveries/{failed['id']}/replay"
    assert served.client.post(path).status_code == 204
    alerting.work()
    [sent] = served.client.get(f"{API}/deliveries", params={"state": "delivered"}).json()[
        "deliveries"
    ]
    assert sent["id"] == failed["id"]
    assert served.client.get(f"{API}/channels/{added['id']}").json()["last_error"] is None
    assert served.client.post(path).json()["code"] == "delivery.wrong_state"
    assert served.client.post(f"{API}/deliveries/{uuid.uuid4()}/replay").status_code == 404

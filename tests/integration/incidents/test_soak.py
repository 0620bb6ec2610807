"""A small soak, and the detection of faults by its judge."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import httpx
import pytest

from benchmarks.soak import run
from benchmarks.soak_judge import Receiver, Verdict
from tests.support.nightly import by_night


@by_night
def test_nothing_is_lost_while_workers_are_killed_and_channels_fail() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--incidents", "60", "--jobs", "12"],
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(r"due (\d+), delivered (\d+), lost 0, out of order 0", last)
    assert found, done.stdout + done.stderr
    assert found[1] == found[2] != "0"
    assert done.returncode == 0


def test_messages_that_a_channel_discarded_are_lost() -> None:
    """The receiver answered with success, so only a comparison with its messages shows the loss."""
    receiver = Receiver(0.5, 1, failures=(("unheard", 1),))
    with tempfile.TemporaryDirectory(prefix="paceline-soak-") as directory:
        verdict = run(12, 3, 1, Path(directory), receiver)
    assert verdict.delivered < verdict.due
    assert verdict.lost >= verdict.due - verdict.delivered
    assert not verdict.good


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(due=0, delivered=0, lost=0, out_of_order=0),
        Verdict(due=5, delivered=4, lost=0, out_of_order=0),
        Verdict(due=5, delivered=5, lost=1, out_of_order=0),
        Verdict(due=5, delivered=5, lost=0, out_of_order=1),
    ],
)
def test_anything_but_everything_is_a_failure(verdict: Verdict) -> None:
    assert not verdict.good


def _say(receiver: Receiver, number: int, id_: uuid.UUID, status: str = "firing") -> None:
    alert = {"status": status, "annotations": {"incident": "https://paceline.example/incidents/7"}}
    headers = {"webhook-id": f"msg_{id_.hex}", "paceline-sequence": str(number)}
    body = {"groupLabels": {"job": "llm"}, "alerts": [alert]}
    httpx.post(receiver.url("first"), json=body, headers=headers).raise_for_status()


def test_the_receiver_counts_messages_out_of_order() -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    with Receiver(0.0, 1) as receiver:
        _say(receiver, 1, first)
        _say(receiver, 1, first)
        assert (receiver.repeated, receiver.out_of_order) == (1, 0)
        _say(receiver, 2, second, "resolved")
        _say(receiver, 1, first)
        assert (receiver.repeated, receiver.out_of_order) == (2, 1)
        _say(receiver, 2, uuid.uuid4())
        assert receiver.out_of_order == 2


def test_a_digest_is_heard_for_each_of_its_jobs() -> None:
    id_, later = uuid.uuid4(), uuid.uuid4()

    def say(id_: uuid.UUID, *jobs: str) -> None:
        alerts = [
            {
                "status": "firing",
                "labels": {"job": job},
                "annotations": {"incident": f"https://paceline.example/incidents/{job}"},
            }
            for job in jobs
        ]
        headers = {"webhook-id": f"msg_{id_.hex}", "paceline-sequence": "1"}
        body = {"groupLabels": {}, "alerts": alerts}
        httpx.post(receiver.url("first"), json=body, headers=headers).raise_for_status()

    with Receiver(0.0, 1) as receiver:
        say(id_, "a", "b")
        say(id_, "a", "b")
        assert (receiver.repeated, receiver.changed, receiver.out_of_order) == (1, 0, 0)
        assert {job: set(heard.firing) for (_, job), heard in receiver.messages.items()} == {
            "a": {"a"},
            "b": {"b"},
        }
        say(later, "b", "c")
        assert receiver.out_of_order == 0
        # Job b has got a newer message meanwhile.
        say(id_, "a", "b")
        assert receiver.out_of_order == 1
        assert receiver.digests == {f"msg_{id_.hex}", f"msg_{later.hex}"}


def test_the_receiver_counts_repetitions_with_other_words() -> None:
    id_ = uuid.uuid4()
    with Receiver(0.0, 1) as receiver:
        _say(receiver, 1, id_)
        _say(receiver, 1, id_, "resolved")
    assert receiver.changed == 1

"""Ranks of a host pass their pulse to one of them, and can replace it."""

from __future__ import annotations

import gzip
import json
import logging
import math
import os
import time
from collections.abc import Callable
from itertools import accumulate
from types import SimpleNamespace

import pytest

from paceline_client.environment import Run
from paceline_client.pulse.requests import RecordRequest
from paceline_client.pulse.rows import Beat, Row
from paceline_client.pulse.sender import MAX_AGE_S, PULSE_VARIABLE, Destination, Pulse
from tests.support.waiting import wait_for
from tests.unit.client.conftest import Answer, Receiver

SOON_S = "0.05"
PHASE = ("forward-compute", 5)
ROW = Row(7, 0, 0, 0, 10**18, 900, 500, 100, 20, 30, 0, 4096)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PULSE_VARIABLE, SOON_S)
    # Long enough for a busy machine.
    monkeypatch.setattr("paceline_client.pulse.sender._HOST_TIMEOUT_S", 60.0)


Make = Callable[..., Pulse]


@pytest.fixture
def make(receiver: Receiver, request: pytest.FixtureRequest) -> Make:
    receiver.answers = [Answer(status=201, document={"attempt": 3})]
    asked: list[RecordRequest] = []

    def make(rank: int, heard: list[RecordRequest] | None = None, *, says: bool = False) -> Pulse:
        def beat(finished: bool) -> Beat:  # noqa: FBT001 - as the thread calls it
            name = "finished" if finished else PHASE[0]
            return Beat(8, rank, rank, 0, 10**18, name, 10**18)

        where = Destination(receiver.url, "job", Run("run"), rank, rank, "node")
        told = asked if heard is None else heard
        said = {f"stack_{rank}.json": "[]"}
        say = (lambda: said) if says else None
        pulse = Pulse(where, beat, told.append, say)
        request.addfinalizer(lambda: pulse.close(0.0, finished=False))
        return pulse

    return make


def phases_of(receiver: Receiver) -> set[str]:
    """Return the phases of all received beats."""
    documents = [json.loads(gzip.decompress(request.body)) for request in receiver.pulses]
    return {phase for document in documents for phase in document["phases"]}


def files_of(receiver: Receiver) -> dict[str, str]:
    """Return the files of all received bodies, the latest one for each name."""
    found: dict[str, str] = {}
    for request in receiver.pulses:
        found |= json.loads(gzip.decompress(request.body)).get("files", {})
    return found


def ranks_of(receiver: Receiver) -> list[tuple[int, int]]:
    """Return rank and step of the received rows."""
    found = []
    for request in receiver.pulses:
        columns = json.loads(gzip.decompress(request.body))["columns"]
        lines = zip(accumulate(columns["rank"]), accumulate(columns["step"]), strict=True)
        known = zip(lines, columns["phase"], strict=True)
        found += [line for line, phase in known if phase is None]
    return sorted(found)


def test_one_rank_of_a_host_sends_for_all(receiver: Receiver, make: Make) -> None:
    first, second = make(0), make(1)
    first.start()
    wait_for(lambda: first.sends, "the first rank sends")
    second.start()
    first.add(ROW)
    second.add(ROW._replace(rank=1))
    wait_for(lambda: len(ranks_of(receiver)) == 2, "both rows came")
    assert not second.sends
    assert second.counts.handed_in == 1
    wait_for(lambda: first.counts.sent == 2, "both are counted")
    assert {request.path for request in receiver.pulses} == {"/api/v1/jobs/job/attempts/3/pulse"}


def test_another_rank_takes_the_place_of_the_one_that_has_ended(
    receiver: Receiver, make: Make
) -> None:
    first, second = make(0), make(1)
    first.start()
    wait_for(lambda: first.sends, "the first rank sends")
    second.start()
    first.close(time.monotonic() + 60, finished=True)
    second.add(ROW._replace(rank=1))
    wait_for(lambda: second.sends, "the second rank sends")
    wait_for(lambda: ranks_of(receiver) == [(1, 7)], "its row came")
    assert "finished" in phases_of(receiver)


def test_requests_of_the_server_reach_global_rank_0(receiver: Receiver, make: Make) -> None:
    heard: list[RecordRequest] = []
    first, second = make(1), make(0, heard)
    first.start()
    # The reverse case: the sending process is not rank 0.
    wait_for(lambda: first.sends or bool(receiver.pulses), "one sends")
    receiver.pulse = Answer(document={"record": {"steps": 9, "reason": "slow"}, "pulse_s": 5})
    second.start()
    wait_for(lambda: bool(heard), "rank 0 was told")
    assert heard[0] == RecordRequest(9, "slow", by_person=False)


def test_ranks_say_what_they_are_in_while_the_server_asks_and_one_that_is_silent_is_looked_at(
    receiver: Receiver, make: Make
) -> None:
    first, second = make(0, says=True), make(1, says=True)
    first.start()
    wait_for(lambda: first.sends, "the first rank sends")
    second.start()
    second.add(ROW._replace(rank=1))
    wait_for(lambda: second.counts.handed_in == 1, "the second rank hands in")
    assert files_of(receiver) == {}

    receiver.pulse = Answer(document={"record": None, "pulse_s": 5, "files": True})
    wait_for(lambda: len(files_of(receiver)) == 2, "both said it")
    assert files_of(receiver).keys() == {"stack_0.json", "stack_1.json"}
    second.close(0.0, finished=False)
    wait_for(lambda: "process_1.json" in files_of(receiver), "its process was looked at")
    told = json.loads(files_of(receiver)["process_1.json"])["process"]
    assert (told["pid"], told["state"] in "RSD") == (os.getpid(), True)


def test_ranks_whose_job_keeps_it_to_itself_say_nothing(receiver: Receiver, make: Make) -> None:
    receiver.pulse = Answer(document={"record": None, "pulse_s": 5, "files": True})
    pulse = make(0)
    pulse.start()
    wait_for(lambda: len(receiver.pulses) > 5, "some bodies came")
    assert files_of(receiver) == {}


@pytest.mark.parametrize("status", [404, 409])
def test_a_server_that_takes_no_pulse_gets_one_request(
    receiver: Receiver, make: Make, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    receiver.pulse = Answer(status=status, document={"detail": "None is taken"})
    pulse = make(0)
    pulse.add(ROW)
    with caplog.at_level(logging.WARNING, "paceline_client"):
        pulse.start()
        wait_for(lambda: not pulse.wanted, "it was told")
    pulse.add(ROW)
    pulse.close(time.monotonic() + 60, finished=True)
    assert len(receiver.pulses) == 1
    assert caplog.text.count("takes no pulse") == 1


def test_old_rows_are_dropped_and_counted(
    receiver: Receiver, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline_client.pulse.sender.MAX_AGE_S", MAX_AGE_S / 100)
    receiver.pulse = Answer(status=503, document={})
    pulse = make(0)
    pulse.add(ROW)
    pulse.start()
    wait_for(lambda: pulse.counts.dropped == 1, "it was dropped")
    receiver.pulse = Answer(document={"record": None, "pulse_s": 5})
    pulse.add(ROW._replace(step=9))
    wait_for(lambda: pulse.counts.sent == 1, "the next was sent")


def test_the_oldest_rows_go_where_there_is_no_room(make: Make) -> None:
    pulse = make(0)
    for step in range(10_000):
        pulse.add(ROW._replace(step=step))
    assert pulse.counts.rows == 10_000
    assert pulse.counts.dropped == 10_000 - 8192


def test_while_no_step_ends_bodies_come_twice_as_often(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PULSE_VARIABLE, "5")
    pulse = make(0)
    clock = [1000.0]
    monkeypatch.setattr(
        "paceline_client.pulse.sender.time", SimpleNamespace(monotonic=lambda: clock[0])
    )

    def bodies(seconds: float, row_every_s: float) -> int:
        end_s, row_s, count = clock[0] + seconds, clock[0], 0
        while clock[0] < end_s:
            clock[0] += pulse._until_next_s()
            count += 1
            if clock[0] - row_s >= row_every_s:
                row_s = clock[0]
                pulse.add(ROW)
        return count

    # The time before the first step is no hang.
    assert bodies(100, math.inf) == pytest.approx(20, abs=1)
    pulse.add(ROW)
    assert bodies(100, 10) == pytest.approx(20, abs=1)
    # No step ends any more, which the sender knows from the third body on.
    assert bodies(15, math.inf) == pytest.approx(3, abs=1)
    assert bodies(100, math.inf) == pytest.approx(40, abs=1)
    pulse.add(ROW)
    assert bodies(15, math.inf) == pytest.approx(3, abs=1)

"""Chunks of shares: sent while recording, or later from the spool, each of them once."""

from __future__ import annotations

import gzip
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from paceline_client import Recorder, RetryPolicy, Share, Spool
from paceline_client.operations import OperationBuffer, SessionBody
from paceline_client.sending import Sent, send_waiting
from paceline_client.spool import Address

from .conftest import Answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Receiver, Request


META = {"dp": 1, "pp": 1, "tp": 1, "cp": 1, "vpp": 1, "world": 1}
QUICK = RetryPolicy(give_up_after_s=10, first_wait_s=0.001, longest_wait_s=0.01, timeout_s=10)
LIMIT_S = 30.0
REFUSAL = Answer(409, {"code": "session.sealed", "detail": "It accepts no more chunks."})


def recorder(receiver: Receiver, spool: Spool | None, **how: Any) -> Recorder:  # noqa: ANN401
    return Recorder(
        receiver.url, "llama", META, share=Share(4, "rank-0"), spool=spool, chunk_every_s=0.0,
        retry=QUICK, **how,
    )  # fmt: skip


def record(to: Recorder, *steps: int) -> None:
    for step in steps:
        for mb in range(2):
            to.op(0, "forward-compute", 10**18 + step, 5, step=step, dp=0, pp=0, mb=mb)


def until(look: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not look():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def until_waiting(spool: Spool, least: int) -> None:
    until(lambda: len(spool.waiting()) >= least)


def until_requested(receiver: Receiver, least: int) -> None:
    until(lambda: len(receiver.requests) >= least)


def chunks(receiver: Receiver) -> list[tuple[str, list[int]]]:
    """Return the chunk number in the address and the steps of each request."""
    return [(one.path.rpartition("/")[2], steps(one)) for one in receiver.requests]


def steps(request: Request) -> list[int]:
    rows = [json.loads(line) for line in gzip.decompress(request.body).splitlines()[1:]]
    return sorted({row["step"] for row in rows})


def header(request: Request) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(gzip.decompress(request.body).splitlines()[0])["meta"]
    return meta


@pytest.fixture(params=["spool", "memory"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Spool | None:
    return Spool(tmp_path) if request.param == "spool" else None


def test_the_first_and_the_last_chunk_alone_have_the_tables_of_all_ranks(
    receiver: Receiver,
) -> None:
    tables = {"hosts": {"0": "node-0"}, "gpus": {"0": "H100"}, "local_ranks": {"0": 0}}
    sending = Recorder(
        receiver.url, "llama", META | tables, share=Share(4, "rank-0"), chunk_every_s=0.0,
        retry=QUICK,
    )  # fmt: skip
    for step in range(3):
        record(sending, step, step + 1)
        until_requested(receiver, step + 1)
    sending.finish()
    until(lambda: sending.wait(LIMIT_S) is not None)
    headers = [header(request) for request in receiver.requests]
    assert len(headers) >= 4
    for known in (headers[0], headers[-1]):
        assert {key: known[key] for key in tables} == tables
    for between in headers[1:-1]:
        assert not set(tables) & set(between)
        assert between["world"] == 1


def test_complete_steps_go_out_while_the_next_one_is_recorded(
    receiver: Receiver, spool: Spool | None
) -> None:
    recording = recorder(receiver, spool)
    record(recording, 1, 2)
    until(lambda: bool(receiver.requests))
    record(recording, 3)
    until(lambda: len(receiver.requests) == 2)
    recording.describe({"clocks": {"rank-0": {"clock_set_ns": 1}}})
    record(recording, 4)
    recording.leave_out([4])
    recording.finish()
    outcome = recording.wait(LIMIT_S)

    assert outcome is not None
    assert (outcome.error, outcome.recorded, outcome.spooled) == (None, 6, None)
    sent = chunks(receiver)
    assert sent[:2] == [("0", [1]), ("1", [2])]
    number, _, final = sent[-1][0].partition("?")
    assert (int(number), final) == (len(sent) - 1, "final=true")
    assert sorted({step for _, of in sent for step in of}) == [1, 2, 3]
    first, last = header(receiver.requests[0]), header(receiver.requests[-1])
    assert (first["pause_s"], "clocks" in first) == (600, False)
    assert last["clocks"] == {"rank-0": {"clock_set_ns": 1}}
    assert spool is None or spool.waiting() == []


def test_the_last_chunk_has_an_operation_though_all_steps_were_sent(receiver: Receiver) -> None:
    recording = recorder(receiver, None)
    record(recording, 1, 2)
    until(lambda: bool(receiver.requests))
    recording.leave_out([2])
    recording.finish()
    outcome = recording.wait(LIMIT_S)

    assert outcome is not None
    assert outcome.recorded == 2
    assert chunks(receiver) == [("0", [1]), ("1?final=true", [1])]
    lines = [gzip.decompress(request.body).splitlines() for request in receiver.requests]
    assert lines[1][1:] == lines[0][1:2], "the same operation, which the server keeps once"


def test_a_chunk_that_the_server_does_not_take_is_sent_again_with_the_same_bytes(
    receiver: Receiver, spool: Spool | None
) -> None:
    receiver.answers = [Answer(503), Answer(503), Answer(None)]
    recording = recorder(receiver, spool)
    record(recording, 1, 2)
    until(lambda: bool(receiver.requests))
    record(recording, 3, 4, 5)
    recording.finish()
    outcome = recording.wait(LIMIT_S)

    assert outcome is not None
    assert outcome.delivery is not None
    assert spool is None or spool.waiting() == []
    by_address: dict[str, set[bytes]] = {}
    for request in receiver.requests:
        by_address.setdefault(request.path, set()).add(request.body)
    assert {len(bodies) for bodies in by_address.values()} == {1}
    taken = [steps(one) for one in receiver.requests[3:]]
    assert sorted(step for of in taken for step in of) == [1, 2, 3, 4, 5]


def test_the_chunks_of_a_server_that_is_away_wait_in_order(tmp_path: Path) -> None:
    once = RetryPolicy(give_up_after_s=0)
    recording = Recorder(
        "http://127.0.0.1:9", "llama", META, share=Share(4, "rank-0"), spool=Spool(tmp_path),
        chunk_every_s=0.0, retry=once,
    )  # fmt: skip
    for step in range(1, 4):
        record(recording, step, step + 1)
        until_waiting(Spool(tmp_path), step)
    recording.finish()
    outcome = recording.wait(LIMIT_S)

    assert outcome is not None
    assert outcome.error is not None
    assert "did not answer" in outcome.error
    waiting = []
    for path in Spool(tmp_path).waiting():
        with Spool(tmp_path).claimed(path) as claimed:
            assert claimed is not None
            waiting.append((claimed[0].number, claimed[0].final))
    assert waiting == [(number, number == len(waiting) - 1) for number in range(len(waiting))]
    assert len(waiting) >= 4


def test_after_a_refusal_nothing_more_is_sent_or_kept(
    receiver: Receiver, spool: Spool | None
) -> None:
    receiver.answers = [Answer(), REFUSAL]
    recording = recorder(receiver, spool)
    for step in range(1, 6):
        record(recording, step)
        until_requested(receiver, min(step - 1, 2))
    recording.finish()
    outcome = recording.wait(LIMIT_S)

    assert outcome is not None
    assert outcome.error is not None
    assert "session.sealed" in outcome.error
    assert len(receiver.requests) == 2
    assert spool is None or spool.waiting() == []


def test_a_sent_body_is_released_and_a_late_operation_is_in_the_next_one() -> None:
    body = SessionBody(1 << 20)
    buffer = OperationBuffer(10_000)

    def add(step: int) -> None:
        for number in range(500):
            buffer.add("gc", 0, 0, 0, None, step, number, 1, None, None)
        for chunk in buffer.take():
            body.add(chunk, buffer.names)

    for step in range(6):
        add(step)
    taken, operations = body.take(META, without=[1])
    assert operations == 4 * 500
    assert body.take(META, without=[1]) == (b"", 0)
    held = body.bytes_held
    add(2)
    rest, operations = body.close(META, without=[1])
    assert operations == 2 * 500
    rows = [json.loads(line)["step"] for line in gzip.decompress(rest).splitlines()[1:]]
    assert sorted(set(rows)) == [2, 5]
    assert held < len(taken)


AT = "/api/v1/jobs/llama/attempts/1/sessions"


def spooled(receiver: Receiver, tmp_path: Path) -> Spool:
    """Return a spool with chunks of three ranks, and one of another session."""
    spool = Spool(tmp_path)
    for rank in range(3):
        spool.put(Address(receiver.url, "llama", 3, f"rank-{rank}", 1), b"body %d" % rank)
    spool.put(Address(receiver.url, "llama", 4, "rank-0", 1, number=2, final=False), b"next")
    return spool


def outcomes(*statuses: int) -> Answer:
    return Answer(200, {"chunks": [{"status": one, "code": "x"} for one in statuses]})


def test_the_chunks_of_a_session_go_together(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [outcomes(202, 200, 202)]
    spool = spooled(receiver, tmp_path)
    assert send_waiting(spool, receiver.url) == Sent(4, 0, 3, 0)
    together, alone = receiver.requests
    assert (together.method, together.path) == ("POST", f"{AT}/3/chunks")
    line, _, content = together.body.partition(b"\n")
    listed = json.loads(line)["chunks"]
    assert listed[1] == {"producer": "rank-1", "n": 0, "final": True, "bytes": 6}
    assert content == b"body 0body 1body 2"
    assert (alone.method, alone.path) == ("PUT", f"{AT}/4/chunks/rank-0/2")
    assert spool.waiting() == []


def test_refused_bodies_are_dropped_and_the_others_are_sent_later(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [outcomes(202, 422, 429)]
    spool = spooled(receiver, tmp_path)
    assert send_waiting(spool, receiver.url) == Sent(1, 2, 1, 1)
    assert len(receiver.requests) == 1
    assert [path.read_bytes().rpartition(b"\n")[2] for path in spool.waiting()] == [
        b"body 2",
        b"next",
    ]


def test_an_older_server_takes_them_one_by_one(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [Answer(405, {"code": "http.method_not_allowed"})]
    spool = spooled(receiver, tmp_path)
    assert send_waiting(spool, receiver.url) == Sent(4, 0, 3, 0)
    assert [request.method for request in receiver.requests] == ["POST", *["PUT"] * 4]


def test_all_stay_where_the_server_does_not_answer(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [Answer(None)]
    spool = spooled(receiver, tmp_path)
    assert send_waiting(spool, receiver.url) == Sent(0, 4, 0, 3)
    assert len(receiver.requests) == 1
    assert len(spool.waiting()) == 4

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from paceline_client.sending import Sent, send_waiting
from paceline_client.spool import Address, Spool

from .conftest import Answer

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Receiver

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


def test_what_is_refused_of_them_goes_and_what_may_be_later_stays(
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

"""Limits on the size and the slowness of a body."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from app.errors import BodyTooLargeError, PacelineError
from app.web.bodies import MAX_BODY_BYTES, ArrivingBody, BodyTimeoutError, Pace

if TYPE_CHECKING:
    from starlette.types import Message


class Sender:
    """Sends pieces of a given size at given intervals, on a simulated clock."""

    def __init__(self, piece: int, every_s: float, pieces: float = math.inf) -> None:
        self.piece, self.every_s, self.pieces = piece, every_s, pieces
        self.sent = 0
        self.time_s = 0.0

    async def receive(self) -> Message:
        self.time_s += self.every_s
        self.sent += 1
        more = self.sent < self.pieces
        return {"type": "http.request", "body": bytes(self.piece), "more_body": more}

    def clock(self) -> float:
        return self.time_s


def arrive(
    sender: Sender, *, announced: int | None = None, pace: Pace | None = None
) -> PacelineError | None:
    """Read a body to its end; return the error that ended it earlier."""
    found = ArrivingBody(sender.receive, announced, pace or Pace(30.0, 1000.0), clock=sender.clock)

    async def read() -> PacelineError | None:
        try:
            while (await found.receive())["more_body"]:
                pass
        except PacelineError as error:
            return error
        return None

    return anyio.run(read)


def test_a_body_that_announces_too_much_is_refused_before_its_first_byte() -> None:
    sender = Sender(1000, 0.0)
    error = arrive(sender, announced=MAX_BODY_BYTES + 1)
    assert isinstance(error, BodyTooLargeError)
    assert sender.sent == 0


def test_a_body_that_announces_nothing_is_refused_with_the_first_byte_too_many() -> None:
    sender = Sender(64 * 1024, 0.0)
    error = arrive(sender)
    assert isinstance(error, BodyTooLargeError)
    assert sender.sent == MAX_BODY_BYTES // (64 * 1024) + 1


def test_a_body_of_just_the_limit_is_taken() -> None:
    assert arrive(Sender(MAX_BODY_BYTES, 0.0, pieces=1), announced=MAX_BODY_BYTES) is None


def test_a_body_that_drips_is_refused_when_its_time_is_up() -> None:
    # A byte every 10 s never pauses for 30 s.
    sender = Sender(1, 10.0)
    assert isinstance(arrive(sender), BodyTimeoutError)
    assert sender.sent == 4


def test_a_body_that_is_faster_than_the_lowest_rate_may_take_its_time() -> None:
    sender = Sender(10_100, 10.0, pieces=100)
    assert arrive(sender) is None
    assert sender.time_s == 1000.0


def test_a_body_slower_than_the_lowest_rate_is_refused_in_the_end() -> None:
    sender = Sender(9_000, 10.0)
    assert isinstance(arrive(sender), BodyTimeoutError)
    # A credit of 30 s, of which each piece takes 1 s.
    assert sender.sent == 30


def test_a_body_that_stops_is_refused() -> None:
    async def silence() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    body = ArrivingBody(silence, None, Pace(0.01, 1000.0))
    with pytest.raises(BodyTimeoutError):
        anyio.run(body.receive)


def test_the_time_in_which_nothing_is_read_is_not_the_senders() -> None:
    sender = Sender(1, 0.0, pieces=3)
    body = ArrivingBody(sender.receive, None, Pace(30.0, 1000.0), clock=sender.clock)

    async def read_slowly() -> None:
        while (await body.receive())["more_body"]:
            sender.time_s += 1000.0

    anyio.run(read_slowly)
    assert sender.sent == 3


def test_after_a_body_the_end_of_the_connection_may_be_waited_for() -> None:
    sender = Sender(1, 1000.0, pieces=1)
    body = ArrivingBody(sender.receive, None, Pace(math.inf, 1000.0), clock=sender.clock)

    async def read_on() -> None:
        for _ in range(3):
            await body.receive()

    anyio.run(read_on)
    assert sender.sent == 3


@pytest.mark.parametrize("waits", [0, 1, 3])
def test_a_message_comes_whole_however_often_it_is_waited_for(waits: int) -> None:
    async def receive() -> Message:
        for _ in range(waits):
            await anyio.sleep(0.001)
        return {"type": "http.request", "body": b"body", "more_body": False}

    body = ArrivingBody(receive, None, Pace(30.0, 1000.0))
    assert anyio.run(body.receive)["body"] == b"body"


def test_a_message_may_be_any_awaitable() -> None:
    async def read() -> Message:
        found: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(
            found.set_result, {"type": "http.request", "body": b"later"}
        )
        return await ArrivingBody(lambda: found, None, Pace(30.0, 1000.0)).receive()

    assert anyio.run(read)["body"] == b"later"


def test_who_waits_for_a_body_can_be_cancelled_and_what_fails_is_raised() -> None:
    ended: list[str] = []

    async def silence() -> Message:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("silence")
        raise AssertionError

    async def broken() -> Message:
        await anyio.lowlevel.checkpoint()
        raise ConnectionError

    async def cancel() -> None:
        with anyio.move_on_after(0.01) as scope:
            await ArrivingBody(silence, None, Pace(30.0, 1000.0)).receive()
        assert scope.cancelled_caught

    anyio.run(cancel)
    assert ended == ["silence"]
    with pytest.raises(ConnectionError):
        anyio.run(ArrivingBody(broken, None, Pace(30.0, 1000.0)).receive)

"""Bodies of pulses that arrive at the same time are stored in one transaction."""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event, text

from app.pulse.receive import ArrivedPulse, PulseOffError, receive_pulses, switch_pulse
from app.sessions.api.intake import BatchWriter
from app.sessions.body import Body
from tests.integration.api.pulse.sending import bodies, slow_job
from tests.support.loops import in_a_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.platform.container import Container
    from tests.integration.api.conftest import Installation


def arrived(content: bytes, job: str = "llm", attempt: int = 1) -> ArrivedPulse:
    digest = hashlib.sha256(content).digest()
    return ArrivedPulse(job, attempt, Body(content, len(content), digest, None, None), None)


def send(installation: Installation, content: bytes, job: str = "llm") -> int:
    path = f"/api/v1/jobs/{job}/attempts/1/pulse"
    return int(installation.client.post(path, content=content).status_code)


def test_fifty_take_as_many_statements_as_two(installation: Installation) -> None:
    (first, *_) = bodies(slow_job()[0])
    assert send(installation, first) == 202
    counts = []
    for number in (2, 50):
        seen: list[str] = []

        def see(*executed: object, seen: list[str] = seen) -> None:
            seen.append(str(executed[2]))

        engine = installation.container.engine
        event.listen(engine, "before_cursor_execute", see)
        wanted = receive_pulses(installation.container, [arrived(first)] * number)
        event.remove(engine, "before_cursor_execute", see)
        assert [one is not None and one.record is None for one in wanted] == [True] * number
        counts.append(len(seen))
    assert counts[0] == counts[1]
    assert installation.rows()["inbox"] == 1 + 2 + 50


def test_those_that_need_more_than_a_row_are_left_to_their_own_transaction(
    installation: Installation,
) -> None:
    (first, *_) = bodies(slow_job()[0])
    assert send(installation, first) == 202
    sent = [arrived(first), arrived(first, "new"), arrived(b""), arrived(first, attempt=2)]
    wanted = receive_pulses(installation.container, sent)
    assert [one is None for one in wanted] == [False, True, True, False]
    with installation.container.engine.connect() as connection:
        found = connection.execute(text("SELECT attempt, body FROM inbox ORDER BY id")).all()
    assert [(row.attempt, bytes(row.body)) for row in found] == [(1, first), (1, first), (2, first)]


def test_a_project_that_takes_none_refuses_all(installation: Installation) -> None:
    (first, *_) = bodies(slow_job()[0])
    assert send(installation, first) == 202
    switch_pulse(installation.container, on=False)
    with pytest.raises(PulseOffError):
        receive_pulses(installation.container, [arrived(first)] * 2)
    assert installation.rows()["inbox"] == 1


def test_those_that_come_one_after_the_other_wait_for_each_other(
    installation: Installation,
) -> None:
    stored: list[Sequence[int]] = []

    def store(container: Container, numbers: Sequence[int]) -> Sequence[int]:
        assert container is installation.container
        stored.append(numbers)
        return numbers

    together: BatchWriter[int, int] = BatchWriter(store, gather_s=0.05)

    async def send_late(number: int) -> int | None:
        await asyncio.sleep(number / 1000)
        return await together.receive(installation.container, number, size=1)

    async def run() -> list[int | None]:
        return await asyncio.gather(*(send_late(number) for number in range(5)))

    assert in_a_loop(run) == [0, 1, 2, 3, 4]
    assert stored == [[0, 1, 2, 3, 4]]


def test_where_many_come_they_wait_for_more(installation: Installation) -> None:
    stored: list[Sequence[int]] = []

    def store(_: Container, numbers: Sequence[int]) -> Sequence[int]:
        stored.append(numbers)
        return numbers

    together: BatchWriter[int, int] = BatchWriter(store, gather_s=0.01, many_gather_s=0.5)

    async def send(number: int, after_s: float) -> int | None:
        await asyncio.sleep(after_s)
        return await together.receive(installation.container, number, size=1)

    async def run() -> None:
        await send(0, 0.0)
        await asyncio.gather(*(send(number, 0.0) for number in range(1, 9)))
        await asyncio.gather(send(9, 0.0), send(10, 0.1))

    in_a_loop(run)
    assert stored == [[0], [*range(1, 9)], [9, 10]]


def test_a_transaction_has_as_many_as_it_may(installation: Installation) -> None:
    stored: list[Sequence[int]] = []

    def store(_: Container, numbers: Sequence[int]) -> Sequence[int]:
        stored.append(numbers)
        return numbers

    together: BatchWriter[int, int] = BatchWriter(store, gather_s=0.05, most=2)

    async def run() -> list[int | None]:
        sent = (together.receive(installation.container, number, size=1) for number in range(5))
        return await asyncio.gather(*sent)

    assert in_a_loop(run) == [0, 1, 2, 3, 4]
    assert stored == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("attempt", ["0", "x", "2147483648"])
def test_an_attempt_that_is_none_is_refused_as_everywhere(
    installation: Installation, attempt: str
) -> None:
    answer = installation.client.post(f"/api/v1/jobs/llm/attempts/{attempt}/pulse", content=b"{}")
    seal = f"/api/v1/jobs/llm/attempts/{attempt}/sessions/1/seal"
    other = installation.client.post(seal).json()
    assert answer.status_code == 422
    found = answer.json()
    assert {**found, "instance": ""} == {**other, "instance": ""}


def test_each_of_many_senders_is_answered_for_itself(installation: Installation) -> None:
    (first, *_) = bodies(slow_job()[0])

    def one(number: int) -> int:
        # Every fifth body is empty, and each job is new to one of the requests.
        return send(installation, b"" if number % 5 == 0 else first, f"job-{number % 3}")

    with ThreadPoolExecutor(16) as senders:
        found = list(senders.map(one, range(60)))
    assert found == [422 if number % 5 == 0 else 202 for number in range(60)]
    assert installation.rows()["inbox"] == 48

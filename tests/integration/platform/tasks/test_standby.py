"""Without a broker, or with a full one, workers take tasks from the database."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from app.platform.broker import QUEUES
from app.platform.processes import SupervisedChild
from app.run.workers import Standby
from tests.support.processes import alive, descendants, ps
from tests.support.project import build
from tests.support.sessions import count_reports, session_row, small_trace, store, task_row
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from app.platform.container import Container
    from app.platform.settings import Settings
    from tests.support.redis import RedisServer


@pytest.fixture
def with_redis(settings: Settings, redis_server: RedisServer) -> Iterator[Container]:
    built = build(settings.model_copy(update={"broker_url": redis_server.url}))
    yield built
    built.close()


def fill(server: RedisServer) -> None:
    """Make Redis refuse writes; it still answers."""
    with contextlib.closing(server.client()) as client:
        client.config_set("maxmemory", 1)


def empty(server: RedisServer) -> None:
    with contextlib.closing(server.client()) as client:
        client.config_set("maxmemory", 0)


@contextlib.contextmanager
def looked_after(container: Container) -> Iterator[Standby]:
    environment = container.settings.environment_of_child(os.environ)
    workers = [
        SupervisedChild(
            f"worker {queue} without broker",
            [sys.executable, "-m", "workers.pull", "--queue", queue, "--lifeline"],
            environment,
        )
        for queue in QUEUES
    ]
    standby = Standby(container, workers, away_s=0.5)
    standby.start()
    try:
        yield standby
    finally:
        standby.stop()


def without_broker() -> set[int]:
    """Return workers that take tasks from the database."""
    return {
        int(pid)
        for pid, *words in ps("pid", "args", of=descendants(os.getpid()))
        if "workers.pull" in words and "--parent" not in words
    }


def tended(standby: Standby, look: Callable[[], bool], what: str) -> None:
    def looked() -> bool:
        standby.tend()
        return look()

    wait_for(looked, what)


@pytest.mark.parametrize(
    ("fail", "mend"),
    [(fill, empty), (lambda server: server.stop(), lambda server: server.start())],
    ids=["full", "away"],
)
def test_analyses_go_on_without_the_broker_and_its_workers_take_over_when_it_is_back(
    with_redis: Container,
    redis_server: RedisServer,
    fail: Callable[[RedisServer], None],
    mend: Callable[[RedisServer], None],
) -> None:
    fail(redis_server)
    stored = [store(with_redis, small_trace(), job=f"llm-{number}") for number in range(2)]
    with looked_after(with_redis) as standby:
        tended(standby, lambda: count_reports(with_redis) == len(stored), "reports")
        workers = without_broker()
        assert len(workers) == len(QUEUES)
        mend(redis_server)
        tended(standby, lambda: not alive(workers), "end of the workers without broker")
    for one in stored:
        assert session_row(with_redis, one).state == "analyzed"
        assert task_row(with_redis, one).attempt == 1


def test_nothing_is_taken_while_the_broker_takes_messages(with_redis: Container) -> None:
    stored = store(with_redis, small_trace())
    with looked_after(with_redis) as standby:
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            standby.tend()
            time.sleep(0.1)
        assert without_broker() == set()
    assert session_row(with_redis, stored).state == "queued"

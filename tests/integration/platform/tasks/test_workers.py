"""Real workers on real brokers, killed in the middle of their work.

The broker loses messages and workers die, but every session is analyzed once.
"""

from __future__ import annotations

import os
import signal
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from app.installation.models import WorkerHeartbeat
from app.installation.sweep import sweep
from app.platform.broker import ANALYSIS_QUEUE, TASK_NAME, make_celery
from app.platform.settings import Settings
from tests.support.nightly import every_night
from tests.support.project import build
from tests.support.sessions import (
    count_blobs,
    count_reports,
    held_analyses,
    large_trace,
    session_row,
    small_trace,
    store,
    task_row,
)
from tests.support.waiting import wait_for
from tests.support.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.container import Container
    from tests.support.redis import RedisServer
    from tests.support.sessions import Stored


# At night every test runs on both brokers. By day only the kill of all processes during an analysis
# does.
BROKERS = ("redis", *every_night("files"))
on_both_brokers = pytest.mark.parametrize("container", ["redis", "files"], indirect=True)

ENDED = ("analyzed", "no_verdict", "discarded", "failed")


def _settings(database_url: str, tmp_path: Path, broker_url: str | None) -> Settings:
    return Settings(
        database_url=database_url,
        broker_url=broker_url,
        data_dir=tmp_path / "data",
        lease_s=4.0,
        alert_attempt_limit_s=3.0,
        lease_renew_s=0.5,
        republish_after_s=1.0,
        heartbeat_interval_s=0.2,
    )


@pytest.fixture(params=BROKERS)
def container(
    request: pytest.FixtureRequest, database_url: str, tmp_path: Path
) -> Iterator[Container]:
    broker_url = request.getfixturevalue("redis_server").url if request.param == "redis" else None
    built = build(_settings(database_url, tmp_path, broker_url))
    yield built
    built.close()


@pytest.fixture
def redis_container(
    database_url: str, tmp_path: Path, redis_server: RedisServer
) -> Iterator[Container]:
    built = build(_settings(database_url, tmp_path, redis_server.url))
    yield built
    built.close()


def _state(container: Container, stored: Stored) -> str:
    return session_row(container, stored).state


def _wait_for_state(
    container: Container, stored: Stored, *states: str, sweeping: bool = True
) -> None:
    def reached() -> bool:
        if sweeping:
            sweep(container)
        state = _state(container, stored)
        if state in ENDED and state not in states:
            reason = session_row(container, stored).reason
            raise AssertionError(f"the session is {state}: {reason}")
        return state in states

    wait_for(reached, f"session in state {' or '.join(states)}")


def _assert_analyzed_once(container: Container, *stored: Stored) -> None:
    for one in stored:
        assert _state(container, one) == "analyzed"
        assert task_row(container, one).state == "done"
    assert count_reports(container) == len(stored)
    # Trace, document and heatmaps of each session: an interrupted attempt leaves nothing.
    assert count_blobs(container) == 3 * len(stored)


def test_a_session_is_analyzed(container: Container, tmp_path: Path) -> None:
    with WorkerProcess(container, tmp_path / "log").wait_until_ready() as worker:
        stored = store(container, small_trace())
        _wait_for_state(container, stored, "analyzed", sweeping=False)
        assert worker.terminate() == 0
        assert worker.group() == []
    _assert_analyzed_once(container, stored)
    with container.uow() as tx:
        assert tx.session.execute(select(WorkerHeartbeat)).all() == []


@on_both_brokers
def test_worker_killed_in_the_middle_of_an_analysis(container: Container, tmp_path: Path) -> None:
    stored = store(container, small_trace())
    with held_analyses(container), WorkerProcess(container, tmp_path / "log") as worker:
        _wait_for_state(container, stored, "analyzing")
        worker.kill()
    assert _state(container, stored) == "analyzing"
    assert count_reports(container) == 0

    with WorkerProcess(container, tmp_path / "log"):
        _wait_for_state(container, stored, "analyzed")
    assert task_row(container, stored).attempt == 2
    _assert_analyzed_once(container, stored)


def test_killed_consumer_takes_its_analysis_with_it(container: Container, tmp_path: Path) -> None:
    stored = store(container, small_trace())
    with held_analyses(container), WorkerProcess(container, tmp_path / "log") as worker:
        _wait_for_state(container, stored, "analyzing")
        worker.kill_only_the_consumer()
        wait_for(lambda: worker.group() == [], "end of the forked process")
    assert _state(container, stored) == "analyzing"
    assert count_reports(container) == 0


def test_task_that_kills_its_worker_three_times(container: Container, tmp_path: Path) -> None:
    deadly = store(container, small_trace())
    with WorkerProcess(container, tmp_path / "log") as worker:
        with held_analyses(container):
            for attempt in (1, 2, 3):

                def running(attempt: int = attempt) -> bool:
                    sweep(container)
                    row = task_row(container, deadly)
                    return row.state == "running" and row.attempt == attempt

                wait_for(running, f"attempt {attempt}")
                for pid in worker.forked():
                    os.kill(pid, signal.SIGKILL)
        harmless = store(container, small_trace())
        _wait_for_state(container, harmless, "analyzed")
        _wait_for_state(container, deadly, "failed")
        assert worker.terminate() == 0
    row = session_row(container, deadly)
    assert row.reason_code == "task.worker_killed"
    assert row.reason is not None
    assert "3 attempts" in row.reason
    assert task_row(container, deadly).state == "dead"
    assert sweep(container).republished == 0
    _assert_only_trace_left(container)
    assert count_reports(container) == 1


def _assert_only_trace_left(container: Container) -> None:
    # The deadly session keeps its trace; the harmless one has three blobs.
    assert count_blobs(container) == 1 + 3


def test_lost_message_is_found_by_the_sweeper(
    redis_container: Container, tmp_path: Path, redis_server: RedisServer
) -> None:
    stored = store(redis_container, small_trace())
    with redis_server.client() as client:
        wait_for(lambda: client.llen(ANALYSIS_QUEUE), "message")
        client.flushall()
    with WorkerProcess(redis_container, tmp_path / "log").wait_until_ready():
        assert _state(redis_container, stored) == "queued"
        _wait_for_state(redis_container, stored, "analyzed")
    _assert_analyzed_once(redis_container, stored)


def test_message_that_comes_twice_gives_one_result(container: Container, tmp_path: Path) -> None:
    stored = store(container, small_trace())
    with make_celery(container.settings) as celery:
        for _ in range(3):
            celery.send_task(
                TASK_NAME, args=[str(stored.run)], exchange="", routing_key=ANALYSIS_QUEUE
            )
    with WorkerProcess(container, tmp_path / "log"):
        _wait_for_state(container, stored, "analyzed", sweeping=False)
        last = store(container, small_trace())
        _wait_for_state(container, last, "analyzed", sweeping=False)
    assert task_row(container, stored).attempt == 1
    _assert_analyzed_once(container, stored, last)


def test_redis_down_while_receiving(
    redis_container: Container, tmp_path: Path, redis_server: RedisServer
) -> None:
    redis_server.stop()
    stored = store(redis_container, small_trace())
    assert _state(redis_container, stored) == "queued"
    wait_for(lambda: not redis_container.dispatcher.healthy, "failed publish")

    with WorkerProcess(redis_container, tmp_path / "log"):
        redis_server.start()
        _wait_for_state(redis_container, stored, "analyzed")
    assert redis_container.dispatcher.healthy
    _assert_analyzed_once(redis_container, stored)


def test_redis_restarted_during_an_analysis(
    redis_container: Container, tmp_path: Path, redis_server: RedisServer
) -> None:
    with WorkerProcess(redis_container, tmp_path / "log"):
        first = store(redis_container, small_trace())
        with held_analyses(redis_container):
            _wait_for_state(redis_container, first, "analyzing")
            redis_server.stop()
        _wait_for_state(redis_container, first, "analyzed")
        second = store(redis_container, small_trace())
        redis_server.start()
        _wait_for_state(redis_container, second, "analyzed")
    _assert_analyzed_once(redis_container, first, second)


def test_sigterm_gives_the_lease_back(container: Container, tmp_path: Path) -> None:
    # A computing worker, which handles signals between two byte codes only.
    stored = store(container, large_trace())
    with WorkerProcess(container, tmp_path / "log") as worker:
        _wait_for_state(container, stored, "analyzing")
        assert worker.terminate() == 0
        assert worker.group() == []
    _assert_lease_given_back(container, stored, tmp_path)


def test_sigterm_to_every_process_gives_the_lease_back(
    container: Container, tmp_path: Path
) -> None:
    stored = store(container, small_trace())
    with held_analyses(container), WorkerProcess(container, tmp_path / "log") as worker:
        _wait_for_state(container, stored, "analyzing")
        for pid in worker.forked():
            os.kill(pid, signal.SIGTERM)
        assert worker.terminate() == 0
        assert worker.group() == []
    _assert_lease_given_back(container, stored, tmp_path)


def _assert_lease_given_back(container: Container, stored: Stored, tmp_path: Path) -> None:
    row = task_row(container, stored)
    assert (row.state, row.attempt, row.lease_until) == ("queued", 0, None)
    assert _state(container, stored) == "queued"
    assert count_reports(container) == 0

    with WorkerProcess(container, tmp_path / "log"):
        _wait_for_state(container, stored, "analyzed")
    assert task_row(container, stored).attempt == 1
    _assert_analyzed_once(container, stored)


def test_analysis_over_its_time_limit_fails_with_the_reason(
    database_url: str, tmp_path: Path
) -> None:
    # Far longer than the small analysis afterwards takes on a loaded machine.
    settings = _settings(database_url, tmp_path, None).model_copy(
        update={"analysis_time_limit_s": 4, "lease_s": 60.0}
    )
    container = build(settings)
    log = tmp_path / "log"
    stored = store(container, small_trace())
    with WorkerProcess(container, log) as worker:
        with held_analyses(container):
            _wait_for_state(container, stored, "analyzing")
            wait_for(lambda: "time limit" in log.read_text(), "time limit")
            _wait_for_state(container, stored, "failed")
        small = store(container, small_trace())
        _wait_for_state(container, small, "analyzed")
        assert worker.terminate() == 0
    row = session_row(container, stored)
    assert row.reason_code == "task.time_limit"
    assert task_row(container, stored).state == "dead"
    container.close()


def test_lease_is_renewed_while_an_analysis_takes_longer(
    container: Container, tmp_path: Path
) -> None:
    stored = store(container, small_trace())
    with WorkerProcess(container, tmp_path / "log"):
        with held_analyses(container):
            _wait_for_state(container, stored, "analyzing")
            first = task_row(container, stored).lease_until
            assert first is not None

            def over() -> bool:
                sweep(container)
                with container.uow() as tx:
                    return tx.now > first

            wait_for(over, "end of the first lease")
            row = task_row(container, stored)
            assert (row.state, row.attempt) == ("running", 1)
            assert row.lease_until is not None
            assert row.lease_until > first
        _wait_for_state(container, stored, "analyzed")
    assert task_row(container, stored).attempt == 1
    _assert_analyzed_once(container, stored)


def test_worker_that_stopped_answering_stores_nothing(container: Container, tmp_path: Path) -> None:
    stored = store(container, small_trace())
    with WorkerProcess(container, tmp_path / "first") as stuck:
        with held_analyses(container):
            _wait_for_state(container, stored, "analyzing")
            frozen = stuck.group()
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
        with WorkerProcess(container, tmp_path / "second"):
            _wait_for_state(container, stored, "analyzed")
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
            # The worker that was stuck takes new work after it failed to store its result.
            later = store(container, small_trace())
            _wait_for_state(container, later, "analyzed")
        log = tmp_path / "first"
        wait_for(lambda: "nothing stored" in log.read_text(), "refused result")
    assert task_row(container, stored).attempt == 2
    _assert_analyzed_once(container, stored, later)


def test_io_worker_starts_and_stops(container: Container, tmp_path: Path) -> None:
    with WorkerProcess(container, tmp_path / "log", "io").wait_until_ready() as worker:
        assert worker.terminate() == 0
        assert worker.group() == []


def test_unknown_run_is_ignored(container: Container, tmp_path: Path) -> None:
    with make_celery(container.settings) as celery:
        celery.send_task(
            TASK_NAME, args=[str(uuid.uuid4())], exchange="", routing_key=ANALYSIS_QUEUE
        )
    with WorkerProcess(container, tmp_path / "log"):
        stored = store(container, small_trace())
        _wait_for_state(container, stored, "analyzed", sweeping=False)

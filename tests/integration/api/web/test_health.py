"""The readiness of the server and of its parts."""

from __future__ import annotations

import re
import shutil
import socket
import uuid
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from sqlalchemy import text

from app.platform.database import migrate
from app.platform.settings import Settings
from tests.integration.api.chunks import put
from tests.integration.api.outage import away
from tests.support.migrations import LATER, with_later_revision
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.integration.api.conftest import Install, Installation
    from tests.support.redis import RedisServer


@pytest.fixture(autouse=True)
def _asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the cache of answers of `/readyz`."""
    monkeypatch.setattr("app.installation.health.READY_FOR_S", 0.0)


def add_worker(installation: Installation, queue: str, *, seen_s_ago: float = 0) -> None:
    """Write the heartbeat of a worker that takes messages from a queue."""
    with installation.container.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO worker_heartbeat (id, host, pid, queues, seen_at)"
                " VALUES (:id, 'node-1', 7, :queue, now() - make_interval(secs => :ago))"
            ),
            {"id": uuid.uuid4(), "queue": queue, "ago": seen_s_ago},
        )


def become_ready(installation: Installation) -> httpx.Response:
    """Wait until the server is ready: on a busy machine some parts may be late."""

    def ready() -> list[httpx.Response]:
        answer = installation.client.get("/readyz")
        return [answer] if answer.is_success else []

    [answer] = wait_for(ready, "readiness")
    return answer


def not_ready(installation: Installation, *, hanging: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check that the server is not ready; return the parts that are not.

    On a busy machine a part may answer late, so the check is repeated unless a part hangs.
    """

    def parts() -> dict[str, Any]:
        answer = installation.client.get("/readyz")
        assert answer.status_code == 503
        body = answer.json()
        assert not body["ready"]
        found = {name: part["detail"] for name, part in body["parts"].items() if not part["ready"]}
        late = {name for name, detail in found.items() if detail.startswith("no answer within")}
        return {} if late - set(hanging) else found

    return wait_for(parts, "answer of every part")


def test_a_server_with_all_its_parts_is_ready(installation: Installation) -> None:
    add_worker(installation, "analysis")
    add_worker(installation, "io")
    answer = become_ready(installation)
    assert answer.json()["ready"]
    assert answer.json()["parts"].keys() == {"database", "schema", "broker", "workers"}


def test_without_a_worker_it_is_not_ready(installation: Installation) -> None:
    assert not_ready(installation).keys() == {"workers"}


def test_a_worker_that_takes_no_analyses_is_not_enough(installation: Installation) -> None:
    add_worker(installation, "io")
    assert not_ready(installation).keys() == {"workers"}


def test_a_worker_that_fell_silent_does_not_count(installation: Installation) -> None:
    add_worker(installation, "analysis", seen_s_ago=600)
    assert not_ready(installation).keys() == {"workers"}
    assert installation.metric("paceline_database_up") == 1


def add_task(installation: Installation, kind: str, state: str, *, s_ago: float) -> None:
    """Write a task that was queued, and ended if its state says so, some time ago."""
    with installation.container.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO task_run"
                " (id, project_id, kind, subject_id, state, attempt, created_at, finished_at)"
                " VALUES (:id, 1, :kind, :id, :state, 1,"
                " now() - make_interval(secs => :ago), CASE :state WHEN 'queued' THEN NULL"
                " ELSE now() - make_interval(secs => :ago) END)"
            ),
            {"id": uuid.uuid4(), "kind": kind, "state": state, "ago": s_ago},
        )


def test_a_queue_that_does_not_move_is_not_ready(installation: Installation) -> None:
    add_worker(installation, "analysis")
    limit_s = installation.container.settings.analysis_time_limit_s
    add_task(installation, "analyze_session", "queued", s_ago=limit_s - 60)
    become_ready(installation)
    add_task(installation, "analyze_session", "queued", s_ago=limit_s + 60)
    add_task(installation, "analyze_session", "done", s_ago=limit_s + 60)
    # Another queue moves.
    add_task(installation, "deliver_alert", "done", s_ago=1)
    assert not_ready(installation) == {
        "workers": "no task of the queue analysis has ended for 900 s, and 1 wait"
    }
    add_task(installation, "read_hang", "dead", s_ago=1)
    become_ready(installation)


def test_an_inbox_that_does_not_move_is_not_ready(installation: Installation) -> None:
    add_worker(installation, "analysis")
    for producer in ("0", "1"):
        assert put(installation, producer).is_success
    become_ready(installation)
    with installation.container.engine.begin() as connection:
        connection.execute(text("UPDATE inbox SET received_at = now() - interval '1000 s'"))
    assert re.fullmatch(
        r"the oldest item of the inbox waits for 100\d s", not_ready(installation)["workers"]
    )


def test_the_schema_of_a_later_version_is_ready(installation: Installation) -> None:
    add_worker(installation, "analysis")
    with installation.container.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    become_ready(installation)
    parts = installation.client.get("/readyz").json()["parts"]
    assert parts["schema"]["detail"] == "revision 9999, of a later version"


def test_an_earlier_schema_is_not_ready_and_says_what_to_do(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_worker(installation, "analysis")
    migrations = with_later_revision(tmp_path)
    monkeypatch.setattr(migrate, "files", lambda _: migrations)
    parts = not_ready(installation)
    assert parts.keys() == {"schema"}
    assert "paceline migrate" in parts["schema"]
    assert LATER in parts["schema"]


def test_a_database_without_tables_is_not_ready(install: Install, empty_database_url: str) -> None:
    with install(database_url=empty_database_url) as installation:
        assert not_ready(installation).keys() == {"schema", "workers"}


def test_a_database_that_is_away_is_not_ready_and_comes_back(installation: Installation) -> None:
    add_worker(installation, "analysis")
    with away(installation.container.engine):
        # Without the driver's message, which names hosts, ports and accounts.
        assert not_ready(installation) == {"database": "does not answer; the log says why"}
    become_ready(installation)


def test_a_directory_of_messages_that_is_gone_is_not_ready(installation: Installation) -> None:
    add_worker(installation, "analysis")
    shutil.rmtree(installation.container.settings.data_dir / "broker")
    assert not_ready(installation).keys() == {"broker"}


def test_a_redis_that_is_away_is_not_ready_and_comes_back(
    install: Install, redis_server: RedisServer
) -> None:
    with install(broker_url=redis_server.url) as installation:
        add_worker(installation, "analysis")
        become_ready(installation)
        redis_server.stop()
        assert not_ready(installation).keys() == {"broker"}
        redis_server.start()
        become_ready(installation)


def test_a_redis_that_takes_no_more_is_not_ready(
    install: Install, redis_server: RedisServer
) -> None:
    with install(broker_url=redis_server.url) as installation:
        add_worker(installation, "analysis")
        become_ready(installation)
        redis = Redis.from_url(redis_server.url.replace("redis+socket", "unix"))
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", "1")
        assert redis.ping()
        assert not_ready(installation) == {"broker": "takes no writes; the log says why"}
        redis.config_set("maxmemory", "0")
        become_ready(installation)


def test_a_redis_that_hangs_is_named_within_the_budget(install: Install) -> None:
    # The server accepts connections, but never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with install(broker_url=url) as installation:
            add_worker(installation, "analysis")
            for _ in range(3):
                parts = not_ready(installation, hanging=("broker",))
                assert parts["broker"] == "no answer within 0.8 s"


def test_being_alive_needs_nothing(installation: Installation) -> None:
    with away(installation.container.engine):
        health = installation.client.get("/healthz").json()
    assert health == {
        "status": "ok",
        "instance": installation.container.settings.instance_name,
        "version": version("paceline"),
    }


def test_two_processes_have_two_names(install: Install) -> None:
    assert Settings().instance_name != Settings().instance_name
    with install(instance_name="left") as left, install(instance_name="right") as right:
        names = [each.client.get("/healthz").json()["instance"] for each in (left, right)]
    assert names == ["left", "right"]

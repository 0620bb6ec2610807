from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from workers.health import missing_queues

if TYPE_CHECKING:
    from app.platform.container import Container

HOST = socket.gethostname()


def beat(container: Container, queue: str, *, host: str = HOST, age_s: float = 0) -> None:
    with container.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO worker_heartbeat (id, host, pid, queues, seen_at) "
                "VALUES (:id, :host, 1, :queue, now() - make_interval(secs => :age_s))"
            ),
            {"id": uuid.uuid4(), "host": host, "queue": queue, "age_s": age_s},
        )


def test_a_host_is_healthy_while_each_queue_has_a_living_worker(container: Container) -> None:
    assert missing_queues(container.engine, container.settings, HOST) == {"analysis", "io"}
    beat(container, "analysis")
    assert missing_queues(container.engine, container.settings, HOST) == {"io"}
    beat(container, "io")
    assert missing_queues(container.engine, container.settings, HOST) == set()


def test_workers_of_other_hosts_and_silent_ones_do_not_count(container: Container) -> None:
    beat(container, "analysis", host="elsewhere")
    beat(container, "io", age_s=3600)

    assert missing_queues(container.engine, container.settings, HOST) == {"analysis", "io"}


@pytest.mark.parametrize("healthy", [True, False])
def test_the_command_that_the_container_runs_says_so_by_its_status(
    container: Container, *, healthy: bool
) -> None:
    beat(container, "analysis")
    if healthy:
        beat(container, "io")

    checked = subprocess.run(
        [sys.executable, "-m", "workers.health"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | container.settings.environment(),
    )

    assert checked.returncode == (0 if healthy else 1), checked.stderr
    assert ("queue io" in checked.stderr) is not healthy

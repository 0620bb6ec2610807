"""Disasters that happen to an installation while sessions are sent to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Final

from tests.chaos.installation import AWAY_S, LEASE_S

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from tests.chaos.installation import Installed, Process

HALF_OPEN: Final = 50


def kill_server(installed: Installed, _draw: random.Random) -> None:
    """Kill the first API process; the others follow it."""
    installed.server.kill()
    installed.server.start()


def stop_server(installed: Installed, _draw: random.Random) -> None:
    """Stop the server as a deployment does."""
    installed.server.stop()
    installed.server.start()


def kill_server_process(installed: Installed, draw: random.Random) -> None:
    """Kill one of the further API processes."""
    _signal_one(installed.server, draw, signal.SIGKILL)


def kill_workers(installed: Installed, _draw: random.Random) -> None:
    """Kill the workers' supervisor; they follow it."""
    installed.workers.kill()
    installed.workers.start()


def stop_workers(installed: Installed, _draw: random.Random) -> None:
    """Stop the workers as a deployment does."""
    installed.workers.stop()
    installed.workers.start()


def kill_worker(installed: Installed, draw: random.Random) -> None:
    """Kill a random worker or child of one."""
    _signal_one(installed.workers, draw, signal.SIGKILL)


def pause_worker(installed: Installed, draw: random.Random) -> None:
    """Pause a worker or a child of one for longer than a lease, and continue it."""
    pid = _signal_one(installed.workers, draw, signal.SIGSTOP)
    if pid is not None:
        time.sleep(LEASE_S + 1.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def crash_database(installed: Installed, _draw: random.Random) -> None:
    """Crash PostgreSQL."""
    installed.crash_postgres()


def lose_redis(installed: Installed, _draw: random.Random) -> None:
    """Stop Redis; it comes back empty."""
    installed.redis.stop()
    time.sleep(AWAY_S)
    installed.redis.start()


def empty_redis(installed: Installed, _draw: random.Random) -> None:
    """Delete all data of Redis."""
    with contextlib.closing(installed.redis.client()) as client:
        client.flushall()


def fill_redis(installed: Installed, _draw: random.Random) -> None:
    """Make Redis refuse every write for a while, as if it was out of memory."""
    with contextlib.closing(installed.redis.client()) as client:
        client.config_set("maxmemory", 1)
        time.sleep(2 * AWAY_S)
        client.config_set("maxmemory", 0)


def half_open_clients(installed: Installed, _draw: random.Random) -> None:
    """Open many connections that begin a body and then send nothing."""
    with contextlib.ExitStack() as opened:
        for number in range(HALF_OPEN):
            with contextlib.suppress(OSError):
                line = socket.create_connection(("127.0.0.1", installed.port), timeout=5)
                opened.callback(line.close)
                line.sendall(
                    b"PUT /api/v1/jobs/job/attempts/1/sessions/1/chunks/half/%d HTTP/1.1\r\n"
                    b"Host: 127.0.0.1\r\nContent-Length: 5000\r\n\r\nhalf" % number
                )
        time.sleep(AWAY_S)


def _signal_one(process: Process, draw: random.Random, signum: int) -> int | None:
    """Send a signal to one of the processes below another, and return which."""
    children = process.children()
    if not children:
        return None
    pid = draw.choice(children)
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return None
    return pid


# Another disaster needs one more line here.
DISASTERS: Final[Mapping[str, Callable[[Installed, random.Random], None]]] = {
    disaster.__name__.replace("_", " "): disaster
    for disaster in (
        kill_server,
        kill_worker,
        crash_database,
        lose_redis,
        kill_server_process,
        pause_worker,
        fill_redis,
        kill_workers,
        half_open_clients,
        stop_server,
        empty_redis,
        stop_workers,
    )
}

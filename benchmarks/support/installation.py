"""An installation in separate processes, and connections to it, for load tests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_START_S: Final = 300.0
_READY: Final = "Paceline is ready: "
# Share of a processor that an idle installation uses.
_IDLE: Final = 0.15
_SETTLING_S: Final = 2.0
_READY_STATUS: Final = 200
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Installation:
    """An installation: its address, its first process, and its data directory."""

    address: str
    pid: int
    data_dir: Path


async def settled(address: str, pid: int) -> None:
    """Wait until the workers have started, so that their start does not count as load."""
    line = Line(address)
    until_s = time.monotonic() + _START_S
    idle = False
    while not idle and time.monotonic() < until_s:
        before_s, began_s = processor_s(pid), time.monotonic()
        await asyncio.sleep(_SETTLING_S)
        status, _, _ = await line.ask("GET", "/readyz")
        used_s = processor_s(pid) - before_s
        idle = status == _READY_STATUS and used_s < _IDLE * (time.monotonic() - began_s)
    line.close()


class Line:
    """A connection that is reopened if the server closed it; sends one request at a time."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        """Close the connection if it is open."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, float, bytes]:
        """Send a request; return status, requested delay in seconds, and content of the answer."""
        while True:
            try:
                return await self._ask(method, path, body)
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                await asyncio.sleep(0.05)

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[int, float, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        if "content-length" in headers:
            content = await reader.readexactly(int(headers["content-length"]))
        else:
            content = b""
            while size := int((await reader.readline()).strip() or b"0", 16):
                content += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readline()
        if headers.get("connection") == "close":
            self.close()
        return status, float(headers.get("retry-after", 0.0)), content


@contextmanager
def serving(tree: Path, extra: tuple[str, ...]) -> Iterator[Installation]:
    """Run an installation of a checkout while the context is open."""
    with tempfile.TemporaryDirectory(prefix="paceline-load-") as name:
        Path(name).chmod(0o711)
        environment = os.environ | {
            "PACELINE_DATA_DIR": f"{name}/data",
            "PACELINE_PORT": "0",
            "PACELINE_LOG_LEVEL": "warning",
            "PYTHONPATH": f"{tree}:{tree / 'client' / 'src'}",
        }
        command = [sys.executable, "-c", "from app.cli.main import main; main()", "serve", *extra]
        log = Path(name) / "log"
        with (
            log.open("wb") as output,
            subprocess.Popen(  # noqa: S603 - a checkout that a person named
                command, cwd=tree, env=environment, stdout=output, stderr=output
            ) as server,
        ):
            try:
                yield Installation(_address_in(log), server.pid, Path(name) / "data")
            except BaseException:
                sys.stderr.write(log.read_text()[-4000:])
                raise
            finally:
                server.send_signal(signal.SIGTERM)
                try:
                    server.wait(30)
                except subprocess.TimeoutExpired:
                    server.kill()


def _address_in(log: Path) -> str:
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s:
        said = log.read_text()
        if _READY in said:
            return said.split(_READY, 1)[1].split()[0].rstrip("/")
        time.sleep(0.1)
    raise SystemExit("the server did not start")


def processor_s(pid: int) -> float:
    """Return the processor time of a process and its descendants, including ended ones, s."""
    return sum(processors(pid).values())


def processors(pid: int) -> dict[str, float]:
    """Return the processor time of requests, of the database, and of each worker by its name."""
    parents: dict[int, int] = {}
    times: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        times[int(entry.name)] = sum(map(int, fields[11:15]))
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    seconds: dict[str, float] = {}
    for process in family:
        name = _part(process, pid)
        seconds[name] = seconds.get(name, 0.0) + times.get(process, 0) / _TICKS
    return seconds


def _part(process: int, first: int) -> str:
    """Return the part of an installation to which a process belongs."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return "other"
    if "postgres" in words:
        return "database"
    if "workers.inbox" in words:
        return "pulse worker" if "--queue pulse" in words or "--queue=pulse" in words else "inbox"
    if "workers." in words or "celery" in words:
        return "workers"
    return "requests" if process == first or " serve" in words else "other"

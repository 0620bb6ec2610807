"""Times to receive sessions over HTTP, against storing the same bytes unread."""

from __future__ import annotations

import contextlib
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.access.models import DEFAULT_PROJECT_ID
from app.analysis.trace.decode import decode
from app.analysis.trace.encode import to_ndjson_gz
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import Sizes
from app.bootstrap import build
from app.platform.blobs import PART_BYTES, write_blob
from app.platform.database import migrate
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.logs import configure_logging
from app.platform.resources import answering
from app.platform.settings import Settings
from app.run.application import create_app
from app.run.http import HttpServer, address_of, listen
from app.web.bodies import arriving
from benchmarks.support.measuring import Pairs, time_pairs
from benchmarks.traces import BenchTrace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from app.platform.container import Container

_PAIRS: Final = 9
_AT_LEAST_S: Final = 3.0
_MB: Final = 1e6
_RAW_PATH: Final = "/bench/raw"


@dataclass(frozen=True, slots=True)
class IngestFigures:
    """Times of one body, from a single sender."""

    name: str
    body_bytes: int
    operations: int
    times: Pairs

    def line(self) -> str:
        """Return the figures as a line of text."""
        ours_s, raw_s = map(statistics.median, (self.times.ours_s, self.times.base_s))
        low, high = self.times.spread
        return (
            f"{self.name:<28} {self.body_bytes / _MB:>6.1f} MB, {self.operations:>9,} operations: "
            f"session {self.body_bytes / _MB / ours_s:.1f} MB/s "
            f"({self.operations / ours_s / 1e6:.2f} M operations/s), "
            f"unseen {self.body_bytes / _MB / raw_s:.1f} MB/s, "
            f"{100 / self.times.ratio:.0f} % of it (quartiles {100 / high:.0f} to {100 / low:.0f})"
        )


def measure_ingest(traces: Sequence[BenchTrace]) -> Iterator[str]:
    """Yield a line for each measured body."""
    with _server() as address, contextlib.closing(_Sender(address)) as sender:
        for trace in traces:
            body = trace.path.read_bytes()
            times = _measure(sender, body, "application/vnd.apache.parquet", trace.meta.sizes)
            figures = IngestFigures(f"{trace.name}, Parquet", len(body), trace.operations, times)
            yield figures.line()
        text = traces[0]
        body = to_ndjson_gz(decode(text.path, text.meta, limits=Limits()).trace)
        times = _measure(sender, body, "application/x-ndjson", text.meta.sizes)
        yield IngestFigures(f"{text.name}, NDJSON gzip", len(body), text.operations, times).line()


def _measure(sender: _Sender, body: bytes, content_type: str, sizes: Sizes) -> Pairs:
    shape = {
        "world": sizes.world,
        "dp": sizes.dp,
        "pp": sizes.pp,
        "tp": sizes.tp,
        "cp": sizes.cp,
    }

    def session(_: int) -> None:
        # A separate run for each pair: the server would recognize a repeated session and not store
        # it.
        sender.number += 1
        query = urlencode(shape | {"run_id": f"run-{sender.number}"})
        sender.post(f"/api/v1/jobs/bench/sessions?{query}", body, content_type)

    def raw(_: int) -> None:
        sender.post(_RAW_PATH, body, "application/octet-stream")

    return time_pairs(session, raw, pairs=_PAIRS, at_least_s=_AT_LEAST_S)


class _Sender:
    """A connection that sends one request after the other."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(str(urlsplit(address).netloc), timeout=120)
        self.number = 0

    def close(self) -> None:
        self._connection.close()

    def post(self, path: str, body: bytes, content_type: str) -> None:
        self._connection.request("POST", path, body, {"Content-Type": content_type})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.client.ACCEPTED:
            message = f"{path} answered {response.status}: {answer[:500]!r}"
            raise RuntimeError(message)


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """Run PostgreSQL, durable as in production, and the server in front of it."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name:
        directory = Path(name)
        # PostgreSQL does not run as root, so its account must be able to enter the directory.
        directory.chmod(0o711)
        data_dir = directory / "data"
        with EmbeddedPostgres(data_dir) as postgres:
            migrate.upgrade(postgres.url)
            environment = os.environ | {
                "PACELINE_DATABASE_URL": postgres.url,
                "PACELINE_DATA_DIR": str(data_dir),
                "PACELINE_PORT": "0",
                "PACELINE_LOG_LEVEL": "warning",
            }
            with subprocess.Popen(
                [sys.executable, "-m", "benchmarks.ingest"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as server:
                assert server.stdin is not None  # noqa: S101 - piped above
                assert server.stdout is not None  # noqa: S101 - piped above
                try:
                    address = server.stdout.readline().strip()
                    if not address:
                        raise RuntimeError("the server did not start; its message is above")
                    yield address
                finally:
                    server.stdin.close()
                    try:
                        server.wait(30)
                    except subprocess.TimeoutExpired:
                        server.kill()


RAW_PATH: Final = "/bench/raw"


def raw_route(container: Container) -> Route:
    """Return a route that only stores a body: streamed to disk, then into the database."""

    def store(file: IO[bytes]) -> str:
        with container.within(DEFAULT_PROJECT_ID).uow() as tx:
            return str(write_blob(tx, _pieces(file)))

    async def post_raw(request: Request) -> Response:
        arriving(request).limit = container.settings.max_body_bytes
        with tempfile.TemporaryFile(dir=container.settings.data_dir, buffering=0) as file:
            pending = bytearray()
            async for chunk in request.stream():
                pending += chunk
                if len(pending) >= PART_BYTES:
                    await anyio.to_thread.run_sync(file.write, bytes(pending))
                    pending.clear()
            await anyio.to_thread.run_sync(file.write, bytes(pending))
            blob = await anyio.to_thread.run_sync(store, file)
        return JSONResponse({"blob": blob}, status_code=202)

    return Route(RAW_PATH, post_raw, methods=["POST"])


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(PART_BYTES):
        yield piece


def main() -> None:
    """Serve with the settings of the environment."""
    settings = Settings()
    configure_logging(json=settings.log_json, level=settings.log_level)
    container = build(settings, application_name="paceline bench")
    app = create_app(container)
    # Inserted first, because a route of a page or a mount may match every path.
    app.router.routes.insert(0, raw_route(container))
    listener = listen(settings)
    server = HttpServer(app, listener)
    server.start(lambda: False)
    # Set as in `paceline serve`.
    answering()
    print(address_of(listener), flush=True)
    sys.stdin.read()
    server.stop()
    container.close()


if __name__ == "__main__":
    main()

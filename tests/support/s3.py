"""An S3 server for the tests, and a proxy in front of it that interrupts and delays."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

import obstore
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from app.platform.settings import Settings

if TYPE_CHECKING:
    from types import TracebackType

BUCKET = "paceline-tests"
PREFIX = "some/where"
CREDENTIALS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}


class S3Server:
    """moto's server with an empty bucket, in memory: a stop loses all objects."""

    def __enter__(self) -> Self:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, self.port = self._server.get_host_and_port()
        self.url = f"http://{host}:{self.port}"
        # moto's objects belong to the process and are shared by all of its servers.
        self._ask("POST", "/moto-api/reset")
        self._ask("PUT", f"/{BUCKET}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.stop()

    def _ask(self, method: str, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            signed = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request"
            connection.request(method, path, headers={"Authorization": signed})
            assert connection.getresponse().status == HTTPStatus.OK
        finally:
            connection.close()

    def store(self) -> S3Store:
        """Return a client that bypasses the proxy."""
        return S3Store(
            BUCKET, prefix=PREFIX, endpoint=self.url, client_options={"allow_http": True},
            access_key_id=CREDENTIALS["access_key_id"],
            secret_access_key=CREDENTIALS["secret_access_key"], region=CREDENTIALS["region"],
        )  # fmt: skip

    def objects(self) -> dict[str, int]:
        """Return the keys below the prefix with their sizes."""
        return {
            found["path"]: found["size"] for page in obstore.list(self.store()) for found in page
        }


def with_store(settings: Settings, endpoint: str, **changed: Any) -> Settings:  # noqa: ANN401
    """Return settings with an object store at an endpoint that takes all blobs."""
    values: dict[str, Any] = {
        **settings.model_dump(),
        "blob_url": f"s3://{BUCKET}/{PREFIX}",
        "blob_endpoint": endpoint,
        "blob_region": CREDENTIALS["region"],
        "blob_access_key_id": CREDENTIALS["access_key_id"],
        "blob_secret_access_key": CREDENTIALS["secret_access_key"],
        "blob_min_bytes": 0,
        **changed,
    }
    return Settings(**values)


class Proxy:
    """Forwards bytes to a port, unless a test blocks or breaks the connections.

    Attributes
    ----------
    refuse : bool
        End new connections at once, and open ones too.
    hold : Event
        While it is not set, no bytes are forwarded to the server.
    seen : Event
        Set once `notice` was forwarded to the server, or held back.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.refuse = False
        self.hold = threading.Event()
        self.hold.set()
        self.notice: bytes | None = None
        self.seen = threading.Event()
        # After this number of further bytes towards the server, every connection breaks once.
        self.break_after: int | None = None
        self.broken = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hold.set()
        # Wakes the accepting thread.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.break_all()

    def break_all(self) -> None:
        """End every open connection."""
        with self._lock:
            sockets, self._open = self._open, set()
        for one in sockets:
            _end(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self.refuse:
                    _end(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._open |= {client, server}
                for source, sink, up in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._hand_on, args=(source, sink), kwargs={"up": up}, daemon=True
                    ).start()

    def _hand_on(self, source: socket.socket, sink: socket.socket, *, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if up:
                    if self.notice is not None and self.notice in data:
                        self.seen.set()
                    self.hold.wait()
                    if self.refuse or self._breaks(len(data)):
                        break
                sink.sendall(data)
        for one in (source, sink):
            with self._lock:
                self._open.discard(one)
            _end(one)

    def _breaks(self, size: int) -> bool:
        with self._lock:
            if self.break_after is None:
                return False
            self.break_after -= size
            if self.break_after > 0:
                return False
            self.break_after = None
            self.broken += 1
            return True


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()

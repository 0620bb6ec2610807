"""Requests to the outside: guarded, without redirects or proxies, and over within one deadline.

`httpcore` is what httpx sends with; used directly, because it lets us open the connections. It
knows no proxies from the environment and follows no redirects. Its own timeouts count for each
read, so that a receiver which sends a byte now and then could hold an attempt for hours: here every
read and write gets only what is left of the whole attempt.
"""

from __future__ import annotations

import email.utils
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpcore

from app.alerts.addresses import AddressGuard
from app.alerts.delivery import DeliveryError, ReceiverAnswer, excerpt
from app.system.telemetry.spans import TRACEPARENT, Role, current, span

# No service needs more to say how it went.
MAX_ANSWER_BYTES: Final = 64 * 1024

USER_AGENT: Final = "Paceline-Alerts/1"

# A receiver that asks for more has not understood; the day of a delivery would be over.
MAX_RETRY_AFTER_S: Final = 6 * 3600.0

SCHEMES: Final = ("http", "https")

GONE: Final = 410
TOO_MANY_REQUESTS: Final = 429
REQUEST_TIMEOUT: Final = 408
BAD_REQUEST: Final = 400


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of HTTP; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def answer(self) -> ReceiverAnswer:
        """Return it as it is kept."""
        return ReceiverAnswer(self.status, excerpt(self.body))


class Outbound:
    """The way out of one attempt: a context manager, new for each.

    Several requests to one host share a connection.

    Parameters
    ----------
    guard : AddressGuard
    limit_s : float
        For everything: looking up names, connecting, sending, reading.
    tls : ssl.SSLContext or None
        None: the system's authorities.
    """

    def __init__(
        self, guard: AddressGuard, limit_s: float, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.guard = guard
        self.limit_s = limit_s
        self.tls = tls or ssl.create_default_context()
        self._started_s = time.monotonic()
        self._pool = httpcore.ConnectionPool(
            ssl_context=self.tls, max_connections=1, network_backend=_Backend(self)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.close()

    def left_s(self) -> float:
        """Return what is left of the time.

        Raises
        ------
        DeliveryError
            If nothing is.
        """
        left_s = self._started_s + self.limit_s - time.monotonic()
        if left_s <= 0:
            raise _too_slow(self.limit_s)
        return left_s

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a connection to an address of `host` that may be talked to.

        Raises
        ------
        DeliveryError
        """
        failure: OSError | None = None
        for address in self.guard.addresses(host, port, self.left_s()):
            try:
                return socket.create_connection((address, port), self.left_s())
            except TimeoutError as error:
                raise _too_slow(self.limit_s) from error
            except OSError as error:
                failure = error
        raise DeliveryError("connection.failed", f"{host} is not reachable: {failure}")

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send a body, whatever its answer is; see `request`."""
        return self.request("POST", url, body, headers)

    def request(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        """Send a request, whatever its answer is; `check` tells good answers from bad.

        Raises
        ------
        DeliveryError
            If there is no answer.
        """
        check_url(url)
        # Not the address: where it leads may be all that keeps others from sending there.
        host = urlsplit(url).hostname or ""
        with span(method, Role.CLIENT, http__request__method=method, server__address=host) as made:
            response = self._request(method, url, body, headers)
            made.set(http__response__status_code=response.status)
            if response.status >= BAD_REQUEST:
                made.fail(str(response.status))
            return response

    def _request(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        all_headers = [("User-Agent", USER_AGENT), *headers.items()]
        if (sending := current()) is not None:
            all_headers.append((TRACEPARENT, sending))
        try:
            with self._pool.stream(method, url, headers=all_headers, content=body) as response:
                return Response(
                    response.status,
                    {
                        name.decode("latin-1").lower(): value.decode("latin-1")
                        for name, value in response.headers
                    },
                    _limited(response.iter_stream()),
                )
        except httpcore.TimeoutException as error:
            raise _too_slow(self.limit_s) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError) as error:
            raise DeliveryError(
                "connection.failed",
                f"The request got no answer: {str(error) or type(error).__name__}",
            ) from error


def check_url(url: str) -> None:
    """Check that a URL can be sent to.

    Raises
    ------
    DeliveryError
        ``url.invalid``
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise DeliveryError("url.invalid", f"Not a URL: {error}", permanent=True) from error
    if parts.scheme not in SCHEMES or not parts.hostname or not url.isascii() or " " in url:
        raise DeliveryError(
            "url.invalid", "Not a URL of the form https://host/path.", permanent=True
        )
    if parts.username is not None or parts.password is not None:
        raise DeliveryError(
            "url.invalid", "A URL must not hold a user name and password.", permanent=True
        )


def check(response: Response) -> ReceiverAnswer:
    """Return a good answer.

    Raises
    ------
    DeliveryError
        For any status but 2xx. 5xx, 408 and 429 pass; 410 means that the receiver no longer exists;
        redirects are not followed and count as a wrong address, like every other 4xx.
    """
    status = response.status
    if 200 <= status < 300:  # noqa: PLR2004 - the class of success
        return response.answer
    passing = status >= 500 or status in (REQUEST_TIMEOUT, TOO_MANY_REQUESTS)  # noqa: PLR2004 - the class of server errors
    raise DeliveryError(
        "http.status",
        _sentence(response),
        permanent=not passing,
        disable=status == GONE,
        answer=response.answer,
        retry_after_s=retry_after_s(response.headers) if passing else None,
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return what the header Retry-After asks for: seconds, or a date."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        wanted = float(text)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(text)
        except ValueError:
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        wanted = (date - datetime.now(UTC)).total_seconds()
    if wanted != wanted:  # noqa: PLR0124 - NaN is no number of seconds
        return None
    return min(max(0.0, wanted), MAX_RETRY_AFTER_S)


class _Backend(httpcore.NetworkBackend):
    """Opens connections to checked addresses; TLS and the Host header keep the name."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the whole attempt's counts
        local_address: str | None = None,  # noqa: ARG002 - httpcore's signature
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - httpcore's signature
    ) -> httpcore.NetworkStream:
        return _Stream(self._outbound.connect(host, port), self._outbound)


class _Stream(httpcore.NetworkStream):
    def __init__(self, connection: socket.socket, outbound: Outbound) -> None:
        self._socket = connection
        self._outbound = outbound

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - as above
        self._socket.settimeout(self._outbound.left_s())
        try:
            return self._socket.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - as above
        remaining = memoryview(buffer)
        try:
            while remaining:
                self._socket.settimeout(self._outbound.left_s())
                remaining = remaining[self._socket.send(remaining) :]
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - as above
    ) -> httpcore.NetworkStream:
        # A handshake is a few short messages; one that drips ends with the socket's own limit
        # for each, and the next read finds the time over.
        self._socket.settimeout(self._outbound.left_s())
        try:
            secured = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return _Stream(secured, self._outbound)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - httpcore's signature
        if info == "ssl_object" and isinstance(self._socket, ssl.SSLSocket):
            return self._socket
        return None


def _limited(parts: Iterable[bytes]) -> bytes:
    """Return the beginning of an answer; the rest is left unread and the connection closed."""
    body = bytearray()
    for part in parts:
        body += part
        if len(body) >= MAX_ANSWER_BYTES:
            break
    return bytes(body[:MAX_ANSWER_BYTES])


def _too_slow(limit_s: float) -> DeliveryError:
    return DeliveryError("timeout", f"The receiver did not answer within {limit_s:g} s.")


def _sentence(response: Response) -> str:
    if 300 <= response.status < 400:  # noqa: PLR2004 - the class of redirects
        return f"The receiver answered {response.status}; redirects are not followed."
    return f"The receiver answered {response.status}."

"""HTTP requests to other hosts: checked addresses, no redirects or proxies, one deadline.

`httpcore`, the transport of httpx, is used directly, because it lets this module open the
connections. Its own timeouts apply to each read, so that a receiver that sends a byte now and then
could hold an attempt for hours; here every read and write is limited by the remaining time of the
whole attempt.
"""

from __future__ import annotations

import email.utils
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpcore

from app.platform.telemetry import TRACEPARENT, Role, current, span

# Characters of a receiver's answer that are stored, for the page and the test button.
KEPT_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """Answer of a receiver to a request."""

    status: int | None  # of HTTP or SMTP
    text: str  # the beginning of its answer


class DeliveryError(Exception):
    """A failed attempt to send a message.

    Parameters
    ----------
    code : str
        Stable and machine-readable: ``http.status``, ``timeout``, ``address.refused``…
    sentence : str
        Message for people, without secrets.
    permanent : bool
        Whether the same message would fail on every later attempt.
    disable : bool
        Whether the channel no longer exists.
    answer : ReceiverAnswer or None
        Answer of the receiver, if it sent one.
    retry_after_s : float or None
        Least delay before the next attempt that the receiver requested.
    """

    def __init__(  # noqa: PLR0913 - each says one thing about the failure
        self,
        code: str,
        sentence: str,
        *,
        permanent: bool = False,
        disable: bool = False,
        answer: ReceiverAnswer | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.permanent = permanent or disable
        self.disable = disable
        self.answer = answer
        self.retry_after_s = retry_after_s


def excerpt(data: bytes | str) -> str:
    """Return the beginning of an answer as a text that can be stored and shown."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    shown = "".join(sign if sign.isprintable() or sign == "\n" else "�" for sign in text)
    return shown[:KEPT_CHARACTERS].strip()


# Without a guard, a user who may add a channel could make the server send requests to any host that
# it can reach: metadata services of clouds, databases, other people's machines. The name is
# resolved when the connection is made, and the connection goes to the checked address, so that a
# name that changes its address between two look-ups (DNS rebinding) cannot evade the check.


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# The only IPv6 addresses of hosts on the internet (RFC 4291, section 2.4). All others, among them
# those that the standard library counts as global, have a special purpose.
GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# Networks within the others that the standard library counts as global although they are not those
# of single hosts: multicast groups, 6to4 and Teredo.
DENIED: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(text) for text in ("224.0.0.0/4", "2002::/16", "2001::/32")
)
# IPv6 networks whose addresses contain an IPv4 address, and the number of bits to its right:
# IPv4-compatible, IPv4-mapped, IPv4-translated, NAT64 (global and local), 6to4, server of Teredo.
EMBEDDING: Final = tuple(
    (ipaddress.IPv6Network(text), shift)
    for text, shift in (
        ("::/96", 0),
        ("::ffff:0:0/96", 0),
        ("::ffff:0:0:0/96", 0),
        ("64:ff9b::/96", 0),
        ("64:ff9b:1::/48", 0),
        ("2002::/16", 80),
        ("2001::/32", 64),
    )
)
TEREDO: Final = ipaddress.IPv6Network("2001::/32")


def embedded_addresses(address: Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses within an IPv6 address, to which a gateway or kernel may connect.

    Examples
    --------
    >>> embedded_addresses(ipaddress.ip_address("::ffff:0:127.0.0.1"))
    [IPv4Address('127.0.0.1')]
    """
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback or address.is_unspecified:
        return []
    bits = int(address)
    parts = [bits >> shift for network, shift in EMBEDDING if address in network]
    if address in TEREDO:
        # The client's address is inverted.
        parts.append(~bits)
    return [ipaddress.IPv4Address(part & 0xFFFF_FFFF) for part in parts]


Resolve = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host name, in the order in which to try them.

    Raises
    ------
    OSError
        If the name has no address.
    """
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in entries))


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """Resolves host names and refuses forbidden addresses."""

    allowed: tuple[Network, ...] = ()  # private ranges that the operator allows
    resolve: Resolve = resolve  # takes a host and a port, returns addresses

    def permits(self, address: Address) -> bool:
        """Return whether a connection to an address, and to those within it, is allowed."""
        if not all(self.permits(inner) for inner in embedded_addresses(address)):
            return False
        # An IPv4 address is in no IPv6 network, and vice versa.
        if any(address in network for network in self.allowed):
            return True
        special = address.version == 6 and address not in GLOBAL_UNICAST  # noqa: PLR2004 - of the protocol
        return (
            address.is_global and not special and not any(address in network for network in DENIED)
        )

    def addresses(self, host: str, port: int, limit_s: float) -> list[str]:
        """Return the addresses of a host; raise an error if any of them is forbidden.

        A single forbidden address refuses the host: a name with a public and a private address
        indicates an attack.

        Raises
        ------
        DeliveryError
            ``address.refused`` is permanent, ``dns.failed`` temporary.
        """
        if limit_s <= 0:
            raise DeliveryError("timeout", "The time for this attempt is over.")
        addresses = self._look_up(host, port, limit_s)
        for text in addresses:
            # The text of a link-local address ends with its interface: fe80::1%eth0
            address = ipaddress.ip_address(text.partition("%")[0])
            if not self.permits(address):
                raise DeliveryError(
                    "address.refused",
                    f"{host} is at {address}, which is not on the public internet; the operator "
                    "can allow its network with PACELINE_ALERT_ALLOWED_NETWORKS.",
                    permanent=True,
                )
        return addresses

    def _look_up(self, host: str, port: int, limit_s: float) -> list[str]:
        # The system's resolver has no configurable time limit, so it runs in a thread.
        answer: list[str] = []
        failure: list[OSError] = []

        def look_up() -> None:
            try:
                answer.extend(self.resolve(host, port))
            except (OSError, UnicodeError) as error:
                failure.append(OSError(str(error)))

        thread = threading.Thread(target=look_up, name="paceline-resolve", daemon=True)
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            raise DeliveryError("dns.failed", f"Looking up {host} took too long.")
        if failure or not answer:
            why = f": {failure[0]}" if failure else "."
            raise DeliveryError("dns.failed", f"{host} has no address{why}")
        return answer


# Limit of an answer; the result of a delivery needs far less.
MAX_ANSWER_BYTES: Final = 64 * 1024

USER_AGENT: Final = "Paceline-Alerts/1"

# Limit of a receiver's Retry-After: a longer wait would use up most of the day after which a
# delivery is given up.
MAX_RETRY_AFTER_S: Final = 6 * 3600.0

SCHEMES: Final = ("http", "https")

GONE: Final = 410
TOO_MANY_REQUESTS: Final = 429
REQUEST_TIMEOUT: Final = 408
BAD_REQUEST: Final = 400


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def answer(self) -> ReceiverAnswer:
        """Return the status and the part of the body that are stored."""
        return ReceiverAnswer(self.status, excerpt(self.body))


class Outbound:
    """HTTP client for one delivery attempt; a context manager.

    Several requests to one host share a connection.

    Parameters
    ----------
    guard : AddressGuard
    limit_s : float
        Time limit of the attempt: looking up names, connecting, sending, reading.
    tls : ssl.SSLContext or None
        TLS settings; None: the system's certificate authorities.
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
        """Return the seconds left until the deadline.

        Raises
        ------
        DeliveryError
            If no time is left.
        """
        left_s = self._started_s + self.limit_s - time.monotonic()
        if left_s <= 0:
            raise _too_slow(self.limit_s)
        return left_s

    def connect(self, host: str, port: int) -> socket.socket:
        """Connect to an allowed address of `host`.

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
        """Send a POST request; see `request`."""
        return self.request("POST", url, body, headers)

    def request(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Response:
        """Send a request and return the response, whatever its status; `check` judges the status.

        Parameters
        ----------
        max_bytes : int
            Limit of the response's body; the rest is not read.

        Raises
        ------
        DeliveryError
            If the receiver does not answer.
        """
        check_url(url)
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise DeliveryError(
                    "header.invalid",
                    f"The header {name} has a character that is not printable ASCII.",
                    permanent=True,
                )
        # The span gets the host and not the whole address: the path may be the only secret of a
        # webhook.
        host = urlsplit(url).hostname or ""
        with span(method, Role.CLIENT, http__request__method=method, server__address=host) as made:
            response = self._request(method, url, body, headers, max_bytes)
            made.set(http__response__status_code=response.status)
            if response.status >= BAD_REQUEST:
                made.fail(str(response.status))
            return response

    def _request(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        max_bytes: int,
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
                    _limited(response.iter_stream(), max_bytes),
                )
        except httpcore.TimeoutException as error:
            raise _too_slow(self.limit_s) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError) as error:
            raise DeliveryError(
                "connection.failed",
                f"The request got no answer: {str(error) or type(error).__name__}",
            ) from error


def check_url(url: str) -> None:
    """Check that requests can be sent to a URL.

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
    """Return the response if its status is 2xx.

    Raises
    ------
    DeliveryError
        For any status but 2xx. 5xx, 408 and 429 are temporary; 410 means that the receiver no
        longer exists; redirects are not followed and count as a wrong address, like every other
        4xx.
    """
    status = response.status
    if 200 <= status < 300:  # noqa: PLR2004 - the class of success
        return response.answer
    redirected = "; redirects are not followed" if 300 <= status < 400 else ""  # noqa: PLR2004 - the class of redirects
    passing = status >= 500 or status in (REQUEST_TIMEOUT, TOO_MANY_REQUESTS)  # noqa: PLR2004 - the class of server errors
    raise DeliveryError(
        "http.status",
        f"The receiver answered {status}{redirected}.",
        permanent=not passing,
        disable=status == GONE,
        answer=response.answer,
        retry_after_s=retry_after_s(response.headers) if passing else None,
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, which is a number of seconds or a date."""
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
    """Opens connections to checked addresses; TLS and the Host header use the host name."""

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
        # A TLS handshake is a few short messages. The socket's own limit applies to each message,
        # so a peer that sends slowly exceeds the deadline at most until the next read.
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


def _limited(parts: Iterable[bytes], max_bytes: int) -> bytes:
    """Return the beginning of a body; the rest is not read, and the connection is closed."""
    body = bytearray()
    for part in parts:
        body += part
        if len(body) >= max_bytes:
            break
    return bytes(body[:max_bytes])


def _too_slow(limit_s: float) -> DeliveryError:
    return DeliveryError("timeout", f"The receiver did not answer within {limit_s:g} s.")


# Delays before the attempts, as Standard Webhooks proposes: short at first, for a restart of the
# receiver; then long, for an outage.
DELAYS_S: Final = (0.0, 5.0, 60.0, 300.0, 1800.0, 7200.0)

# Age at which a delivery is given up: yesterday's message is of no use, and the page shows that it
# was not delivered.
GIVE_UP_AFTER: Final = timedelta(days=1)

# Random share of a delay, so that the deliveries of one outage are not all repeated at once.
JITTER: Final = 0.2


def delay_before(attempt: int, jitter: float) -> timedelta:
    """Return the delay before an attempt, seconds.

    Parameters
    ----------
    jitter : float
        A random number, 0 to 1.
    """
    base_s = DELAYS_S[min(attempt, len(DELAYS_S)) - 1]
    return timedelta(seconds=base_s * (1 + JITTER * (2 * jitter - 1)))


def wait_before(
    attempt: int, jitter: float, age: timedelta, retry_after_s: float | None
) -> timedelta | None:
    """Return the delay before the next attempt, seconds; None if the delivery is given up.

    Parameters
    ----------
    attempt : int
        Number of the next attempt, at least 2.
    jitter : float
        A random number, 0 to 1.
    age : timedelta
        Time since the delivery was created.
    retry_after_s : float or None
        Delay that the receiver requested; the longer delay is used.
    """
    wait = delay_before(attempt, jitter)
    if retry_after_s is not None:
        wait = max(wait, timedelta(seconds=retry_after_s))
    return None if age + wait > GIVE_UP_AFTER else wait

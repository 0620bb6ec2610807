"""Exchange of one request and one answer with the server: the only reader of the server's answers.

A server may be broken, hostile, or another service. Whatever it sends, an exchange ends within its
time limit, which is for the whole exchange and not for each read, and holds a bounded number of
bytes. An answer is a JSON object of limited size and depth, whose fields are read with the type and
range that the caller declares. Everything else is a `DeliveryError`.

Resolving the server's name is outside of the time limit: the system's resolver has its own.
"""

from __future__ import annotations

import enum
import http.client
import io
import json
import math
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from paceline_client.version import VERSION

# Limits of an answer: bytes of its body, bytes from the connection (with headers and framing),
# values, nesting, and the size of an integer, which is one of 64 bits. The largest answer of
# Paceline's server, 100 incidents, has a few hundred kB, 20,000 values and 6 levels.
_MOST_ANSWER_BYTES: Final = 1 << 20
_MOST_RECEIVED_BYTES: Final = _MOST_ANSWER_BYTES + (1 << 18)
_MOST_VALUES: Final = 1 << 15
_MOST_LEVELS: Final = 32
_MOST_INTEGER: Final = (1 << 63) - 1
_MOST_NUMBER_CHARS: Final = 40
# Maximum length in characters of the server's sentences in messages.
_LONGEST_REASON: Final = 500
# Bytes that a request passes to the system at once.
_SENT_BYTES: Final = 1 << 16

_TOO_EARLY_OR_BUSY: Final = frozenset({408, 425, 429})
# HTTP statuses with which the server refuses this body for good. After other errors the same body
# may be accepted, for example once the token is corrected.
_REFUSES_THE_BODY: Final = frozenset({400, 409, 413, 415, 422})
_SERVER_ERROR: Final = 500
FIRST_REFUSAL: Final = 400


class Fate(enum.Enum):
    """Whether a body that was not delivered is sent again."""

    AGAIN = "again"  # the server is unavailable or busy: try again after a while
    LATER = "later"  # wrong address or token: try again after it is corrected
    NEVER = "never"  # the server refuses this body

    @staticmethod
    def of(status: int) -> Fate:
        """Return the fate of a body that was refused with this HTTP status."""
        if status >= _SERVER_ERROR or status in _TOO_EARLY_OR_BUSY:
            return Fate.AGAIN
        return Fate.NEVER if status in _REFUSES_THE_BODY else Fate.LATER


class DeliveryError(Exception):
    """The body was not delivered; the message gives the reason."""

    def __init__(
        self, message: str, *, fate: Fate, status: int | None = None, wait_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.fate = fate
        self.status = status  # HTTP status; None without an answer
        self.wait_s = wait_s  # the wait that the server asked for

    @property
    def permanent(self) -> bool:
        """Whether a repetition of the request would fail as well."""
        return self.fate is not Fate.AGAIN


class Document:
    """A JSON object of an answer; its fields have the type and the range that the caller names.

    All methods raise `DeliveryError` for a field that is absent, or has another type or range.
    """

    def __init__(self, fields: dict[str, Any], url: str, path: str = "") -> None:
        self.fields = fields
        self._url = url
        self._path = path

    def has(self, name: str) -> bool:
        """Return whether a field is present and not null."""
        return self.fields.get(name) is not None

    def integer(self, name: str, least: int, most: int) -> int:
        """Return an integer from `least` to `most`."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self._refuse(name, f"an integer from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float) -> float:
        """Return a number from `least` to `most`."""
        value = self.fields.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not least <= value <= most:
            self._refuse(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self.fields.get(name)
        if not isinstance(value, bool):
            self._refuse(name, "true or false")
        return value

    def text(self, name: str, longest: int) -> str:
        """Return a text for logs and terminals: its first `longest` characters, all printable."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            self._refuse(name, "a text")
        return _printable(value, longest)

    def document(self, name: str) -> Document:
        """Return an object."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            self._refuse(name, "an object")
        return Document(value, self._url, f"{self._path}{name}.")

    def documents(self, name: str, most: int, least: int = 0) -> list[Document]:
        """Return a list of `least` to `most` objects."""
        values = self.fields.get(name)
        expected = f"a list of {least} to {most} objects"
        if not isinstance(values, list) or not least <= len(values) <= most:
            self._refuse(name, expected)
        if not all(isinstance(value, dict) for value in values):
            self._refuse(name, expected)
        at = f"{self._path}{name}"
        return [Document(value, self._url, f"{at}[{n}].") for n, value in enumerate(values)]

    def _refuse(self, name: str, expected: str) -> NoReturn:
        raise _not_paceline(self._url, f"{self._path}{name} must be {expected}")


def exchange(
    method: str, url: str, body: bytes | None, content_type: str | None, timeout_s: float
) -> Document:
    """Send a request and return the answer, an empty document without content.

    Takes at most `timeout_s`. The environment's ``PACELINE_TOKEN`` is sent with it, to this address
    only. Raises `DeliveryError`.
    """
    headers = {
        **({} if content_type is None else {"Content-Type": content_type}),
        "Accept": "application/json",
        "User-Agent": f"paceline-client/{VERSION}",
    }
    token = os.environ.get("PACELINE_TOKEN")
    if token:
        headers["Authorization"] = f"Bearer {token.strip()}"
    try:
        request = urllib.request.Request(  # noqa: S310 - `server_address` allows http and https only
            url, data=body, method=method, headers=headers
        )
        with _OPENER.open(request, timeout=timeout_s) as response:
            return _document(_content(response), url)
    except urllib.error.HTTPError as error:
        raise _refusal(error, url) from error
    except _TooLongError as error:
        raise _not_paceline(url, str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        reason = _printable(str(getattr(error, "reason", error)), _LONGEST_REASON)
        message = f"{url} did not answer: {reason}"
        raise DeliveryError(message, fate=Fate.AGAIN) from error
    except ValueError as error:
        # For example, the token contains a line break.
        reason = _printable(str(error), _LONGEST_REASON)
        message = f"cannot send a request to {url}: {reason}"
        raise DeliveryError(message, fate=Fate.LATER) from error


def server_address(server: str) -> str:
    """Return an address without its last slash; raises `ValueError` unless it is http or https."""
    parts = urlsplit(server)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        message = f"the server's address must start with http:// or https://, not {server!r}"
        raise ValueError(message)
    return server.rstrip("/")


def parse_json(content: bytes) -> object:
    """Return the content of a JSON text within the limits of an answer; raises `ValueError`.

    Repeated keys, NaN, infinite numbers and integers over 64 bits are refused.
    """
    _check_size(content)
    return json.loads(
        content.decode(),
        object_pairs_hook=_without_repeated_keys,
        parse_int=_integer,
        parse_float=_finite,
        parse_constant=_no_constant,
    )


# Marks are read in Python's time, a few tens of milliseconds for the most that there may be.
_MARKS: Final = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
_MOST_MARKS: Final = 1 << 17


def _check_size(content: bytes) -> None:
    """Raise `ValueError` for a text with too many values or levels, before they take memory."""
    depth = values = 0
    in_text = False
    for number, match in enumerate(_MARKS.finditer(content)):
        mark = match.group()
        if mark == b'"':
            in_text = not in_text
        elif mark in b"[{," and not in_text:
            depth += mark != b","
            values += 1
        elif mark in b"]}" and not in_text:
            depth -= 1
        if depth > _MOST_LEVELS or values > _MOST_VALUES or number > _MOST_MARKS:
            message = f"over {_MOST_LEVELS} levels, {_MOST_VALUES} values or {_MOST_MARKS} marks"
            raise ValueError(message)


def _without_repeated_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        message = "a repeated key"
        raise ValueError(message)
    return fields


def _integer(text: str) -> int:
    # The length first: before Python 3.10.7, the time of int() is quadratic in it.
    if len(text) > _MOST_NUMBER_CHARS or abs(int(text)) > _MOST_INTEGER:
        message = "an integer over 64 bits"
        raise ValueError(message)
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _no_constant(text)
    return value


def _no_constant(text: str) -> NoReturn:
    message = f"the number {text[:_MOST_NUMBER_CHARS]}"
    raise ValueError(message)


def _document(content: bytes, url: str) -> Document:
    if not content:
        return Document({}, url)
    try:
        fields = parse_json(content)
    except ValueError as error:
        raise _not_paceline(url, _printable(str(error), _LONGEST_REASON)) from error
    if not isinstance(fields, dict):
        raise _not_paceline(url, "it must be an object")
    return Document(fields, url)


def _not_paceline(url: str, reason: str) -> DeliveryError:
    message = f"the answer of {url} is not one of Paceline ({reason}); check the address"
    return DeliveryError(message, fate=Fate.LATER)


def _refusal(error: urllib.error.HTTPError, url: str) -> DeliveryError:
    with error:
        try:
            problem = _document(_content(error), url).fields
        except (OSError, http.client.HTTPException, ValueError, DeliveryError):
            problem = {}
    words = (problem.get("detail"), problem.get("title"), error.reason)
    detail = next((word for word in words if isinstance(word, str) and word), "")
    code = problem.get("code")
    stable = f" [{_printable(code, _LONGEST_REASON)}]" if isinstance(code, str) else ""
    retry_after = error.headers.get("Retry-After", "")
    return DeliveryError(
        f"{url} answered {error.code}{stable}: {_printable(detail, _LONGEST_REASON)}",
        fate=Fate.of(error.code),
        status=error.code,
        # None if the header contains a date
        wait_s=float(retry_after) if retry_after.isdecimal() else None,
    )


def _printable(text: str, longest: int) -> str:
    """Return the first characters of a text, without control characters of terminals."""
    return "".join(c if c.isprintable() else " " for c in text[:longest])


def _content(response: Any) -> bytes:  # noqa: ANN401 - an answer, or an error that is one
    content: bytes = response.read(_MOST_ANSWER_BYTES + 1)
    if len(content) > _MOST_ANSWER_BYTES:
        message = f"it has over {_MOST_ANSWER_BYTES} bytes"
        raise _TooLongError(message)
    return content


class _TooLongError(http.client.HTTPException):
    """The server sends more than an answer can have."""


class _Received(io.RawIOBase):
    """The bytes that a connection receives until a time, up to the limit of an answer."""

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self._connection = connection
        self._raw = connection.makefile("rb", buffering=0)
        self._until_s = until_s
        self._left = _MOST_RECEIVED_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - any buffer
        if not self._left:
            message = f"it has over {_MOST_RECEIVED_BYTES} bytes"
            raise _TooLongError(message)
        self._connection.settimeout(_left_s(self._until_s))
        count = self._raw.readinto(memoryview(buffer)[: self._left])
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedSocket:
    """The methods of a socket that `http.client` uses, all of them until a time."""

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self._connection = connection
        self._until_s = until_s

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._connection.settimeout(_left_s(self._until_s))
            view = view[self._connection.send(view[:_SENT_BYTES]) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        del mode  # "rb"
        return io.BufferedReader(_Received(self._connection, self._until_s))

    def close(self) -> None:
        self._connection.close()


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        message = "the time is up"
        raise TimeoutError(message)
    return left_s


class _Connection(http.client.HTTPConnection):
    """A connection whose `timeout` is that of the whole exchange."""

    def __init__(self, host: str, *, timeout: float) -> None:
        super().__init__(host, timeout=timeout)
        self._until_s = time.monotonic() + timeout
        # `http.client` connects with this attribute; each address would have a timeout of its own.
        self._create_connection = self._open

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _TimedSocket(self.sock, self._until_s)

    def _open(self, address: tuple[str, int], *_: object) -> socket.socket:
        host, port = address
        _left_s(self._until_s)
        targets = [info[4] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        fault = OSError(f"{host} has no address")
        for number, target in enumerate(targets, 1):
            # Half of the time for an address that others follow, since it may drop all packets.
            left_s = _left_s(self._until_s) / (1 if number == len(targets) else 2)
            try:
                connection = socket.create_connection((str(target[0]), port), left_s)
            except OSError as error:
                fault = error
            else:
                # Also the time limit of the handshake of TLS, which begins now.
                connection.settimeout(_left_s(self._until_s))
                return connection
        raise fault

    def _tunnel(self) -> None:
        # Asks a proxy for a connection: on the plain socket, which TLS needs afterwards.
        plain, self.sock = self.sock, _TimedSocket(self.sock, self._until_s)
        super()._tunnel()  # type: ignore[misc]
        self.sock = plain
        plain.settimeout(_left_s(self._until_s))


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    """The same by TLS, whose handshake is within one timeout."""


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)  # type: ignore[arg-type]


class _Tls(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_TlsConnection, req)  # type: ignore[arg-type]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that only the given address receives the token."""

    def redirect_request(self, *_: object) -> None:
        return None


HANDLERS: Final = (_NoRedirects, _Plain, _Tls)
_OPENER: Final = urllib.request.build_opener(*HANDLERS)

"""HTTP client of a Paceline server, for commands."""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NoReturn, Self
from urllib.parse import quote, urlsplit

import httpx

from app.errors import Fault, PacelineError
from app.platform.database.states import SessionState, UploadState
from app.platform.identity import job_name_fault
from app.platform.settings.kinds import Caller

# Limits of the wait for an answer. A channel answers a test within a minute; the answer to a trace
# is sent once the trace is stored, and decoding the largest trace takes minutes.
TIMEOUT: Final = httpx.Timeout(30, read=60)
STORE_TIMEOUT: Final = httpx.Timeout(30, read=600)

# An overloaded server requests a later retry; the command retries this number of times, and limits
# the requested delay.
TRIES: Final = 6
LONGEST_RETRY_S: Final = 60.0
BUSY_STATUSES: Final = (429, 503)

# Limits of an answer, which is from another machine: bytes, and seconds from its head to its end.
# The report of the largest job has 20 MB.
MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024
ANSWER_S: Final = 600.0

POLL_S: Final = 0.25
# Time for which a restarting server may be unavailable while the command waits for a report.
POLL_FAILURES: Final = 120


class ServerError(PacelineError):
    """The server refused a request or cannot be reached, or there is no report."""

    code = "server.failed"


class NotPacelineError(ServerError):
    """The answer is not one of a Paceline server."""

    code = "server.not_paceline"


class UnreachableServerError(ServerError):
    """There is no server at the address, or the connection was lost."""

    code = "server.unreachable"


@dataclass(frozen=True, slots=True)
class Body:
    """One part of a multipart request."""

    content: bytes | IO[bytes]  # bytes or file
    media_type: str
    name: str | None = None  # of the file

    @property
    def part(self) -> tuple[str | None, bytes | IO[bytes], str]:
        """Return the part in the form that httpx expects."""
        return (self.name, self.content, self.media_type)


@dataclass(frozen=True, slots=True)
class Sent:
    """Id of a sent session, and its address on the server."""

    session: str
    url: str
    job: str
    number: int


@dataclass(frozen=True, slots=True)
class SentHang:
    """Address and verdict of a sent hang, and the files that the server did not read."""

    url: str
    sentence: str
    not_read: tuple[str, ...]


def _job_path(job: str, of: str) -> str:
    fault = job_name_fault(job)
    if fault is not None:
        # A slash in an address would separate two parts of the path.
        raise ServerError(fault, code="job.invalid_name")
    return f"/api/v1/jobs/{quote(job, safe='')}/{of}"


class Server:
    """Client of a server; a context manager.

    Every method raises `ServerError` with the code and faults of a refusal, and
    `UnreachableServerError`.

    Parameters
    ----------
    url : str
        Address of the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.Client(
            base_url=url,
            # Compressed content would have no known size.
            headers=credentials() | {"Accept-Encoding": "identity"},
            timeout=TIMEOUT,
            # A proxy in the environment cannot reach a loopback address.
            trust_env=not is_loopback(url),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def get(self, path: str) -> dict[str, Any]:
        """Return the document at a path of the API."""
        return _answered(self._request("GET", path))

    def post(self, path: str) -> dict[str, Any]:
        """Post to a path and return the answer."""
        return _document(self._request("POST", path))

    def exchange(self, method: str, path: str, document: object) -> dict[str, Any]:
        """Send a document and return the answer; empty without a body."""
        return _answered(self._request(method, path, json=document))

    def download(self, path: str, target: Path) -> int:
        """Download a path into a file, which is replaced at the end; return the size in bytes."""
        part = target.with_name(f"{target.name}.part")
        try:
            with (
                self._client.stream("GET", path, timeout=STORE_TIMEOUT) as answer,
                part.open("wb") as file,
            ):
                if not answer.is_success:
                    _document(_read(answer))
                for piece in answer.iter_bytes():
                    file.write(piece)
            part.replace(target)
        except httpx.TransportError as error:
            raise UnreachableServerError(
                f"The server at {self._url} stopped answering: {str(error) or type(error).__name__}"
            ) from error
        finally:
            part.unlink(missing_ok=True)
        return target.stat().st_size

    def send(
        self,
        job: str,
        open_trace: Callable[[], Body],
        meta: Body | None,
        say: Callable[[str], object],
    ) -> Sent:
        """Send a trace, with the retries that the server requests.

        Parameters
        ----------
        open_trace : callable
            Returns the trace from its beginning, for each attempt.
        meta : Body or None
            The metadata, if the trace does not contain them.
        """
        parts = {} if meta is None else {"meta": meta.part}
        said = self._posted(
            _job_path(job, "sessions"),
            lambda: {"files": {**parts, "trace": open_trace().part}},
            say,
        )
        return Sent(said["session"], said["url"], said["job"], said["number"])

    def send_hang(self, job: str, archive: IO[bytes], say: Callable[[str], object]) -> SentHang:
        """Send the files of a hang, with the retries that the server requests."""

        def body() -> dict[str, object]:
            archive.seek(0)
            return {"content": archive, "headers": {"Content-Type": "application/octet-stream"}}

        said = self._posted(_job_path(job, "hangs"), body, say)
        if "upload" in said:
            said = self._hang_of(said["upload"], say)
        return SentHang(said["url"], said["sentence"], tuple(said["not_read"]))

    def _hang_of(self, upload: str, say: Callable[[str], object]) -> dict[str, Any]:
        """Wait until the server has read an archive, and return its hang."""
        announced = ""
        while True:
            state = self.get(f"/api/v1/hang-uploads/{upload}")
            if state["hang"] is not None:
                hang = self.get(f"/api/v1/hangs/{state['hang']}")["hang"]
                return {**state, "sentence": hang["sentence"]}
            if state["state"] in (UploadState.REFUSED, UploadState.FAILED):
                raise ServerError(state["reason"])
            if state["state"] != announced:
                announced = state["state"]
                say(f"The archive is {announced}")
            time.sleep(POLL_S)

    def _posted(
        self, path: str, body: Callable[[], dict[str, Any]], say: Callable[[str], object]
    ) -> dict[str, Any]:
        """Post a body, with retries while the server is overloaded; return the answer."""
        for attempt in range(1, TRIES + 1):
            answer = self._request("POST", path, **body(), timeout=STORE_TIMEOUT)
            if answer.status_code not in BUSY_STATUSES or attempt == TRIES:
                break
            pause_s = _retry_after_s(answer)
            say(f"The server is busy; trying again in {pause_s:.0f} s")
            time.sleep(pause_s)
        return _document(answer)

    def wait_for_report(self, session: str, say: Callable[[str], object]) -> dict[str, Any]:
        """Wait until a session is analyzed and return its report.

        Parameters
        ----------
        say : callable
            Called repeatedly with the reason of the wait.
        """
        failures = 0
        path = f"/api/v1/sessions/{session}"
        while True:
            try:
                state = self.get(path)
            except UnreachableServerError:
                failures += 1
                if failures > POLL_FAILURES:
                    raise
            else:
                failures = 0
                if state["state"] in SessionState.REPORTED:
                    return self.get(f"{path}/report")
                if state["state"] in SessionState.UNREPORTED:
                    raise _no_report(state)
                say(_progress_of(state))
            time.sleep(POLL_S)

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:  # noqa: ANN401 - of httpx
        try:
            with self._client.stream(method, path, **options) as answer:
                return _read(answer)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableServerError(
                f"The server at {self._url} cannot be reached: {reason}"
            ) from error


def _answered(answer: httpx.Response) -> dict[str, Any]:
    return {} if answer.status_code == httpx.codes.NO_CONTENT else _document(answer)


def _read(answer: httpx.Response) -> httpx.Response:
    """Return an answer with its content, read within the limits of an answer."""
    until_s = time.monotonic() + ANSWER_S
    content = bytearray()
    for piece in answer.iter_raw():
        content += piece
        if len(content) > MOST_ANSWER_BYTES or time.monotonic() > until_s:
            limits = f"{MOST_ANSWER_BYTES} bytes or {ANSWER_S:.0f} s"
            raise NotPacelineError(f"The answer of {answer.url} has over {limits}")
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in {"content-encoding", "transfer-encoding"}
    }
    return httpx.Response(
        answer.status_code, headers=headers, content=bytes(content), request=answer.request
    )


class _Fields(dict[str, Any]):
    """A JSON object of an answer; an absent field is an error of the server."""

    def __missing__(self, name: str) -> NoReturn:
        raise NotPacelineError(f"The answer has no field {name!r}; is that a Paceline server?")


def _fields_of(answer: httpx.Response) -> _Fields:
    try:
        document = json.loads(answer.content, object_pairs_hook=_Fields)
    except (ValueError, RecursionError) as error:
        raise NotPacelineError(f"The answer of {answer.url} is not JSON: {error}") from error
    if not isinstance(document, _Fields):
        raise NotPacelineError(f"The answer of {answer.url} is not an object")
    return document


def _document(answer: httpx.Response) -> dict[str, Any]:
    kind = answer.headers.get("content-type", "")
    if answer.is_success and kind.startswith("application/json"):
        return _fields_of(answer)
    if kind.startswith("application/problem+json"):
        problem = _fields_of(answer)
        raise ServerError(
            f"The server refused the request: {problem['detail']}",
            code=problem["code"],
            faults=_faults(problem["faults"]),
        )
    raise NotPacelineError(
        f"{answer.url} answers {answer.status_code} {answer.reason_phrase}; "
        "is that a Paceline server?"
    )


def _no_report(session: dict[str, Any]) -> ServerError:
    detail = session["reason_detail"] or {}
    return ServerError(
        f"The session is {session['state']}: {session['reason']}",
        code=session["reason_code"],
        faults=_faults(detail.get("faults", [])),
    )


def _faults(faults: list[dict[str, Any]]) -> tuple[Fault, ...]:
    return tuple(
        Fault(
            fault["code"],
            fault["message"],
            row=fault.get("row"),
            line=fault.get("line"),
            column=fault.get("column"),
            file=fault.get("file"),
        )
        for fault in faults
    )


def _progress_of(session: dict[str, Any]) -> str:
    work = session["work"] or {}
    if session["state"] == SessionState.ANALYZING:
        return "Analyzing" if work.get("attempt") == 1 else f"Analyzing, attempt {work['attempt']}"
    ahead = (work.get("position") or 1) - 1
    return f"Waiting behind {ahead} others" if ahead else "Waiting for a worker"


def _retry_after_s(answer: httpx.Response) -> float:
    value = answer.headers.get("retry-after", "")
    return min(float(value), LONGEST_RETRY_S) if value.isdecimal() else 1.0


def credentials() -> dict[str, str]:
    """Return the headers with the caller's token and project."""
    caller, headers = Caller.of_environment(), {}
    if caller.token is not None:
        headers["Authorization"] = f"Bearer {caller.token}"
    if caller.project is not None:
        headers["Paceline-Project"] = caller.project
    return headers


def is_loopback(url: str) -> bool:
    """Return whether an address is a loopback address of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

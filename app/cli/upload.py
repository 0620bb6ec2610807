"""Send a trace file to a server over HTTP, and wait for what comes out."""

from __future__ import annotations

import ipaddress
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from app.analysis.trace.formats.head import COMPRESSIONS
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.metadata import load_metadata
from app.cli.files import read_metadata
from app.db.states import SessionState
from app.errors import Fault, InvalidMetadataError, PacelineError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from app.analysis.trace.model import SessionMeta

# The answer comes once everything is stored; decoding the largest body takes minutes.
TIMEOUT: Final = httpx.Timeout(30, read=600)

# A server that is behind says when to come back; it is believed so many times, within bounds.
TRIES: Final = 6
LONGEST_RETRY_S: Final = 60.0
BUSY_STATUSES: Final = (429, 503)

POLL_S: Final = 0.25
# A server that restarts while we wait is away for some seconds.
POLL_FAILURES: Final = 120


CONTENT_TYPES: Final = {
    suffix: known.media_types[0] for known in FORMATS.values() for suffix in known.suffixes
}
COMPRESSED_SUFFIXES: Final = tuple(known.suffix for known in COMPRESSIONS)


class UploadError(PacelineError):
    """The server refused the trace, cannot be reached, or no report came out."""

    code = "upload.failed"


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Where a trace is on the server."""

    session: str
    url: str
    job: str
    number: int


def upload(path: Path, meta: Path | None, *, server: str, job: str | None, wait: bool) -> None:
    """Send a trace and print where it is, or with `wait` what the report says.

    Parameters
    ----------
    path : Path
        The trace.
    meta : Path or None
        Its metadata, YAML or JSON; None where it is in the header of an NDJSON trace.
    server : str
        Address of the server.
    job : str or None
        Name of the job; None takes the metadata's `trial_name`.
    wait : bool
        Whether to wait for the report.

    Raises
    ------
    FileError
        If the file of the metadata cannot be read.
    InvalidMetadataError
        If the metadata cannot be understood, or there is no name for the job.
    UploadError
        With the server's code and faults.
    """
    text = None if meta is None else read_metadata(meta)
    name = job or _trial_name(None if text is None else load_metadata(text))
    console = Console(stderr=True)
    with httpx.Client(
        base_url=server,
        timeout=TIMEOUT,
        # A proxy of the environment does not lead to this machine.
        trust_env=not is_loopback(server),
    ) as client:
        try:
            uploaded = send(client, path, text, name, console)
            if not wait:
                sys.stdout.write(f"{uploaded.url}\n")
                return
            console.print(f"Session {uploaded.number} of {name}: {uploaded.url}", soft_wrap=True)
            sys.stdout.write(f"{verdict(client, uploaded.session, console)}\n")
        except (httpx.TransportError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise UploadError(
                f"The server at {server} cannot be reached: {reason}", code="upload.unreachable"
            ) from error


def send(
    client: httpx.Client, path: Path, meta: str | None, job: str, console: Console
) -> Uploaded:
    """Send a trace, again where the server asks for that.

    Raises
    ------
    UploadError
        If the server refuses it.
    httpx.TransportError
        If the server cannot be reached.
    """
    for attempt in range(1, TRIES + 1):
        response = _post(client, path, meta, job, console)
        if response.status_code not in BUSY_STATUSES or attempt == TRIES:
            break
        pause_s = _retry_after_s(response)
        console.print(f"The server is busy; trying again in {pause_s:.0f} s")
        time.sleep(pause_s)
    if not response.is_success:
        raise _refusal(response)
    answer = response.json()
    return Uploaded(answer["session"], answer["url"], answer["job"], answer["number"])


def verdict(client: httpx.Client, session: str, console: Console) -> str:
    """Wait until a session is analyzed and return its verdict in one sentence.

    Raises
    ------
    UploadError
        If no report comes out, with the reason.
    httpx.TransportError
        If the server stays away.
    """
    failures = 0
    with console.status("Waiting for a worker") as status:
        while True:
            try:
                found = _get(client, f"/api/v1/sessions/{session}")
            except httpx.TransportError:
                failures += 1
                if failures > POLL_FAILURES:
                    raise
            else:
                failures = 0
                if found["state"] in SessionState.REPORTED:
                    report = _get(client, f"/api/v1/sessions/{session}/report")
                    return str(report["verdict"]["sentence"])
                if found["state"] in SessionState.UNREPORTED:
                    raise _no_report(found)
                status.update(_progress_of(found))
            time.sleep(POLL_S)


def content_type_of(path: Path) -> str:
    """Return the content type that a file's name says; the server looks where it says nothing."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED_SUFFIXES]
    return CONTENT_TYPES.get(suffixes[-1] if suffixes else "", "application/octet-stream")


def _post(
    client: httpx.Client, path: Path, meta: str | None, job: str, console: Console
) -> httpx.Response:
    columns = (TextColumn("Sending"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        progress.open(path, "rb") as file,
    ):
        return client.post(
            f"/api/v1/jobs/{quote(job, safe='')}/sessions", files=_parts(path, file, meta)
        )


def _parts(path: Path, file: BinaryIO, meta: str | None) -> list[tuple[str, Any]]:
    trace = ("trace", (path.name, file, content_type_of(path)))
    if meta is None:
        return [trace]
    return [("meta", (None, meta, "application/yaml")), trace]


def _get(client: httpx.Client, path: str) -> dict[str, Any]:
    response = client.get(path)
    if not response.is_success:
        raise _refusal(response)
    body: dict[str, Any] = response.json()
    return body


def _refusal(response: httpx.Response) -> UploadError:
    """Return the error that a problem document says, or that there is none."""
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return UploadError(
            f"{response.url} answers {response.status_code} {response.reason_phrase}; "
            "is that a Paceline server?",
            code="upload.not_paceline",
        )
    problem = response.json()
    return UploadError(
        f"The server refuses: {problem['detail']}",
        code=problem["code"],
        faults=_faults(problem["faults"]),
    )


def _no_report(session: dict[str, Any]) -> UploadError:
    detail = session["reason_detail"] or {}
    return UploadError(
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
        )
        for fault in faults
    )


def _progress_of(session: dict[str, Any]) -> str:
    work = session["work"] or {}
    if session["state"] == SessionState.ANALYZING:
        return "Analyzing" if work.get("attempt") == 1 else f"Analyzing, try {work['attempt']}"
    ahead = (work.get("position") or 1) - 1
    return f"Waiting behind {ahead} others" if ahead else "Waiting for a worker"


def _retry_after_s(response: httpx.Response) -> float:
    value = response.headers.get("retry-after", "")
    return min(float(value), LONGEST_RETRY_S) if value.isdecimal() else 1.0


def _trial_name(meta: SessionMeta | None) -> str:
    if meta is None or not meta.trial_name:
        raise InvalidMetadataError(
            "The job has no name: give --job, or metadata with a trial_name.",
            code="metadata.missing_job",
        )
    return meta.trial_name


def is_loopback(server: str) -> bool:
    """Return whether an address is on this machine."""
    host = urlsplit(server).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Errors as RFC 9457 problem documents: the only module that maps error codes to HTTP statuses."""

from __future__ import annotations

import http
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import Fault, PacelineError, TryLaterError
from app.platform.identity import JOB_NAMES
from app.platform.validation import field_faults

log = structlog.get_logger(__name__)

# A job's name with an encoded slash matches no route.
SLASH_IN_JOB: Final = re.compile(rb"^/api/v1/jobs/[^/]*%2f", re.IGNORECASE)
MEDIA_TYPE: Final = "application/problem+json"

# Minimum time in seconds that a sender should wait before it tries again.
RETRY_AFTER_S: Final = 5.0

# Maximum time in seconds over which the retries of several senders are spread.
MAX_SPREAD_S: Final = 60.0

# Code → (status, title). An unlisted code gets the status and title of its error class, so that a
# new kind of trace fault is a 422 without an entry here.
PROBLEMS: Final[Mapping[str, tuple[int, str]]] = {
    "internal": (500, "Something broke here"),
    "trace.invalid": (422, "The trace cannot be stored"),
    "trace.unknown_format": (415, "The format is not known"),
    "trace.no_operations": (415, "The file holds no operations"),
    "trace.command_line_only": (415, "The format is read by the command line only"),
    "archive.invalid": (422, "The archive cannot be read"),
    "archive.unsupported": (415, "The archive is of a kind that is not read"),
    "folder.invalid": (422, "The folder is no session"),
    "trace.unanalyzable": (422, "No verdict can come from this trace"),
    "metadata.invalid": (422, "The metadata cannot be used"),
    "labels.invalid": (422, "The labels of ranges cannot be used"),
    "multipart.invalid": (400, "The multipart body is malformed"),
    "job.invalid_name": (422, "The job's name cannot be used"),
    "producer.invalid_name": (422, "The producer's name cannot be used"),
    "run.invalid_name": (422, "The run's name cannot be used"),
    "chunk.refused": (422, "The chunk cannot be stored"),
    "chunk.differs": (409, "The chunk exists with other bytes"),
    "session.sealed": (409, "The session accepts no more chunks"),
    "session.open": (409, "The session still arrives"),
    "session.trace_removed": (409, "The session's operations were deleted"),
    "session.whole": (409, "The session came in one body"),
    "session.formats_mixed": (409, "The session's chunks have times of another kind"),
    "batch.malformed": (422, "The body is no batch of chunks"),
    "body.too_large": (413, "The body is too large"),
    "body.too_many_values": (413, "The body has too many values"),
    "body.time_limit": (422, "Reading the body takes too long"),
    "body.memory_limit": (413, "The body needs too much memory"),
    "body.reader_killed": (422, "The body cannot be read"),
    "body.ambiguous_length": (400, "The end of the body is ambiguous"),
    "body.timeout": (408, "The body came too slowly"),
    "head.timeout": (408, "The request came too slowly"),
    "connections.too_many": (429, "Too many connections"),
    "encoding.unsupported": (415, "The content encoding is not supported"),
    "not_found": (404, "Not found"),
    "report.not_ready": (404, "There is no report yet"),
    "report.none": (404, "There will be no report"),
    "report.removed": (404, "The report was deleted"),
    "report.heatmaps_removed": (404, "The heatmaps were deleted"),
    "trace.removed": (404, "The operations were deleted"),
    "document.unknown_version": (500, "A later version stored this"),
    "recording.no_pulse": (409, "The job sends no pulse"),
    "note.in_future": (409, "The note's time is to come"),
    "note.too_many": (409, "The job has too many notes"),
    "fix.unknown": (404, "The report recommends no such fix"),
    "fix.ambiguous": (409, "Several fixes have that code"),
    "fix.not_applied": (404, "The fix is not marked as applied"),
    "what_if.invalid": (422, "The question cannot be answered"),
    "what_if.no_verdict": (409, "There is no verdict to ask about"),
    "spec.invalid": (422, "The specification cannot be used"),
    "tensor.invalid": (422, "The tensor-parallel group cannot be used"),
    "tensor.out_of_order": (409, "These steps were reported already"),
    "tensor.group_differs": (409, "The group has other sizes in this attempt"),
    "tensor.old_attempt": (409, "The job was started again since"),
    "tensor.unknown_plan": (409, "The group has no such plan"),
    "tensor.superseded": (409, "The plan is not to be applied"),
    "hang.invalid_dump": (422, "A dump of a flight recorder cannot be read"),
    "hang.invalid_pickle": (422, "A pickle holds something else than plain values"),
    "hang.invalid_stack": (422, "A dump of py-spy cannot be read"),
    "hang.invalid_ras": (422, "What ncclras printed cannot be read"),
    "hang.invalid_process": (422, "What is said of a process cannot be read"),
    "hang.no_rank": (422, "Nothing says of which rank a file is"),
    "hang.rank_twice": (422, "Two files are of one rank"),
    "hang.no_dumps": (422, "There is no dump"),
    "hang.no_world": (422, "Nothing numbers the ranks"),
    "hang.too_large": (413, "A file of a hang is too large"),
    "hang.unknown_file": (415, "The file is of no kind that is read"),
    "pulse.invalid": (422, "The body is no pulse"),
    "pulse.off": (409, "The project takes no pulses"),
    "plan.ended": (409, "The plan has ended"),
    "plan.metadata_missing": (422, "The metadata do not say enough for a plan of the whole job"),
    "plan.metadata_unfit": (422, "No whole job can be planned from these metadata"),
    "plan.not_measured": (409, "The session does not say what a block takes"),
    "conflict": (409, "Conflict"),
    "action.invalid": (422, "The policy of actions cannot be used"),
    "channel.invalid": (422, "The channel cannot be used"),
    "slack.invalid": (422, "The body is no button of Slack"),
    "slack.unknown_action": (422, "The button is not known"),
    "slack.signature": (401, "The request is not signed by Slack"),
    "slack.old": (401, "The request is too old"),
    "slack.replayed": (409, "The request came before"),
    "slack.disabled": (403, "The channel is disabled"),
    "slack.unknown_user": (403, "The member is no operator"),
    "retention.invalid": (422, "The retention rules are invalid"),
    "rule.invalid": (422, "The rule cannot be used"),
    "secrets.unreadable": (500, "The secrets of channels cannot be read or written"),
    "busy": (429, "The server is behind"),
    "inbox.full": (429, "Workers are behind"),
    "quota.sessions_per_hour": (429, "The project has sent enough sessions for this hour"),
    "quota.bytes": (429, "The project has no room for more bytes"),
    "quota.operations": (429, "The project has no room for more operations"),
    "quota.open_sessions": (429, "The project has enough open sessions"),
    "quota.producers": (429, "The project has enough producers"),
    "quota.jobs": (429, "The project has enough jobs"),
    "quota.attempts": (429, "The project has enough attempts"),
    "quota.tensor_groups": (429, "The project has enough tensor-parallel groups"),
    "quota.probed_devices": (429, "The project has enough probes"),
    "quota.notes_per_hour": (429, "The project has noted enough for this hour"),
    "blobs.unavailable": (503, "The object store does not answer"),
    "blobs.lost": (500, "The object store has lost bytes"),
    "storage.full": (507, "The disk is full"),
    "database.unavailable": (503, "The database does not answer"),
    "request.invalid": (422, "The request is not valid"),
    "address.not_utf8": (400, "The address is malformed"),
    "http.bad_request": (400, "The request is malformed"),
    "http.not_found": (404, "There is nothing at this address"),
    "http.method_not_allowed": (405, "The method is not allowed here"),
    "access.unauthenticated": (401, "The request has no valid sign-in"),
    "access.wrong_password": (401, "The name or the password is wrong"),
    "access.too_many_guesses": (429, "Too many wrong passwords"),
    "access.sign_in_failed": (401, "The sign-in did not end well"),
    "access.forbidden": (403, "The user may not do this"),
    "access.job_forbidden": (403, "The token may not send for this job"),
    "attempt.owned": (403, "Another token sends for this job"),
    "access.invalid": (422, "The request cannot be carried out"),
    "project.ambiguous": (400, "The request names several projects"),
    "project.not_found": (404, "There is no such project"),
    "host.refused": (421, "This host name is not served"),
    "host.forwarded": (403, "Forwarded requests are refused"),
    "csrf.cross_site": (403, "Cross-site requests are refused"),
}

# Codes for the statuses that the framework raises itself.
_CODE_OF_STATUS: Final[Mapping[int, str]] = {
    400: "http.bad_request",
    404: "http.not_found",
    405: "http.method_not_allowed",
    413: "body.too_large",
}


class FaultBody(BaseModel):
    """A fault and its position: a row or line, a column or key, a file of a folder."""

    code: str
    message: str
    row: int | None = None
    line: int | None = None
    column: str | None = None
    file: str | None = None


class ProblemBody(BaseModel):
    """A problem document (RFC 9457); the meaning of a `code` never changes."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    faults: list[FaultBody]


def described(description: str) -> dict[str, Any]:
    """Return the OpenAPI description of an answer that is a problem document."""
    reference = {"$ref": f"#/components/schemas/{ProblemBody.__name__}"}
    return {
        # The model makes the framework include the schema; the framework does not know the media
        # type, so it is given explicitly.
        "model": ProblemBody,
        "description": description,
        "content": {MEDIA_TYPE: {"schema": reference}},
    }


def problem(
    code: str,
    detail: str,
    *,
    fallback: str = "internal",
    faults: Sequence[Fault] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return a problem document.

    Parameters
    ----------
    fallback : str
        Code whose status and title are used if `code` has no entry.
    """
    status, title = PROBLEMS.get(code) or PROBLEMS.get(fallback) or PROBLEMS["internal"]
    return _document(status, code, title, detail, faults=faults, headers=headers)


def problem_of(error: PacelineError) -> JSONResponse:
    """Return the problem document for a domain error."""
    response = problem(
        error.stable_code, error.message, fallback=type(error).code, faults=error.faults
    )
    if response.status_code in (429, 503):
        least_s = error.retry_after_s if isinstance(error, TryLaterError) else RETRY_AFTER_S
        response.headers["Retry-After"] = retry_after(least_s)
    if response.status_code == http.HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if response.status_code == http.HTTPStatus.REQUEST_TIMEOUT:
        # The rest of the request body may still arrive and must not be read as a new request.
        response.headers["Connection"] = "close"
    return response


def retry_after(least_s: float, draw: Callable[[], float] = random.random) -> str:
    """Return a Retry-After value with random spread, so that senders do not all return at once.

    Parameters
    ----------
    draw : callable
        Returns a number from 0 to 1.

    Examples
    --------
    >>> retry_after(5.0, lambda: 0.5)
    '8'
    """
    return str(math.ceil(least_s + min(least_s, MAX_SPREAD_S) * draw()))


def install(app: FastAPI) -> None:
    """Make all errors of the application problem documents, including the framework's own errors.

    Call it before other middleware is added, so that the other middleware wraps this one.
    """
    app.add_exception_handler(PacelineError, _domain_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    for unavailable in (
        OperationalError,
        InterfaceError,
        PoolTimeoutError,
        # Request bodies are stored through the driver directly, so its errors occur as well.
        psycopg.OperationalError,
        psycopg.InterfaceError,
    ):
        app.add_exception_handler(unavailable, _database_unavailable)
    app.add_exception_handler(DataError, _impossible_value)
    app.add_middleware(UnexpectedErrors)


class UnexpectedErrors:
    """ASGI middleware that answers unhandled exceptions with a problem document.

    The framework's own handler of unhandled exceptions runs outside of all other middleware, so its
    answer lacks their headers; it also raises the error again, after which the server drops the
    connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request even if an unhandled exception occurs."""
        started = False

        async def observed_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, observed_send)
        # Expected errors are answered by handlers of their classes further in. An exception that
        # arrives here is unexpected: it is logged with its trace, or raised again if no answer is
        # possible.
        except Exception:
            if scope["type"] != "http" or started:
                raise
            log.exception("unexpected error", path=scope["path"])
            response = problem("internal", "An unexpected error; the server's log has it.")
            await response(scope, receive, send)


def _document(  # noqa: PLR0913 - the members of RFC 9457
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    faults: Sequence[Fault] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    content: dict[str, Any] = {
        "type": f"/api/docs#problem-{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "faults": [fault.as_dict() for fault in faults],
    }
    return JSONResponse(content, status, dict(headers or {}), MEDIA_TYPE)


async def _domain_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PacelineError)  # noqa: S101 - what it is registered for
    return problem_of(error)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
    if isinstance(error.__cause__, PacelineError):
        # The error was raised while the framework read a body.
        return problem_of(error.__cause__)
    status = error.status_code
    raw_path: bytes = request.scope.get("raw_path", b"")
    if status == http.HTTPStatus.NOT_FOUND and SLASH_IN_JOB.search(raw_path):
        return problem("job.invalid_name", f"A job's name has {JOB_NAMES}; this one has %2F.")
    code = _CODE_OF_STATUS.get(status)
    if code is None:
        phrase = http.HTTPStatus(status).phrase
        code, title = "http." + phrase.lower().replace(" ", "_").replace("-", "_"), phrase
    else:
        title = PROBLEMS[code][1]
    return _document(status, code, title, f"{error.detail}.", headers=error.headers)


async def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - what it is registered for
    # The first part of a location is the part of the request (body, query, path), so it is skipped.
    faults = field_faults(error.errors(), skip=1)
    named = ", ".join(fault.column or "?" for fault in faults)
    return problem("request.invalid", f"Not valid: {named}.", faults=faults)


async def _impossible_value(_request: Request, _error: Exception) -> JSONResponse:
    # For example a name with a NUL character: PostgreSQL cannot store it, so nothing has such a
    # name.
    return problem("request.invalid", "The request holds a value that cannot be in the database.")


async def _database_unavailable(request: Request, error: Exception) -> JSONResponse:
    driver = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(driver, psycopg.errors.DiskFull):
        log.error("database full", path=request.url.path)
        return problem("storage.full", "There is no room on the database's disk.")
    log.error("database unavailable", path=request.url.path, error=str(error).splitlines()[0])
    return problem(
        "database.unavailable",
        "The database does not answer; nothing was stored. Try again.",
        headers={"Retry-After": retry_after(RETRY_AFTER_S)},
    )

"""Limits on size and pace of request bodies on all routes, and validation of parameters.

Every route reads its body through this middleware, so that no route lacks a limit. Routes that
receive traces raise their limit, see `arriving`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import anyio
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import BodyTooLargeError, PacelineError
from app.platform.settings import MIB

# Size limit of bodies on all routes except those that receive traces; a plan of a thousand layers
# has 400 kB.
MAX_BODY_BYTES: Final = MIB
# Limit of the commas of such a body, and so of its values. Each value that a route does not expect
# is a fault of the answer, and a hundred thousand of them hold up all other requests for seconds.
MAX_COMMAS: Final = 50_000

_KEY: Final = "paceline.body"


class BodyTimeoutError(PacelineError):
    """A body arrived too slowly, or not at all."""

    code = "body.timeout"


@dataclass(frozen=True, slots=True)
class Pace:
    """The slowest allowed pace of a request body."""

    idle_s: float
    """Maximum time without a byte, and initial allowance for the total time of waiting."""
    min_bytes_per_s: float
    """Number of bytes whose arrival extends the total time of waiting by a second."""

    def left_s(self, size: int, waited_s: float) -> float:
        """Return the seconds left to wait for the next byte; zero or less if the time is up.

        Parameters
        ----------
        size : int
            Bytes received so far.
        waited_s : float
            Seconds of waiting for these bytes; time in which the route did not read does not count.

        Examples
        --------
        >>> Pace(idle_s=30, min_bytes_per_s=1000).left_s(size=5000, waited_s=20)
        15.0
        """
        return min(self.idle_s, self.idle_s + size / self.min_bytes_per_s - waited_s)


class ArrivingBody:
    """The body of a request, whose size and pace are checked while it is read.

    Parameters
    ----------
    receive : callable
        The server's ASGI function `receive`.
    announced : int or None
        Size in bytes that the sender announces in Content-Length.
    pace : Pace
    clock : callable
        Returns a monotonic time in seconds.

    Attributes
    ----------
    limit : int
        Maximum size in bytes; a route may raise it before it reads the body.
    max_commas : int or None
        Maximum number of commas; None in a route that reads other bodies than small documents.
    size, commas : int
        Bytes and commas received so far.
    """

    def __init__(
        self,
        receive: Receive,
        announced: int | None,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = MAX_BODY_BYTES
        self.max_commas: int | None = MAX_COMMAS
        self.size = 0
        self.commas = 0
        self._receive = receive
        self._announced = announced or 0
        self._pace = pace
        self._clock = clock
        self._waited_s = 0.0
        self._complete = False

    async def receive(self) -> Message:
        """Return the next ASGI message from the server.

        Raises
        ------
        BodyTooLargeError
            If the announced size, or the size received so far, is above the limit:
            ``body.too_large``; or the number of values: ``body.too_many_values``.
        BodyTimeoutError
        """
        if self._complete:
            # After the body the next message reports that the client disconnected, so it has no
            # time limit.
            return await self._receive()
        self._refuse_above_limit(self._announced)
        message = await self._in_time()
        self.size += len(message.get("body", b""))
        self._refuse_above_limit(self.size)
        if self.max_commas is not None:
            self.commas += message.get("body", b"").count(b",")
            if self.commas > self.max_commas:
                raise BodyTooLargeError(
                    f"The body has more than {self.max_commas:,} values.",
                    code="body.too_many_values",
                )
        self._complete = not message.get("more_body", False)
        return message

    async def _in_time(self) -> Message:
        left_s = self._pace.left_s(self.size, self._waited_s)
        before = self._clock()
        try:
            with anyio.fail_after(left_s):
                message = await self._receive()
        except TimeoutError as error:
            raise self._too_slow() from error
        self._waited_s += self._clock() - before
        size = self.size + len(message.get("body", b""))
        if message.get("more_body", False) and self._pace.left_s(size, self._waited_s) <= 0:
            raise self._too_slow()
        return message

    def _refuse_above_limit(self, size: int) -> None:
        if size > self.limit:
            raise BodyTooLargeError(f"The body is over the limit of {self.limit} bytes.")

    def _too_slow(self) -> BodyTimeoutError:
        return BodyTimeoutError(
            f"No byte came for {self._pace.idle_s:g} seconds, or on average fewer than "
            f"{self._pace.min_bytes_per_s:g} a second."
        )


class BodyLimits:
    """ASGI middleware that gives every route an `ArrivingBody` to read from.

    Parameters
    ----------
    app : ASGI application
    pace : Pace
    """

    def __init__(self, app: ASGIApp, pace: Pace) -> None:
        self.app = app
        self.pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request whose body is an `ArrivingBody`."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length")
        body = ArrivingBody(receive, None if length is None else int(length), self.pace)
        scope[_KEY] = body
        await self.app(scope, body.receive, send)


def arriving(request: Request) -> ArrivingBody:
    """Return the body of a request; the route may raise its limit before reading it."""
    body: ArrivingBody = request.scope[_KEY]
    return body


# Replaces the framework's parsing on routes that are called thousands of times in a row: the
# framework parses each parameter separately, which takes as long as the rest of its work on a
# request.


M = TypeVar("M", bound=BaseModel)


def asked(model: type[M], where: Literal["path", "query"], values: Mapping[str, Any]) -> M:
    """Return the validated path or query parameters of a request.

    Raises
    ------
    RequestValidationError
        If a parameter is invalid, as raised by the framework.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise RequestValidationError(
            [{**fault, "loc": (where, *fault["loc"])} for fault in faults]
        ) from error


def described(model: type[BaseModel], where: Literal["path", "query"]) -> list[dict[str, Any]]:
    """Return the OpenAPI descriptions of the parameters in a model."""
    schema = model.model_json_schema()
    descriptions = []
    for name, property_ in schema["properties"].items():
        described = {"name": name, "in": where, "required": name in schema.get("required", ())}
        # The framework's descriptions contain no default that is null.
        described["schema"] = {
            key: value for key, value in property_.items() if key != "default" or value is not None
        }
        if "description" in property_:
            described["description"] = property_["description"]
        descriptions.append(described)
    return descriptions


class ReadBody(BaseModel):
    """A response body whose fields are attributes of a use case's result.

    `validation_alias` names the attribute of a field with another name.
    """

    model_config = ConfigDict(from_attributes=True, validate_by_alias=True, validate_by_name=True)


REFERENCE: Final = "#/components/schemas/{model}"


def described_body(model: type) -> dict[str, Any]:
    """Return the OpenAPI description of a body that the route reads itself."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

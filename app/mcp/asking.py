"""The server's API, as tools ask it: with the credentials of whoever asked the tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import httpx
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, TypeAdapter, ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

T = TypeVar("T")

# A question about a session replays it, which may take a minute of a large one.
TIMEOUT: Final = httpx.Timeout(10, read=120)
# The headers of whoever asks that are those of what is asked for them.
_PASSED_ON: Final = ("authorization", "paceline-project")
# Faults of a refusal that are told.
_FAULTS: Final = 5


class _Fault(BaseModel):
    code: str
    message: str
    column: str | None = None


class _Problem(BaseModel):
    """What the server says of a request that it refuses."""

    code: str
    detail: str
    faults: list[_Fault] = []


@dataclass(frozen=True, slots=True)
class Asked:
    """Where tools ask: the lifespan's value of a server of tools.

    Parameters
    ----------
    client : AsyncClient
        To the server's API.
    address : str
        The server's, as links name it.
    """

    client: httpx.AsyncClient
    address: str


Ctx = Context[Asked, Any]


@dataclass(frozen=True, slots=True)
class Api:
    """The API for one call of a tool."""

    asked: Asked
    headers: Mapping[str, str]

    async def get(self, kind: type[T], *path: str, **parameters: str | int | None) -> T:
        """Return what a path gives, as `kind`; path segments are escaped."""
        given = {name.rstrip("_"): value for name, value in parameters.items() if value is not None}
        return await self._request("GET", kind, path, params=given)

    async def text(self, *path: str) -> bytes:
        """Return what a path of the API gives, as it is."""
        return (await self._answer("GET", f"/api/v1/{_joined(path)}")).content

    async def page(self, address: str) -> bytes:
        """Return what a path outside of the API gives."""
        return (await self._answer("GET", address)).content

    async def post(self, kind: type[T], body: object, *path: str) -> T:
        """Send a body to a path and return the answer as `kind`."""
        return await self._request("POST", kind, path, json=body)

    def link(self, *path: str) -> str:
        """Return the address of a page."""
        return f"{self.asked.address}/{_joined(path)}"

    async def _request(self, method: str, kind: type[T], path: Sequence[str], **how: object) -> T:
        answer = await self._answer(method, f"/api/v1/{_joined(path)}", **how)
        try:
            return TypeAdapter(kind).validate_json(answer.content)
        except ValidationError as error:
            message = "the server answers what this version does not read [server.not_paceline]"
            raise ToolError(message) from error

    async def _answer(self, method: str, address: str, **how: object) -> httpx.Response:
        try:
            answer = await self.asked.client.request(
                method,
                address,
                headers=dict(self.headers),
                **how,  # type: ignore[arg-type]
            )
        except httpx.TimeoutException as error:
            message = "the server did not answer in time [server.timeout]"
            raise ToolError(message) from error
        except httpx.HTTPError as error:
            message = f"there is no server at {self.asked.address}: {error} [server.unreachable]"
            raise ToolError(message) from error
        if not answer.is_success:
            raise ToolError(_refusal(answer))
        return answer


def _refusal(answer: httpx.Response) -> str:
    try:
        problem = _Problem.model_validate_json(answer.content)
    except ValidationError:
        return f"the server answers {answer.status_code} [server.not_paceline]"
    said = [f"{problem.detail} [{problem.code}]"]
    for fault in problem.faults[:_FAULTS]:
        place = f"{fault.column}: " if fault.column else ""
        said.append(f"{place}{fault.message} [{fault.code}]")
    return "; ".join(said)


def api_of(ctx: Ctx) -> Api:
    """Return the API with the credentials of the request that calls the tool."""
    context = ctx.request_context
    request: Request | None = getattr(context, "request", None)
    passed = {} if request is None else request.headers
    headers = {name: passed[name] for name in _PASSED_ON if name in passed}
    return Api(context.lifespan_context, headers)


def _joined(path: Sequence[str]) -> str:
    return "/".join(quote(part, safe="") for part in path)

"""API of tensor-parallel groups: advice, the control loop of a training job, the switch."""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import Callable, Iterator
from typing import Annotated, Final, TypeVar

import anyio
from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel

from app.access.guard import RequestContainer, api_router
from app.analysis.mitigation.tensor.advice import advise
from app.analysis.mitigation.tensor.document import MitigationDocument
from app.errors import BodyTooLargeError, BusyError, InvalidTensorError
from app.platform.container import Container
from app.platform.database.states import TensorMode
from app.tensor.groups import Switch
from app.tensor.measured import read_text
from app.tensor.report import Received, receive_timings
from app.tensor.spec import (
    GROUP_NAME,
    MOST_ATTEMPT,
    WrittenAck,
    WrittenMitigation,
    WrittenSwitch,
    WrittenTimings,
    parse_ack,
    parse_problem,
    parse_switch,
    parse_timings,
)
from app.tensor.versions import (
    OfferedPlan,
    Switched,
    acknowledge,
    newer_plan,
    read_switch,
    switch_plans,
)
from app.web.bodies import REFERENCE, described_body

# Limit of a body: a thousand ranks with a thousand samples of each cost take a tenth of it.
MOST_BODY_BYTES: Final = 1024 * 1024


async def read_body(request: Request) -> object:
    """Return the document in the body of a request, YAML or JSON.

    Raises
    ------
    BodyTooLargeError
        The body is larger than 1 MiB.
    InvalidTensorError
        The body is neither YAML nor JSON.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BODY_BYTES:
            raise BodyTooLargeError(f"The body has at most {MOST_BODY_BYTES} bytes.")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: {error.reason}"
        raise InvalidTensorError(message, code="tensor.malformed") from error
    return read_text(text, "the body")


EXAMPLE: Final = {
    "times_s": [8.0, 1.0, 1.0, 1.0],
    "matmul_s": [7.6, 0.8, 0.8, 0.8],
    "columns": 1024,
    "accuracy_budget": 0.25,
    "costs": {"communicate": [[256, 0.03], [512, 0.05]]},
}


def advice_router() -> APIRouter:
    """Return the router of the advice on tensor-parallel groups."""
    routes = api_router("tensor parallelism", "/api/v1/mitigation")

    @routes.post(
        "/plan",
        summary="Plan the work of a tensor-parallel group with stragglers",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {"$ref": REFERENCE.format(model=WrittenMitigation.__name__)},
                        "example": EXAMPLE,
                    }
                },
            }
        },
    )
    def post_plan(body: Annotated[object, Depends(read_body)]) -> MitigationDocument:
        """Return every method of shedding work, best first; nothing is stored.

        The answer equals the output of ``paceline mitigate``; the body may also be YAML.
        """
        return advise(parse_problem(body))

    return routes


# Interval at which a waiting request reads the database, since another process may have stored the
# report.
LOOK_EVERY_S: Final = 1.0
MOST_WAITING: Final = 2000
_READERS: Final = 2

T = TypeVar("T")
# Key of a group: project id, job and group.
Key = tuple[int, str, str]


class Waiting:
    """Requests that wait for newer plans; used on one event loop, woken from any thread."""

    def __init__(self) -> None:
        self._events: dict[Key, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._closed = False
        self._readers = CapacityLimiter(_READERS)

    def changed(self, key: Key) -> None:
        """Wake the requests that wait for a group."""
        if self._loop is not None and self._count:
            self._loop.call_soon_threadsafe(self._wake, key)

    def close_soon(self) -> None:
        """Answer all waiting requests, and answer later ones without waiting."""
        self._closed = True

        def wake_all() -> None:
            for key in self._events:
                self._wake(key)

        if self._loop is not None:
            self._loop.call_soon_threadsafe(wake_all)

    async def until(self, key: Key, wait_s: float, read: Callable[[], T | None]) -> T | None:
        """Return the first result of `read` that is not None; None after `wait_s` seconds.

        Raises
        ------
        BusyError
            Too many requests wait.
        """
        if self._count >= MOST_WAITING:
            raise BusyError(f"{MOST_WAITING} requests wait for plans already.")
        self._loop = asyncio.get_running_loop()
        deadline = self._loop.time() + wait_s
        with self._event(key) as event:
            while True:
                event.clear()
                value = await anyio.to_thread.run_sync(read, limiter=self._readers)
                left_s = deadline - self._loop.time()
                if value is not None or left_s <= 0 or self._closed:
                    return value
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), min(left_s, LOOK_EVERY_S))

    @contextlib.contextmanager
    def _event(self, key: Key) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._events.setdefault(key, set()).add(event)
        self._count += 1
        try:
            yield event
        finally:
            self._count -= 1
            self._events[key].discard(event)
            if not self._events[key]:
                del self._events[key]

    def _wake(self, key: Key) -> None:
        for event in self._events.get(key, ()):
            event.set()


async def waiting_of(request: Request) -> Waiting:
    """Return the waiting requests of the application."""
    waiting: Waiting = request.app.state.waiting
    return waiting


Waits = Annotated[Waiting, Depends(waiting_of)]


LONGEST_WAIT_S: Final = 30.0

GroupName = Annotated[str, Path(pattern=f"^{GROUP_NAME}$")]
Attempt = Annotated[int, Query(ge=0, le=MOST_ATTEMPT)]
Body = Annotated[object, Depends(read_body)]


def router() -> APIRouter:
    """Return the router of the control loop of tensor-parallel groups."""
    routes = api_router("tensor parallelism", "/api/v1/jobs/{job}/tp/{group}")

    @routes.post(
        "/timings",
        summary="Report times of a tensor-parallel group",
        status_code=http.HTTPStatus.ACCEPTED,
        openapi_extra=described_body(WrittenTimings),
    )
    def post_timings(
        container: RequestContainer, waiting: Waits, job: str, group: GroupName, body: Body
    ) -> Received:
        """Store a group's times, and return the newest plan that follows from them.

        All times of a report must be of steps under one plan, or without a plan.
        """
        received = receive_timings(container, job, group, parse_timings(body))
        waiting.changed((container.project_id, job, group))
        return received

    @routes.get(
        "/plan",
        summary="The plan of a tensor-parallel group, once it is newer",
        response_model=OfferedPlan,
        responses={204: {"description": "None is newer, after the wait"}},
    )
    async def get_plan(  # noqa: PLR0913, PLR0917 - what is asked for
        container: RequestContainer,
        waiting: Waits,
        job: str,
        group: GroupName,
        attempt: Attempt,
        after: Annotated[int, Query(ge=0, le=MOST_ATTEMPT)] = 0,
        wait_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S)] = 0.0,
    ) -> OfferedPlan | Response:
        """Return the version after `after`, waiting up to `wait_s` seconds; else nothing."""

        def read() -> OfferedPlan | None:
            with container.reading() as tx:
                return newer_plan(tx, job, group, attempt, after)

        plan = await waiting.until((container.project_id, job, group), wait_s, read)
        return plan or Response(status_code=http.HTTPStatus.NO_CONTENT)

    @routes.post(
        "/plan/{version}/ack",
        summary="Say whether a plan was applied",
        status_code=http.HTTPStatus.NO_CONTENT,
        openapi_extra=described_body(WrittenAck),
    )
    def post_ack(  # noqa: PLR0913, PLR0917 - what is asked for
        container: RequestContainer,
        waiting: Waits,
        job: str,
        group: GroupName,
        version: Annotated[int, Path(ge=1, le=MOST_ATTEMPT)],
        body: Body,
    ) -> None:
        """Record which ranks applied a version at a step boundary, or that a rank could not."""
        acknowledge(container, job, group, version, parse_ack(body))
        waiting.changed((container.project_id, job, group))

    return routes


class SwitchBody(BaseModel):
    """Current switch of a job's plans, and earlier switches with their authors, newest first."""

    mode: TensorMode
    max_gamma: float | None
    expires_after_steps: int
    history: list[Switched]


def switch_router() -> APIRouter:
    """Return the router of the switch of a job's plans."""
    routes = api_router("tensor parallelism", "/api/v1/jobs/{job}/tp/mode")

    def read(container: Container, job: str) -> SwitchBody:
        with container.reading() as tx:
            switch, switched = read_switch(tx, job)
        return SwitchBody(
            mode=switch.mode,
            max_gamma=switch.max_gamma,
            expires_after_steps=switch.expires_after_steps,
            history=list(switched),
        )

    @routes.get("", summary="Whether a job's tensor-parallel plans are applied")
    def get_mode(container: RequestContainer, job: str) -> SwitchBody:
        return read(container, job)

    @routes.put(
        "",
        summary="Switch a job's tensor-parallel plans",
        openapi_extra=described_body(WrittenSwitch),
    )
    def put_mode(
        container: RequestContainer,
        waiting: Waits,
        job: str,
        body: Annotated[object, Depends(read_body)],
    ) -> SwitchBody:
        """Switch a job's plans to advice, or to application if the job's own code allows it.

        `max_gamma` can only lower the accuracy budget of the job's own code.
        """
        wanted = parse_switch(body)
        switch = Switch(TensorMode(wanted.mode), wanted.max_gamma, wanted.expires_after_steps)
        for group in switch_plans(container, job, switch, wanted.by):
            waiting.changed((container.project_id, job, group))
        return read(container, job)

    return routes

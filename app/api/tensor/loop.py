"""The loop of a training job: it reports times, gets plans, and reports their outcome."""

from __future__ import annotations

import http
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query, Response

from app.api.frame.docs import described_body
from app.api.frame.routers import api_router
from app.api.tensor.bodies import read_body
from app.api.tensor.waiting import Waits
from app.auth.here import Here
from app.inputs.tensor.timings import (
    GROUP_NAME,
    MOST_ATTEMPT,
    WrittenAck,
    WrittenTimings,
    parse_ack,
    parse_timings,
)
from app.services.tensor.offers import acknowledge, newer_plan
from app.services.tensor.report import Received, receive_timings
from app.services.tensor.versions import OfferedPlan

LONGEST_WAIT_S: Final = 30.0

GroupName = Annotated[str, Path(pattern=f"^{GROUP_NAME}$")]
Attempt = Annotated[int, Query(ge=0, le=MOST_ATTEMPT)]
Body = Annotated[object, Depends(read_body)]


def router() -> APIRouter:
    """Return the routes."""
    routes = api_router("tensor parallelism", "/api/v1/jobs/{job}/tp/{group}")

    @routes.post(
        "/timings",
        summary="Report times of a tensor-parallel group",
        status_code=http.HTTPStatus.ACCEPTED,
        openapi_extra=described_body(WrittenTimings),
    )
    def post_timings(
        container: Here, waiting: Waits, job: str, group: GroupName, body: Body
    ) -> Received:
        """Store the times, and answer with the newest plan that they lead to.

        All of them are of steps under one plan, or none.
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
        container: Here,
        waiting: Waits,
        job: str,
        group: GroupName,
        attempt: Attempt,
        after: Annotated[int, Query(ge=0, le=MOST_ATTEMPT)] = 0,
        wait_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S)] = 0.0,
    ) -> OfferedPlan | Response:
        """Wait up to `wait_s` for a version after `after`; without it, answer at once."""

        def read() -> OfferedPlan | None:
            with container.reading() as tx:
                return newer_plan(tx, job, group, attempt, after)

        found = await waiting.until((container.project_id, job, group), wait_s, read)
        return found or Response(status_code=http.HTTPStatus.NO_CONTENT)

    @routes.post(
        "/plan/{version}/ack",
        summary="Say whether a plan was applied",
        status_code=http.HTTPStatus.NO_CONTENT,
        openapi_extra=described_body(WrittenAck),
    )
    def post_ack(  # noqa: PLR0913, PLR0917 - what is asked for
        container: Here,
        waiting: Waits,
        job: str,
        group: GroupName,
        version: Annotated[int, Path(ge=1, le=MOST_ATTEMPT)],
        body: Body,
    ) -> None:
        """Note which ranks applied a version at a step boundary, or that one could not."""
        acknowledge(container, job, group, version, parse_ack(body))
        waiting.changed((container.project_id, job, group))

    return routes

"""API of plans: pipeline templates for heterogeneous clusters, found by a worker."""

from __future__ import annotations

import http
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from app.access.guard import RequestContainer, api_router
from app.analysis.documents import UnreadableDocumentError, load_json
from app.analysis.planning.document import PlanDocument, SimulatedIteration
from app.analysis.planning.job.document import JobDocument
from app.errors import Fault, InvalidSpecError
from app.plans.of_session import plan_session
from app.plans.read import PLANS, PlanSummary, PlanView, get_plan
from app.plans.requests import Submitted, cancel_plan, submit_plan
from app.plans.specs.spec import WrittenRequest, read_request, unreadable_spec
from app.platform.container import Container
from app.platform.database.states import PlanState
from app.web.addresses import server_address
from app.web.bodies import REFERENCE
from app.web.lists import read

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000

EXAMPLE: Final = {
    "name": "two kinds of GPUs",
    "method": "optimal",
    "objective": "simulated",
    "time_limit_s": 60,
    "spec": {
        "model": {"layers": [{"forward_ms": 4.0, "backward_ms": 8.0}] * 4},
        "devices": [
            {"type": "a100", "nodes": 1, "gpus_per_node": 2, "speed": 2.0},
            {"type": "v100", "nodes": 1, "gpus_per_node": 2, "speed": 1.0},
        ],
        "microbatches": 16,
    },
}


class SubmittedBody(BaseModel):
    """Identity, address and current state of a submitted plan."""

    plan: uuid.UUID
    url: str
    state: PlanState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDetail(PlanSummary):
    """A plan with its specification and its template.

    `plan` has the schema paceline.plan/1 once the state is ``planned``. If the state is
    ``infeasible``, `faults` are the nearest feasible changes. While the state is ``queued``,
    `ahead` is the number of tasks that workers take first.
    """

    spec: Mapping[str, Any]
    faults: tuple[Fault, ...]
    ahead: int
    plan: PlanDocument | JobDocument | None
    timeline: SimulatedIteration | None


class PlanListBody(BaseModel):
    """Plans, newest first."""

    plans: list[PlanSummary]


async def _body(request: Request) -> object:
    """Return the JSON document in the body of a request."""
    data = await request.body()
    try:
        return load_json(data.decode())
    except UnreadableDocumentError as error:
        raise unreadable_spec(error, "the body") from error
    except ValueError as error:
        raise InvalidSpecError(f"The body is not JSON: {error}.", code="spec.malformed") from error


def router() -> APIRouter:
    """Return the routes of plans."""
    routes = api_router("plans", "/api/v1/plans")

    @routes.post(
        "",
        summary="Plan a pipeline for a cluster",
        status_code=http.HTTPStatus.ACCEPTED,
        responses={200: {"model": SubmittedBody, "description": "Asked for before"}},
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {"$ref": REFERENCE.format(model=WrittenRequest.__name__)},
                        "example": EXAMPLE,
                    }
                },
            }
        },
    )
    def post_plan(
        container: RequestContainer,
        request: Request,
        response: Response,
        body: Annotated[object, Depends(_body)],
    ) -> SubmittedBody:
        """Store a plan, whose template a worker then searches for.

        `spec` is a mapping, or a text of YAML or JSON. An equal request returns the same plan; a
        plan that was canceled or that failed is planned again.
        """
        submitted = submit_plan(container, read_request(body))
        return _submitted(container, request, response, submitted)

    @routes.post(
        "/of-session/{session}",
        summary="Plan the whole job that a session shows",
        status_code=http.HTTPStatus.ACCEPTED,
        responses={200: {"model": SubmittedBody, "description": "Asked for before"}},
    )
    def post_plan_of_session(
        container: RequestContainer, request: Request, response: Response, session: uuid.UUID
    ) -> SubmittedBody:
        """Store a plan of a session's measured job, to compare the plan with the running job.

        If required metadata are missing, the request is refused with their names:
        ``plan.metadata_missing``.
        """
        submitted = plan_session(container, session)
        return _submitted(container, request, response, submitted)

    @routes.get("", summary="Plans, newest first")
    def get_plans(
        container: RequestContainer,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    ) -> PlanListBody:
        with container.reading() as tx:
            return PlanListBody(plans=read(tx, PLANS, limit=limit))

    @routes.get(
        "/{plan}",
        summary="A plan: its state, its specification, its template",
        response_model_exclude_defaults=True,
    )
    def get_one(container: RequestContainer, plan: uuid.UUID) -> PlanDetail:
        return _detail(_read(container, plan))

    @routes.post(
        "/{plan}/cancel",
        summary="End a plan that is not ready",
        response_model_exclude_defaults=True,
    )
    def cancel(container: RequestContainer, plan: uuid.UUID) -> PlanDetail:
        """Cancel a plan at once; canceling it again has no effect."""
        cancel_plan(container, plan)
        return _detail(_read(container, plan))

    return routes


def _submitted(
    container: Container, request: Request, response: Response, submitted: Submitted
) -> SubmittedBody:
    if not submitted.created:
        response.status_code = http.HTTPStatus.OK
    response.headers["Location"] = f"/api/v1/plans/{submitted.id}"
    base = server_address(request, container.settings) + container.pages_at
    return SubmittedBody(
        plan=submitted.id, url=f"{base}/plans/{submitted.id}", state=submitted.state
    )


def _read(container: Container, plan: uuid.UUID) -> PlanView:
    with container.reading() as tx:
        return get_plan(tx, plan)


def _detail(view: PlanView) -> PlanDetail:
    return PlanDetail(
        **{name: getattr(view.row, name) for name in PLANS.columns},
        spec=view.spec,
        faults=view.faults,
        ahead=view.ahead,
        plan=None if view.result is None else view.result.plan,
        timeline=None if view.result is None else view.result.timeline,
    )

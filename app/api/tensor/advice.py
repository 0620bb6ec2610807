"""Advice on a tensor-parallel group whose times come with the request."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends

from app.analysis.mitigation.tensor.advise import advise
from app.analysis.mitigation.tensor.document import MitigationDocument
from app.api.frame.docs import REFERENCE
from app.api.frame.routers import api_router
from app.api.tensor.bodies import read_body
from app.inputs.tensor.spec import WrittenMitigation, parse_problem

EXAMPLE: Final = {
    "times_s": [8.0, 1.0, 1.0, 1.0],
    "matmul_s": [7.6, 0.8, 0.8, 0.8],
    "columns": 1024,
    "accuracy_budget": 0.25,
    "costs": {"communicate": [[256, 0.03], [512, 0.05]]},
}


def router() -> APIRouter:
    """Return the route."""
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
        """Return every way to shed work, best first; nothing is stored.

        The same as ``paceline mitigate`` prints; the body may be YAML as well.
        """
        return advise(parse_problem(body))

    return routes

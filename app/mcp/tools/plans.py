"""Pipeline templates for clusters of different devices."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final
from uuid import UUID

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from app.db.states import PlanState
from app.mcp.answers import Answer, Value
from app.mcp.asking import Ctx, api_of

_TIME_LIMIT_S: Final = 30
_POLL_S: Final = 0.5
# A worker may have other plans to look for first.
_POLLS: Final = 180


class _Submitted(BaseModel):
    plan: UUID


class _Change(BaseModel):
    code: str
    message: str


class _Plan(BaseModel):
    state: PlanState
    reason: str | None
    gap: float | None
    iteration_ms: float | None
    faults: list[_Change]


async def plan(
    ctx: Ctx,
    specification: Annotated[
        str,
        Field(
            max_length=60_000, description="YAML or JSON: model, devices, batch; see search_docs"
        ),
    ],
) -> str:
    """Search the pipeline template that executes fastest on a cluster; takes up to a minute."""
    api = api_of(ctx)
    asked = {"spec": specification, "time_limit_s": _TIME_LIMIT_S}
    submitted = await api.post(_Submitted, asked, "plans")
    for _ in range(_POLLS):
        found = await api.get(_Plan, "plans", str(submitted.plan))
        if found.state not in PlanState.UNDERWAY:
            break
        await asyncio.sleep(_POLL_S)
    else:
        message = f"the plan still waits for a worker: {api.link('plans', str(submitted.plan))}"
        raise ToolError(message)
    facts: dict[str, Value] = {
        "state": found.state,
        "iteration_time_ms": found.iteration_ms,
        "gap": found.gap,
        "reason": found.reason,
    }
    changes: list[dict[str, Value]] = [
        {"code": fault.code, "what_would_help": fault.message} for fault in found.faults
    ]
    return Answer(facts, changes, api.link("plans", str(submitted.plan))).text()

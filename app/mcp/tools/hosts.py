"""Hosts by what they cost."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from app.mcp.answers import Answer, Value
from app.mcp.asking import Ctx, api_of
from app.services.hosts.listed import Show


class _Host(BaseModel):
    host: str
    cost_gpu_hours: float
    blamed: bool
    slow_sessions: int
    slowdown_now: float
    gpus: list[str]
    last_seen: datetime


class _Hosts(BaseModel):
    hosts: list[_Host]
    total: int


async def hosts(
    ctx: Ctx,
    words: Annotated[str, Field(max_length=200, description="In a host, a job or a cause")] = "",
    show: Annotated[Show, Field(description="Only blamed or repaired ones")] = Show.ALL,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> str:
    """List hosts, the one that cost most GPU-hours first, with the GPUs that causes name."""
    api = api_of(ctx)
    found = await api.get(_Hosts, "hosts", q=words, show=show, limit=limit)
    rows: list[dict[str, Value]] = [
        {**host.model_dump(), "link": api.link("hosts", host.host)} for host in found.hosts
    ]
    return Answer({"hosts": found.total}, rows, api.link("hosts")).text()

"""Jobs: how each stands, and one of them over time."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from app.api.jobs import JobBody, JobListBody
from app.mcp.answers import Answer, Value
from app.mcp.asking import Api, Ctx, api_of
from app.services.fleet.standing import Show
from app.services.history.axis import JobAxis

# Of a job over time the latest.
_SESSIONS: Final = 12
_CHANGES: Final = 6

JobName = Annotated[str, Field(min_length=1, max_length=200, description="Name of a job")]


async def list_jobs(
    ctx: Ctx,
    words: Annotated[str, Field(max_length=200, description="In a name, label or cause")] = "",
    show: Annotated[Show, Field(description="`slow`, or `none`: without a verdict")] = Show.ALL,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> str:
    """List jobs, the one that loses most GPU-hours first, with the verdict of each."""
    api = api_of(ctx)
    found = await api.get(JobListBody, "jobs", q=words, show=show, limit=limit)
    rows = [_row(api, job) for job in found.jobs]
    return Answer({"jobs": found.total}, rows, api.link()).text()


async def get_job(ctx: Ctx, job: JobName) -> str:
    """Read a job over time: its latest sessions, and the changes that lasted."""
    api = api_of(ctx)
    found = await api.get(JobAxis, "jobs", job, "history")
    sessions: list[dict[str, Value]] = [
        {
            "session": point.number,
            "id": point.id,
            "received_at": point.received_at,
            "slowdown": point.slowdown,
            "step_time_s": point.step_time_s,
            "gpu_hours_lost_an_hour": point.gpu_hours_lost_per_hour,
            "cause": point.cause,
        }
        for point in found.points[-_SESSIONS:]
    ]
    changes: list[Value] = [
        {
            "of": change.measure,
            "at": change.at,
            "before": change.before,
            "after": change.after,
            "cause": change.cause,
            "mark": change.mark,
        }
        for change in found.changes[:_CHANGES]
    ]
    facts: dict[str, Value] = {"job": job, "sessions": len(found.points), "changes": changes}
    return Answer(facts, sessions[::-1], api.link("jobs", job)).text()


def _row(api: Api, job: JobBody) -> dict[str, Value]:
    told, urgent = job.told, job.incident
    headline = told.headline
    return {
        "job": job.name,
        "verdict": told.reason if headline is None else headline.sentence,
        "slowdown": None if headline is None else headline.slowdown,
        "gpu_hours_lost_an_hour": None if headline is None else headline.gpu_hours_lost_per_hour,
        "state": told.state,
        "session": told.id,
        "received_at": told.received_at,
        "incident": None if urgent is None else urgent.id,
        "labels": job.labels or None,
        "finished": job.finished or None,
        "link": api.link("jobs", job.name),
    }

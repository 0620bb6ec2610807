"""Sessions: read, explained, asked what-if questions, and held side by side."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from app.api.sessions.read import SessionBody
from app.db.documents import open_report
from app.errors import PacelineError
from app.inputs.sessions.question import WrittenQuestion
from app.mcp.answers import Answer, Value
from app.mcp.asking import Ctx, api_of
from app.services.compare.changes import CauseChange
from app.services.compare.step_times import Difference

# What a report has many of.
_FIXES: Final = 5
_SENTENCES: Final = 3

SessionId = Annotated[UUID, Field(description="Id of a session, as lists and links have it")]


class _Session(SessionBody):
    meta: dict[str, Any]
    has_report: bool


class _Answered(BaseModel):
    step_time_s: float
    simulated_step_time_s: float
    gain: float
    slowdown: float


class _Comparison(BaseModel):
    step_times: Difference | None
    causes: list[CauseChange]


async def get_session(ctx: Ctx, session: SessionId) -> str:
    """Read a session: state, sizes, the sentence of its verdict, and why there is none."""
    api = api_of(ctx)
    found = await api.get(_Session, "sessions", str(session))
    headline = found.headline
    facts: dict[str, Value] = {
        "job": found.job,
        "session": found.session,
        "state": found.state,
        "received_at": found.received_at,
        "sizes": found.sizes.model_dump(),
        "steps": found.steps,
        "verdict": None if headline is None else headline.sentence,
        "slowdown": None if headline is None else headline.slowdown,
        "gpu_hours_lost_an_hour": None if headline is None else headline.gpu_hours_lost_per_hour,
        "reason": found.reason,
        "reason_code": found.reason_code,
        "labels": found.meta.get("labels"),
        "has_report": found.has_report,
    }
    return Answer(facts, link=api.link("sessions", str(session))).text()


async def explain_verdict(ctx: Ctx, session: SessionId) -> str:
    """Explain a session's verdict: its causes with place, share and evidence, and fixes by gain."""
    api = api_of(ctx)
    try:
        report = open_report(await api.text("sessions", str(session), "report"))
    except PacelineError as error:
        raise ToolError(f"{error} [{error.code}]") from error
    verdict = report.verdict
    causes: list[dict[str, Value]] = [
        {
            "cause": cause.cause,
            "share_of_lost_time": cause.contribution,
            "cost_s_a_step": cause.cost_s,
            "confidence": cause.confidence,
            "evidence": list(cause.evidence[:_SENTENCES]),
        }
        for cause in report.causes
    ]
    fixes: list[dict[str, Value]] = [
        {
            "fix": fix.title,
            "predicted_gain": fix.predicted_gain,
            "at_most": fix.at_most or None,
            "how_replayed": fix.detail,
        }
        for fix in report.recommendations[:_FIXES]
    ]
    facts: dict[str, Value] = {
        "verdict": verdict.sentence,
        "slowdown": report.headline.slowdown,
        "gpu_hours_lost_an_hour": report.gpu_hours_lost_per_hour,
        "replay_differs_by": report.fidelity.discrepancy,
    }
    return Answer(facts, [*causes, *fixes], api.link("sessions", str(session))).text()


async def what_if(ctx: Ctx, session: SessionId, question: WrittenQuestion) -> str:
    """Replay a session with changed durations: the step time, and the gain as a share of a step.

    Every operation takes its `base` duration, `recorded` or `ideal`, unless one of `changes`
    selects it: then `duration` (`recorded`, `ideal` or `peers`) times `scale`.
    """
    api = api_of(ctx)
    asked = question.model_dump(mode="json", exclude_unset=True, by_alias=True)
    found = await api.post(_Answered, asked, "sessions", str(session), "what-if")
    return Answer(found.model_dump(), link=api.link("sessions", str(session))).text()


async def compare(ctx: Ctx, before: SessionId, after: SessionId) -> str:
    """Hold two sessions side by side: step times with a test, and causes that came or went."""
    api = api_of(ctx)
    found = await api.get(_Comparison, "sessions", str(before), "compare", str(after))
    times = found.step_times
    facts: dict[str, Value] = {}
    if times is not None:
        facts = {
            "step_time_before_s": times.before_s,
            "step_time_after_s": times.after_s,
            "change": times.change,
            "p": times.p,
        }
    causes: list[dict[str, Value]] = [
        {
            "cause": cause.cause,
            "share_before": cause.before,
            "share_after": cause.after,
            "change": cause.change,
        }
        for cause in found.causes
    ]
    return Answer(facts, causes, f"{api.link('compare')}?a={before}&b={after}").text()

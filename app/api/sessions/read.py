"""Sessions: their states, reports, heatmaps and timelines."""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from app.analysis.budget.document import Shares
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.diagnosis.verdict import Level
from app.analysis.json_text import plain
from app.analysis.report.heatmaps import encode_heatmap
from app.analysis.report.timeline import replayed_timeline
from app.api.frame.routers import api_router
from app.api.sessions.report_schema import reference
from app.auth.here import Here
from app.db.states import SessionState
from app.services.sessions.read import (
    IntakeView,
    SessionRow,
    SessionView,
    WorkStatus,
    get_session,
    list_sessions,
)
from app.services.sessions.replays.prepared import prepared_session
from app.services.sessions.replays.timelines import perfetto_timeline, stored_trace
from app.services.sessions.reports import heatmap, report_json

if TYPE_CHECKING:
    from app.analysis.report.timeline import Lanes, Timeline
    from app.analysis.report.verdict import SessionVerdict, VerdictCause

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
# A row of a list has room for two.
LISTED_CAUSES: Final = 2

StateFilter = Annotated[
    SessionState | None,
    Query(description="Only sessions in this state."),
]
Step = Annotated[int, Query(description="A training step that was analyzed.")]
DpRanks = Annotated[
    list[int] | None, Query(description="Only these DP ranks; may be given several times.")
]


class SizesBody(BaseModel):
    """Parallelism of the job."""

    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    world: int


class HeadlineBody(BaseModel, extra="allow"):
    """What people are shown first: the sentence of the verdict, the slowdown, its causes.

    `kind` is `causes` where they are counted against the job without its causes, and `published`
    where `slowdown` is S. Without a verdict `slowdown` is null, and lost is what the named causes
    cost; null where none is named. `shares` say where the time goes, with a verdict or without.
    """

    sentence: str
    level: Level
    slowdown: float | None
    ci95: tuple[float, float] | None
    gpu_hours_lost: float | None
    gpu_hours_lost_per_hour: float | None
    kind: HeadlineKind | None
    shares: Shares | None


class SessionBody(BaseModel):
    """A session; the numbers of its verdict are null until there is one.

    `session` counts the sessions of a job from 1; `id` is the address. `slowdown`, `waste` and
    `gpu_hours_lost` are of the published S; what people are shown is in `headline`. What retention
    took away is gone since `trace_removed_at` and `report_removed_at`; it leaves `pinned` alone.
    """

    id: uuid.UUID
    job: str
    attempt: int
    session: int
    state: SessionState
    received_at: datetime
    state_changed_at: datetime
    sizes: SizesBody
    trace_format: str
    body_bytes: int
    operations: int
    steps: int
    reason_code: str | None
    reason: str | None
    pinned: bool
    trace_removed_at: datetime | None
    report_removed_at: datetime | None
    slowdown: float | None
    slowdown_ci95: tuple[float, float] | None
    waste: float | None
    gpu_hours_lost: float | None
    discrepancy: float | None
    headline: HeadlineBody | None


class SessionDetailBody(SessionBody):
    """A session with what its sender said and how its analysis stands.

    `intake` is null where it came in one body.
    """

    meta: dict[str, Any]
    reason_detail: dict[str, Any] | None
    work: WorkStatus | None
    intake: IntakeView | None
    has_report: bool


class SessionListBody(BaseModel):
    """Sessions, newest first."""

    sessions: list[SessionBody]


def router() -> APIRouter:
    """Return the routes that read sessions."""
    routes = api_router("sessions", "/api/v1/sessions")

    @routes.get("", summary="Sessions, newest first")
    def get_sessions(
        container: Here,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
        job: Annotated[str | None, Query(description="Only sessions of this job.")] = None,
        state: StateFilter = None,
    ) -> SessionListBody:
        with container.reading() as tx:
            rows = list_sessions(tx, limit, job, state)
        return SessionListBody(sessions=[session_body(row) for row in rows])

    @routes.get("/{session}", summary="State and coverage of a session")
    def get_one(container: Here, session: uuid.UUID) -> SessionDetailBody:
        with container.reading() as tx:
            view = get_session(tx, session, container.settings)
        return _detail(view)

    @routes.get(
        "/{session}/report",
        summary="The report, schema paceline.report/1",
        response_class=JSONResponse,
        response_model=None,
        responses={
            200: {
                "description": "What docs/report.md describes, as it was stored.",
                "content": {"application/json": {"schema": reference()}},
            }
        },
    )
    def get_report(container: Here, session: uuid.UUID) -> Response:
        with container.reading() as tx:
            text = report_json(tx, session)
        return Response(text, media_type="application/json")

    @routes.get(
        "/{session}/heatmaps",
        summary="Slowdown of each worker in a step",
        response_class=Response,
        responses={
            200: {
                "description": (
                    "[dp][pp] of little-endian uint16: slowdown × 10,000, at most 65,534. "
                    "The header X-Shape says `dp,pp`."
                ),
                "content": {"application/octet-stream": {}},
            }
        },
    )
    def get_heatmap(
        container: Here,
        session: uuid.UUID,
        step: Annotated[
            int | None, Query(description="A training step; without it the mean of all.")
        ] = None,
    ) -> Response:
        with container.reading() as tx:
            values = heatmap(tx, session, step)
        return Response(
            encode_heatmap(values),
            headers={"X-Shape": ",".join(str(size) for size in values.shape)},
            media_type="application/octet-stream",
        )

    @routes.get(
        "/{session}/timeline",
        summary="Recorded and ideal timeline of a step",
        response_class=JSONResponse,
        response_model=dict[str, Any],
    )
    def get_timeline(
        container: Here,
        session: uuid.UUID,
        step: Step,
        dp: DpRanks = None,
        format: Literal["perfetto", "lanes"] = "perfetto",  # noqa: A002 - name of the parameter
    ) -> Response:
        """Return a Chrome trace that Perfetto opens, or the same as columns (`format=lanes`)."""
        if format == "perfetto":
            with container.reading() as tx:
                stored = stored_trace(tx, session)
            # A whole step of a large job: never in memory as a whole.
            pieces = perfetto_timeline(stored, step, dp)
            return StreamingResponse(pieces, media_type="application/json")
        with prepared_session(container, session) as replayed:
            timeline = replayed_timeline(replayed, step, dp)
        content = timeline_columns(timeline)
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        return Response(text, media_type="application/json")

    return routes


def timeline_columns(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as JSON columns; times in nanoseconds since the step's start."""
    return {
        "step": timeline.step,
        "op_names": list(timeline.op_names),
        "recorded_s": timeline.recorded_s,
        "ideal_s": timeline.ideal_s,
        "recorded": _columns(timeline.recorded),
        "ideal": _columns(timeline.ideal),
    }


def _columns(lanes: Lanes) -> dict[str, list[Any]]:
    ratios = np.round(lanes.ratio, 4).tolist()
    return {
        "dp": lanes.dp.tolist(),
        "pp": lanes.pp.tolist(),
        "op": lanes.op.tolist(),
        "mb": lanes.mb.tolist(),
        "start_ns": np.rint(lanes.start_ns).astype(np.int64).tolist(),
        "begin_ns": np.rint(lanes.begin_ns).astype(np.int64).tolist(),
        "end_ns": np.rint(lanes.end_ns).astype(np.int64).tolist(),
        # JSON has no NaN; it is the only value that differs from itself
        "ratio": [ratio if ratio == ratio else None for ratio in ratios],  # noqa: PLR0124
    }


def session_body(row: SessionRow) -> SessionBody:
    """Return a session as lists have it."""
    return SessionBody(**_session(row))


def _session(row: SessionRow) -> dict[str, Any]:
    verdict = row.verdict
    published = verdict and verdict.published
    return {
        "id": row.id,
        "job": row.job,
        "attempt": row.attempt,
        "session": row.number,
        "state": row.state,
        "received_at": row.received_at,
        "state_changed_at": row.state_changed_at,
        "sizes": SizesBody(
            dp=row.dp, pp=row.pp, tp=row.tp, cp=row.cp, vpp=row.vpp, world=row.world
        ),
        "trace_format": row.trace_format,
        "body_bytes": row.body_bytes,
        "operations": row.operations,
        "steps": row.steps,
        "reason_code": row.reason_code,
        "reason": row.reason,
        "pinned": row.pinned,
        "trace_removed_at": row.trace_removed_at,
        "report_removed_at": row.report_removed_at,
        "slowdown": published and published.slowdown,
        "slowdown_ci95": published and published.ci95,
        "waste": published and published.waste,
        "gpu_hours_lost": published and published.gpu_hours_lost,
        "discrepancy": verdict and verdict.discrepancy,
        "headline": verdict and _headline(row, verdict),
    }


def _headline(row: SessionRow, verdict: SessionVerdict) -> HeadlineBody:
    shown, worst, measures = row.headline, verdict.worst[0], verdict.measures
    known = row.known
    return HeadlineBody.model_validate(
        {
            "sentence": verdict.sentence,
            "level": verdict.level,
            "slowdown": shown and shown.slowdown,
            "ci95": shown and shown.ci95,
            "gpu_hours_lost": known and known.gpu_hours_lost,
            "gpu_hours_lost_per_hour": row.lost_each_hour,
            "kind": shown and shown.kind,
            "shares": row.shares,
            "worst": {
                "dp": worst.dp,
                "pp": worst.pp,
                "rank": verdict.worst_rank,
                "host": worst.host,
                "guessed": worst.guessed,
                "slowdown": worst.slowdown,
            },
            "m_w": measures.m_w,
            "m_s": measures.m_s,
            "fb_correlation": measures.fb_correlation,
            "top_optype": verdict.top_optype,
            "causes": [_cause(cause) for cause in verdict.causes[:LISTED_CAUSES]],
            "sizes": plain(verdict.sizes),
        }
    )


def _cause(cause: VerdictCause) -> dict[str, object]:
    return {
        "cause": cause.cause,
        "contribution": cause.contribution,
        "cost_s": cause.cost_s,
        "confidence": cause.confidence,
        "evidence": cause.evidence,
        "views": plain(cause.views),
        "where": plain(cause.place),
        "runner_up": cause.runner_up,
        "host": cause.host,
        "gpus": plain(cause.gpus),
    }


def _detail(view: SessionView) -> SessionDetailBody:
    return SessionDetailBody(
        **_session(view.row),
        meta=dict(view.meta),
        reason_detail=None if view.reason_detail is None else dict(view.reason_detail),
        work=view.work,
        intake=view.intake,
        has_report=view.has_report,
    )

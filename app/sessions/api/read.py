"""Routes that read sessions: states, reports, heatmaps, timelines, what-if, comparisons."""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import APIRouter, Body, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from app.access.guard import RequestContainer, api_router
from app.analysis.budget.split import Shares
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.diagnosis.verdict import Level
from app.analysis.json_text import plain
from app.analysis.reference import Reference, members, summary
from app.analysis.report.charts import Lanes, Timeline, encode_heatmap, replayed_timeline
from app.analysis.report.document import Report
from app.analysis.report.session_verdict import SessionVerdict
from app.platform.database.states import SessionState
from app.sessions.compare import ArrivalChange, compare_sessions
from app.sessions.compare_steps import CauseChange, Difference, FieldChange
from app.sessions.models.reports import REPORT
from app.sessions.questions import WrittenQuestion
from app.sessions.read import (
    IntakeView,
    SessionRow,
    WorkStatus,
    get_session,
    heatmap,
    list_sessions,
    report_json,
)
from app.sessions.replays import answer_question, perfetto_timeline, prepared_session, stored_trace

NAME: Final = "Report"
_REFERENCE: Final = "#/components/schemas/{model}"


@cache
def report_schemas() -> dict[str, Any]:
    """Return the JSON Schemas of ``paceline.report/1`` by the name of their OpenAPI component.

    The parts of a report are named ``Report.Sizes`` and so on, since request bodies have types of
    the same names. Descriptions are the types' docstrings.
    """
    schema = REPORT.json_schema(ref_template=_REFERENCE.format(model=f"{NAME}.{{model}}"))
    parts = schema.pop("$defs")
    for kind in Reference((Report,)).types():
        described = parts.get(kind.__name__, schema)
        described["description"] = summary(kind)
        for member in members(kind):
            described["properties"][member.key]["description"] = member.text
    return {NAME: schema} | {f"{NAME}.{name}": part for name, part in parts.items()}


def reference() -> dict[str, str]:
    """Return the reference to the OpenAPI component of reports, for the schemas of routes."""
    return {"$ref": _REFERENCE.format(model=NAME)}


DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
# Limit of the causes of each session in a list.
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
    """Parallel sizes of the job."""

    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    world: int


class HeadlineBody(BaseModel, extra="allow"):
    """The summary shown first: the sentence of the verdict, the slowdown, its causes.

    `kind` is `causes` if the slowdown is relative to the job without its causes, and `published`
    if it is S. Without a verdict `slowdown` is null, and the lost time is the cost of the named
    causes, null if no cause is named. `shares` divide the time, with or without a verdict.
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
    """A session; the numbers of its verdict are null until it has a verdict.

    `session` numbers the sessions of a job from 1; `id` is the session's address. `slowdown`,
    `waste` and `gpu_hours_lost` refer to the published S; `headline` has the numbers that pages
    show. `trace_removed_at` and `report_removed_at` are the times at which retention deleted the
    trace and the report; it deletes nothing of a session with `pinned`.
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
    """A session with its metadata, its intake and the state of its analysis.

    `intake` is null if the session was received in one body.
    """

    meta: dict[str, Any]
    reason_detail: dict[str, Any] | None
    work: WorkStatus | None
    intake: IntakeView | None
    has_report: bool


class SessionListBody(BaseModel):
    """A page of sessions, newest first."""

    sessions: list[SessionBody]


def router() -> APIRouter:
    """Return the routes that read sessions."""
    routes = api_router("sessions", "/api/v1/sessions")

    @routes.get("", summary="Sessions, newest first")
    def get_sessions(
        container: RequestContainer,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
        job: Annotated[str | None, Query(description="Only sessions of this job.")] = None,
        state: StateFilter = None,
    ) -> SessionListBody:
        with container.reading() as tx:
            rows = list_sessions(tx, limit, job, state)
        return SessionListBody(sessions=[session_body(row) for row in rows])

    @routes.get("/{session}", summary="State and coverage of a session")
    def get_one(container: RequestContainer, session: uuid.UUID) -> SessionDetailBody:
        with container.reading() as tx:
            view = get_session(tx, session, container.settings)
        return SessionDetailBody(
            **_session(view.row),
            meta=dict(view.meta),
            reason_detail=None if view.reason_detail is None else dict(view.reason_detail),
            work=view.work,
            intake=view.intake,
            has_report=view.has_report,
        )

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
    def get_report(container: RequestContainer, session: uuid.UUID) -> Response:
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
        container: RequestContainer,
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
        container: RequestContainer,
        session: uuid.UUID,
        step: Step,
        dp: DpRanks = None,
        format: Literal["perfetto", "lanes"] = "perfetto",  # noqa: A002 - name of the parameter
    ) -> Response:
        """Return a step's timeline: a Chrome trace for Perfetto, or columns (`format=lanes`)."""
        if format == "perfetto":
            with container.reading() as tx:
                stored = stored_trace(tx, session)
            # Streamed, since the timeline of a step of a large job does not fit into memory.
            pieces = perfetto_timeline(stored, step, dp)
            return StreamingResponse(pieces, media_type="application/json")
        with prepared_session(container, session) as replayed:
            timeline = replayed_timeline(replayed, step, dp)
        columns = timeline_columns(timeline)
        text = json.dumps(columns, allow_nan=False, separators=(",", ":"))
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
        # JSON has no NaN: null replaces it. NaN is the only value that differs from itself.
        "ratio": [ratio if ratio == ratio else None for ratio in ratios],  # noqa: PLR0124
    }


def session_body(row: SessionRow) -> SessionBody:
    """Return the response body of one session of a list."""
    return SessionBody(**_session(row))


# Fields of a session's body that are columns of its row.
_OF_ROW: Final = SessionBody.model_fields.keys() & SessionRow.__dataclass_fields__.keys()


def _session(row: SessionRow) -> dict[str, Any]:
    verdict = row.verdict
    published = verdict and verdict.published
    return {
        **{name: getattr(row, name) for name in _OF_ROW},
        "session": row.number,
        "sizes": SizesBody.model_validate(row, from_attributes=True),
        "slowdown": published and published.slowdown,
        "slowdown_ci95": published and published.ci95,
        "waste": published and published.waste,
        "gpu_hours_lost": published and published.gpu_hours_lost,
        "discrepancy": verdict and verdict.discrepancy,
        "headline": verdict and _headline(row, verdict),
    }


def _headline(row: SessionRow, verdict: SessionVerdict) -> HeadlineBody:
    shown, known, worst = row.headline, row.known, verdict.worst[0]
    measures = verdict.measures
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
            "causes": [
                {
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
                for cause in verdict.causes[:LISTED_CAUSES]
            ],
            "sizes": plain(verdict.sizes),
        }
    )


EXAMPLE = {
    "base": "recorded",
    "changes": [
        {"select": {"workers": [[0, 0], [2, 1]]}, "duration": "ideal"},
        {"select": {"op_types": ["grads-sync"]}, "duration": "recorded", "scale": 0.5},
    ],
}


class ReferenceBody(BaseModel):
    """The reference step time of the answer's `slowdown`, the same as in the session's headline.

    `kind` is `causes`, the job without its causes, or `published`, the ideal step time of S.
    """

    kind: HeadlineKind
    step_time_s: float
    slowdown: float


class AnswerBody(BaseModel):
    """Step time with the changes; `gain` is the saved share of the current simulated step time.

    Both are computed like those of a recommended fix: restored durations gain at most the time that
    the job loses relative to `reference`. `replayed_step_time_s` is the step time of the replay
    itself. `slowdown` is S with the changes; `reference` has the slowdown that pages show.
    """

    schema_: str = Field(alias="schema")
    step_time_s: float
    replayed_step_time_s: float
    simulated_step_time_s: float
    ideal_step_time_s: float
    gain: float
    slowdown: float
    reference: ReferenceBody
    steps: list[int]
    step_times_s: list[float]


def what_if_router() -> APIRouter:
    """Return the route of what-if questions."""
    routes = api_router("sessions", "/api/v1/sessions")

    @routes.post("/{session}/what-if", summary="Replay a session with changed durations")
    def ask(
        container: RequestContainer,
        session: uuid.UUID,
        question: Annotated[WrittenQuestion, Body(openapi_examples={"fix": {"value": EXAMPLE}})],
    ) -> AnswerBody:
        """Return the step time that a replay with changed durations yields.

        Operations have their `base` duration, `recorded` or `ideal`. An operation that meets all
        conditions of a change has the change's `duration` times `scale` instead. If several changes
        select an operation, the last change counts.
        """
        return AnswerBody.model_validate(answer_question(container, session, question.question()))

    return routes


class ComparisonBody(BaseModel):
    """The changes from one session to another.

    `step_times` is null, and `causes` is empty, unless both sessions have a verdict. `arrivals`
    needs no verdict, but collectives in both sessions. `metadata` are the fields with different
    values, `equal_fields` is the number of equal fields.
    """

    before: uuid.UUID
    after: uuid.UUID
    step_times: Difference | None
    causes: list[CauseChange]
    arrivals: list[ArrivalChange]
    metadata: list[FieldChange]
    equal_fields: int


def compare_router() -> APIRouter:
    """Return the route of comparisons."""
    routes = api_router("sessions", "/api/v1")

    @routes.get("/sessions/{session}/compare/{other}", summary="What changed between two sessions")
    def get_comparison(
        container: RequestContainer, session: uuid.UUID, other: uuid.UUID
    ) -> ComparisonBody:
        """Compare two sessions: `session` is the earlier side, `other` the later side."""
        with container.reading() as tx:
            comparison = compare_sessions(tx, session, other)
        return ComparisonBody(
            before=session,
            after=other,
            step_times=comparison.step_times,
            causes=list(comparison.causes),
            arrivals=list(comparison.arrivals),
            metadata=list(comparison.metadata.changed),
            equal_fields=comparison.metadata.equal,
        )

    return routes

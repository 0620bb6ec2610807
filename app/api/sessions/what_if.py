"""What-if questions about a session."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field

from app.analysis.diagnosis.headline import HeadlineKind
from app.api.frame.routers import api_router
from app.auth.here import Here
from app.inputs.sessions.question import WrittenQuestion
from app.services.sessions.replays.what_if import answer_question

EXAMPLE = {
    "base": "recorded",
    "changes": [
        {"select": {"workers": [[0, 0], [2, 1]]}, "duration": "ideal"},
        {"select": {"op_types": ["grads-sync"]}, "duration": "recorded", "scale": 0.5},
    ],
}


class ReferenceBody(BaseModel):
    """What the answer's `slowdown` is counted against, as the session's headline is.

    `kind` is `causes`, the job without its causes, or `published`, the ideal of S.
    """

    kind: HeadlineKind
    step_time_s: float
    slowdown: float


class AnswerBody(BaseModel):
    """Step time with the changes; `gain` is the share of today's simulated step time saved.

    Both are counted as those of a recommended fix: what restores durations gains no more than the
    job loses against `reference`. `replayed_step_time_s` is what the replay says. `slowdown` is S
    with the changes; `reference` has the slowdown that people are shown.
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


def router() -> APIRouter:
    """Return the route."""
    routes = api_router("sessions", "/api/v1/sessions")

    @routes.post("/{session}/what-if", summary="Replay a session with changed durations")
    def ask(
        container: Here,
        session: uuid.UUID,
        question: Annotated[WrittenQuestion, Body(openapi_examples={"fix": {"value": EXAMPLE}})],
    ) -> AnswerBody:
        """Answer what the step time would be.

        Everything takes its `base` duration, `recorded` or `ideal`, but for what a change selects
        (every condition of it has to hold): that takes its recorded or ideal duration times
        `scale`. Of several changes that select an operation the last one holds.
        """
        return AnswerBody.model_validate(answer_question(container, session, question.question()))

    return routes

"""What-if questions about a session."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field

from app.inputs.sessions.question import WrittenQuestion
from app.services.container import Container
from app.services.sessions.what_if import answer_question

EXAMPLE = {
    "base": "recorded",
    "changes": [
        {"select": {"workers": [[0, 0], [2, 1]]}, "duration": "ideal"},
        {"select": {"op_types": ["grads-sync"]}, "duration": "recorded", "scale": 0.5},
    ],
}


class AnswerBody(BaseModel):
    """Step time with the changes; `gain` is the share of today's simulated step time saved."""

    schema_: str = Field(alias="schema")
    step_time_s: float
    simulated_step_time_s: float
    ideal_step_time_s: float
    gain: float
    slowdown: float
    steps: list[int]
    step_times_s: list[float]


def router(container: Container) -> APIRouter:
    """Return the route."""
    routes = APIRouter(prefix="/api/v1/sessions", tags=["sessions"])

    @routes.post("/{session}/what-if", summary="Replay a session with changed durations")
    def ask(
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

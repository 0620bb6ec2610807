"""Questions of one's own about a session, answered by replaying its stored trace."""

from __future__ import annotations

import uuid
from typing import Any

from app.analysis.replay.questions import Against, Question, answer
from app.errors import ConflictError
from app.services.container import Container
from app.services.sessions.read import get_session
from app.services.sessions.replays.prepared import prepared_session


def answer_question(
    container: Container, session_id: uuid.UUID, question: Question
) -> dict[str, Any]:
    """Answer a question about an analyzed session; see `app.analysis.replay.questions`.

    Raises
    ------
    InvalidQuestionError
        If it asks for what the session does not have.
    NotFoundError
        If there is no such session.
    ConflictError
        If the session has no verdict: its replay says nothing about the job.
    BusyError
        If others keep asking.
    """
    with container.reading() as tx:
        row = get_session(tx, session_id, container.settings).row
    if row.headline is None:
        raise ConflictError(
            f"The session is {row.state}; only an analyzed one can be asked about.",
            code="what_if.no_verdict",
        )
    against = Against(row.headline.kind.value, row.headline.slowdown)
    with prepared_session(container, session_id, question.without) as replayed:
        return answer(replayed, question).as_document(against)

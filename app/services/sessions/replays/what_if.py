"""Questions of one's own about a session, answered by replaying its stored trace."""

from __future__ import annotations

import uuid
from typing import Any

from app.analysis.replay.questions import Against, Question, answer
from app.db.models.sessions import Session
from app.db.states import SessionState
from app.db.unit_of_work import Reads
from app.errors import ConflictError
from app.services.container import Container
from app.services.sessions.read import no_session
from app.services.sessions.replays.prepared import prepared_session
from app.services.sessions.reports import report_document


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
        session = tx.session.get(Session, session_id)
        if session is None:
            raise no_session(session_id)
        state = session.state
        against = _against(tx, session) if state is SessionState.ANALYZED else None
    if against is None:
        raise ConflictError(
            f"The session is {state}; only an analyzed one can be asked about.",
            code="what_if.no_verdict",
        )
    with prepared_session(container, session_id, question.without) as replayed:
        return answer(replayed, question).as_document(against)


def _against(tx: Reads, session: Session) -> Against:
    """Return what the session's own page counts against; a stored report tells it of old ones."""
    kind, slowdown = session.headline_kind, session.headline_slowdown
    if kind is None or slowdown is None:
        headline = report_document(tx, session.id).headline
        kind, slowdown = headline.kind, headline.slowdown
    return Against(kind.value, slowdown)

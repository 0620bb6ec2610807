"""What has come of connecting a first job: its token, and what was refused on the way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, or_, select

from app.access.principals import Right
from app.db.models.access import AuditEntry, Token
from app.db.models.chunks import IngestRefusal
from app.errors import ForbiddenError, UnauthenticatedError
from app.services.access.audit import Action
from app.services.access.projects import project_name

if TYPE_CHECKING:
    from datetime import datetime

    from app.db.unit_of_work import Reads

# What was refused longer ago has been mended, or given up.
RECENT: Final = timedelta(days=1)
# The audit log has no index of what was refused; what matters here is among the newest.
_NEWEST: Final = 500
_AT_THE_DOOR: Final = (UnauthenticatedError.code, ForbiddenError.code)
_SENDING: Final = ("POST /api/v1/jobs/%", "PUT /api/v1/jobs/%")


@dataclass(frozen=True, slots=True)
class Refused:
    """What was refused last: the code of its reason, and when."""

    code: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How far a first job has come."""

    project: str
    # when the newest token was made that may send to this project
    token_at: datetime | None
    # Of the last day, the newest: a sender whom the server does not know, or a body.
    refused: Refused | None


def first_arrivals(tx: Reads) -> Arrivals:
    """Return how far a first job of the transaction's project has come."""
    token_at = tx.session.execute(
        select(func.max(Token.created_at)).where(
            Token.revoked_at.is_(None),
            or_(Token.expires_at.is_(None), Token.expires_at > tx.now),
            Token.scopes.overlap([Right.INGEST, Right.ADMIN]),
            or_(Token.project_id.is_(None), Token.project_id == tx.scope.project_id),
        )
    ).scalar_one()
    found = [*_at_the_door(tx), *_bodies(tx)]
    return Arrivals(
        project=project_name(tx),
        token_at=token_at,
        refused=max(found, key=lambda one: one.at, default=None),
    )


def _at_the_door(tx: Reads) -> list[Refused]:
    """Return the last sender that was not let in: of which project is not known, nor who."""
    newest = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(_NEWEST).subquery()
    rows = tx.session.execute(
        select(newest.c.detail, newest.c.at)
        .where(
            newest.c.action == Action.REFUSED,
            newest.c.detail.in_(_AT_THE_DOOR),
            or_(*(newest.c.subject.like(route) for route in _SENDING)),
            newest.c.at >= tx.now - RECENT,
        )
        .order_by(newest.c.id.desc())
        .limit(1)
    )
    return [Refused(code, at) for code, at in rows]


def _bodies(tx: Reads) -> list[Refused]:
    since = tx.now - RECENT
    rows = tx.session.execute(
        select(IngestRefusal.code, IngestRefusal.last_at)
        .where(IngestRefusal.day >= since.astimezone(UTC).date(), IngestRefusal.last_at >= since)
        .order_by(IngestRefusal.last_at.desc())
        .limit(1)
    )
    return [Refused(code, at) for code, at in rows]

"""The audit log: actor, action and subject of every change.

An entry is written in the transaction of its change. The database refuses to change an entry, and
to delete an entry of the last two years.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy import delete, insert, or_, select

from app.access.models import AuditEntry
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import ActorKind, Principal, clipped
from app.retention.models import AUDIT_DAYS, Retention
from app.web.lists import Listing, read

# Retention of entries; equal to the period in the trigger of the table.
KEPT: Final = timedelta(days=AUDIT_DAYS)

# Largest lengths of texts in an entry, which come from requests.
ACTOR_CHARACTERS: Final = 300
SUBJECT_CHARACTERS: Final = 300
DETAIL_CHARACTERS: Final = 1000


class Action(StrEnum):
    """Actions in the audit log; the values are the words on the page."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    REVOKED = "revoked"
    ACKNOWLEDGED = "acknowledged"
    UNACKNOWLEDGED = "took back the acknowledgement of"
    REOPENED = "reopened"
    SILENCED = "silenced"
    UNSILENCED = "ended the silence of"
    RESOLVED = "resolved"
    ASSIGNED = "assigned"
    COMMENTED = "commented on"
    REPLAYED = "sent again"
    TESTED = "sent an example to"
    CANCELED = "canceled"
    RENEWED = "renewed"
    DISABLED = "disabled"
    ENABLED = "enabled"
    MOVED = "moved"
    RENAMED = "renamed"
    ARCHIVED = "archived"
    UNARCHIVED = "took from the archive"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    EXPORTED = "exported"
    ANALYZED_AGAIN = "had analyzed again"
    SWITCHED = "switched"
    REPAIRED = "repaired"
    NOTED = "noted something on"
    ASKED = "asked for a session of"
    APPLIED = "marked as applied"
    UNAPPLIED = "took back that it applied"
    STOPPED = "stopped"
    STARTED = "let go on"
    ORDERED = "ordered"
    DONE = "did"
    NOT_DONE = "could not do"
    DECLINED = "declined"
    RELEASED = "took back"
    SIGNED_IN = "signed in"
    SIGNED_OUT = "signed out"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the audit log."""

    id: int  # rises with time
    at: datetime
    actor_kind: ActorKind
    actor: str  # name of the person or token; address of a peer
    action: str
    subject: str  # object of the action: ``rule Slow job``
    project: str | None  # None: no project, or all
    detail: str | None
    count: int  # number of equal refusals; 1 for other actions


AUDIT: Final = Listing(Entry, ties=(AuditEntry.id.desc(),), model=AuditEntry)


def record(  # noqa: PLR0913 - the fields of an entry
    tx: UnitOfWork,
    who: Principal,
    action: Action,
    subject: str,
    *,
    detail: str | None = None,
    project_id: int | None = None,
    count: int = 1,
) -> None:
    """Write an entry in the transaction of its change.

    Parameters
    ----------
    project_id : int, optional
        Project of the change, in a transaction of all projects.
    """
    concerned = tx.scope.project_id if project_id is None else project_id
    name = select(Project.name).where(Project.id == concerned).scalar_subquery()
    tx.session.execute(
        insert(AuditEntry).values(
            actor_kind=who.kind,
            actor=clipped(who.name, ACTOR_CHARACTERS),
            action=action,
            subject=clipped(subject, SUBJECT_CHARACTERS),
            detail=None if detail is None else clipped(detail, DETAIL_CHARACTERS),
            project_id=concerned,
            project=name,
            count=count,
            at=tx.now,
        )
    )


def list_entries(
    tx: Reads, limit: int, *, project_id: int | None = None, before: int | None = None
) -> list[Entry]:
    """Return entries of the audit log, newest first.

    Parameters
    ----------
    project_id : int, optional
        Return only entries of this project; without it, of the whole installation.
    before : int, optional
        Return only entries older than the entry with this id.
    """
    where = []
    if project_id is not None:
        where.append(AuditEntry.project_id == project_id)
    if before is not None:
        where.append(AuditEntry.id < before)
    return read(tx, AUDIT, *where, limit=limit)


def prune_entries(tx: UnitOfWork) -> int:
    """Delete entries older than `KEPT` and return their number.

    Entries of existing projects are deleted by the retention of their project instead.
    """
    kept = select(Retention.project_id)
    of_none = or_(AuditEntry.project_id.is_(None), AuditEntry.project_id.not_in(kept))
    old = tx.session.execute(
        delete(AuditEntry).where(AuditEntry.at < tx.now - KEPT, of_none).returning(AuditEntry.id)
    )
    return len(old.all())

"""Count what a project uses, and refuse what is over its quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import case, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from app.db.models.sessions import Session
from app.db.models.usage import ProjectUsage
from app.services.usage.quotas import QUOTAS, exceeded, hour_of, use_of

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads, UnitOfWork
    from app.services.usage.quotas import Quota
    from app.settings import Settings


def check_room(tx: Reads, settings: Settings, project_id: int, quotas: tuple[Quota, ...]) -> None:
    """Refuse what needs room, before it costs anything.

    Parameters
    ----------
    tx : Reads
    settings : Settings
    project_id : int
    quotas : tuple of Quota
        Of which something is needed; the others may be used up.

    Raises
    ------
    QuotaExceededError
        If nothing is left of one of them.
    """
    use = use_of(tx, project_id)
    for quota in quotas:
        limit = quota.limit(settings)
        if limit is not None and quota.used(use) >= limit:
            raise exceeded(quota, use, limit)


def count(  # noqa: PLR0913 - one of each
    tx: UnitOfWork,
    settings: Settings,
    project_id: int,
    *,
    sessions: int,
    size: int,
    operations: int,
) -> None:
    """Add to what a project has used; call it last in the transaction that stores.

    Parameters
    ----------
    tx : UnitOfWork
    settings : Settings
    project_id : int
    sessions : int
        New ones.
    size : int
        Bytes as they were sent.
    operations : int

    Raises
    ------
    QuotaExceededError
        If that is over a quota; the transaction is to be rolled back.
    """
    hour = hour_of(tx.now)
    added = insert(ProjectUsage).values(
        project_id=project_id, hour=hour, hour_sessions=sessions, bytes=size, operations=operations
    )
    # Waits for others of the project: what they stored is seen by what follows.
    tx.session.execute(
        added.on_conflict_do_update(
            index_elements=[ProjectUsage.project_id],
            set_={
                "hour": func.greatest(ProjectUsage.hour, hour),
                "hour_sessions": added.excluded.hour_sessions
                + case((ProjectUsage.hour >= hour, ProjectUsage.hour_sessions), else_=0),
                "bytes": ProjectUsage.bytes + added.excluded.bytes,
                "operations": ProjectUsage.operations + added.excluded.operations,
            },
        )
    )
    use = use_of(tx, project_id)
    for quota in QUOTAS:
        limit = quota.limit(settings)
        if limit is not None and quota.used(use) > limit:
            raise exceeded(quota, use, limit)


def recount(tx: UnitOfWork, project_id: int) -> None:
    """Sum up what a project has stored anew: after sessions were deleted or moved.

    Parameters
    ----------
    tx : UnitOfWork
    project_id : int
    """
    hour = hour_of(tx.now)
    stored = tx.session.execute(
        select(
            func.count().filter(Session.received_at >= hour),
            func.coalesce(func.sum(Session.body_bytes), 0),
            func.coalesce(func.sum(Session.operations), 0),
        )
    ).one()
    tx.session.execute(delete(ProjectUsage).where(ProjectUsage.project_id == project_id))
    tx.session.add(
        ProjectUsage(
            project_id=project_id,
            hour=hour,
            hour_sessions=stored[0],
            bytes=stored[1],
            operations=stored[2],
        )
    )
    tx.session.flush()

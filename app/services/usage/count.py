"""Count what a project uses, and refuse what is over its quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import case, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.db.blobs import connection_of
from app.db.models.retention import ProjectUsage
from app.db.models.sessions import Session
from app.services.usage.quotas import STORED, SUMMED, exceeded, hour_of, summed_use, use_of

if TYPE_CHECKING:
    from datetime import datetime

    from app.db.unit_of_work import Reads, UnitOfWork
    from app.services.usage.quotas import Quota, Use
    from app.settings import Settings

# Of each session and each batch of chunks: to put it together anew takes ten times as long.
_COUNT: Final = """
INSERT INTO project_usage AS was (project_id, hour, hour_sessions, bytes, operations)
VALUES (%(project)s, %(hour)s, %(sessions)s, %(bytes)s, %(operations)s)
ON CONFLICT (project_id) DO UPDATE SET
    hour = greatest(was.hour, excluded.hour),
    hour_sessions = excluded.hour_sessions
        + CASE WHEN was.hour >= excluded.hour THEN was.hour_sessions ELSE 0 END,
    bytes = was.bytes + excluded.bytes,
    operations = was.operations + excluded.operations
RETURNING hour, hour_sessions, bytes, operations
"""


def check_room(tx: Reads, settings: Settings, project_id: int, quotas: tuple[Quota, ...]) -> None:
    """Refuse what needs room, before it costs anything.

    Parameters
    ----------
    quotas : tuple of Quota
        Of which something is needed; the others may be used up.

    Raises
    ------
    QuotaExceededError
        If nothing is left of one of them.
    """
    use = use_of(tx, project_id, made=(), opened=not set(quotas) <= set(SUMMED))
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
    quotas: tuple[Quota, ...] = STORED,
) -> None:
    """Add to what a project has used; call it last in the transaction that stores.

    Parameters
    ----------
    size : int
        Bytes as they were sent.
    quotas : tuple of Quota
        What the transaction adds to; what is open is counted only where they name it.

    Raises
    ------
    QuotaExceededError
        If that is over a quota; the transaction is to be rolled back.
    """
    given = {
        "project": project_id,
        "hour": hour_of(tx.now),
        "sessions": sessions,
        "bytes": size,
        "operations": operations,
    }
    # Waits for others of the project: what they stored is seen by what follows.
    cursor = connection_of(tx).execute(_COUNT, given, prepare=True)
    ((hour, hour_sessions, stored_bytes, stored_operations),) = cursor.fetchall()
    if set(quotas) <= set(SUMMED):
        use = summed_use(
            tx.now,
            hour=hour,
            hour_sessions=hour_sessions,
            size=stored_bytes,
            operations=stored_operations,
        )
    else:
        use = use_of(tx, project_id, made=())
    _refuse_above(settings, use, quotas)


def count_made(tx: UnitOfWork, settings: Settings, project_id: int, quota: Quota) -> None:
    """Refuse what a project has too many of, in the transaction that made one.

    Others of the project that make or store something wait from then on.

    Raises
    ------
    QuotaExceededError
        If there are more than may be; the transaction is to be rolled back.
    """
    if quota.limit(settings) is None:
        return
    tx.session.flush()
    _wait_for_others(tx, project_id)
    _refuse_above(settings, use_of(tx, project_id, (quota,), opened=False), (quota,))


def recount(tx: UnitOfWork, project_id: int) -> None:
    """Sum up what a project has stored anew: after sessions, or their traces, went or moved.

    Parameters
    ----------
    tx : UnitOfWork
        The one that takes them away, as the last that it does: the sum is exact whoever is killed.
    """
    # Whoever stores meanwhile has committed, and is summed up, or adds to the sum afterwards.
    hour = _wait_for_others(tx, project_id)
    there = Session.trace_removed_at.is_(None)
    stored = tx.session.execute(
        select(
            func.count().filter(Session.received_at >= hour).label("hour_sessions"),
            func.coalesce(func.sum(Session.body_bytes).filter(there), 0).label("bytes"),
            func.coalesce(func.sum(Session.operations).filter(there), 0).label("operations"),
        )
        .select_from(Session)
        .where(Session.project_id == project_id)
    ).mappings()
    tx.session.execute(
        update(ProjectUsage)
        .where(ProjectUsage.project_id == project_id)
        .values(hour=hour, **stored.one())
    )


def _wait_for_others(tx: UnitOfWork, project_id: int) -> datetime:
    """Lock a project's row, made where it is not there, and return the hour that it counts."""
    hour = hour_of(tx.now)
    return tx.session.execute(
        insert(ProjectUsage)
        .values(project_id=project_id, hour=hour, hour_sessions=0, bytes=0, operations=0)
        .on_conflict_do_update(
            index_elements=[ProjectUsage.project_id],
            set_={
                "hour": func.greatest(ProjectUsage.hour, hour),
                "hour_sessions": case(
                    (ProjectUsage.hour >= hour, ProjectUsage.hour_sessions), else_=0
                ),
            },
        )
        .returning(ProjectUsage.hour)
    ).scalar_one()


def _refuse_above(settings: Settings, use: Use, quotas: tuple[Quota, ...]) -> None:
    for quota in quotas:
        limit = quota.limit(settings)
        if limit is not None and quota.used(use) > limit:
            raise exceeded(quota, use, limit)

"""The registry of quotas, each project's use of them, and the refusal of requests over a quota."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Integer,
    Subquery,
    bindparam,
    case,
    func,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from app.errors import TryLaterError
from app.hosts.models import HostProbe
from app.jobs.models import Attempt, Job, JobNote
from app.platform.blobs import connection_of
from app.platform.database.columns import OfProject
from app.platform.database.projects import Project
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import PROJECT, Prepared, Reads, UnitOfWork
from app.platform.settings import Settings
from app.retention.models import ProjectUsage
from app.sessions.models.tables import Intake, Session
from app.tensor.models import TensorGroup

HOUR: Final = timedelta(hours=1)
# Retry-After of a refusal, in seconds. Stored data are deleted by retention or by users, open
# sessions are sealed after minutes of silence.
STORED_RETRY_S: Final = 3600.0
OPEN_RETRY_S: Final = 120.0


class QuotaExceededError(TryLaterError):
    """A project has used up one of its quotas; the error code names the quota."""

    code = "quota.exceeded"


@dataclass(frozen=True, slots=True)
class Use:
    """A project's use of its quotas."""

    sessions_this_hour: int
    """New sessions since the full hour."""
    bytes: int
    """Bytes of all stored sessions, as they were sent."""
    operations: int
    """Number of operations of all stored sessions."""
    hour_left_s: float
    """Seconds until `sessions_this_hour` starts again at 0."""
    open_sessions: int = 0
    """Number of sessions that accept chunks; 0 if they were not counted."""
    producers: int = 0
    """Number of producers of the open sessions; 0 if they were not counted."""
    jobs: int = 0
    """Number of jobs; 0 if they were not counted."""
    attempts: int = 0
    """Number of attempts of all jobs; 0 if they were not counted."""
    tensor_groups: int = 0
    """Number of tensor-parallel groups; 0 if they were not counted."""
    probed_devices: int = 0
    """Number of devices in all probes; 0 if they were not counted."""
    notes_per_hour: int = 0
    """Number of notes since the full hour; 0 if they were not counted."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota of a project: its limit and its use."""

    name: str  # in metrics, in the setting ``PACELINE_QUOTA_…``, and in the code ``quota.…``
    title: str  # for people
    limit: Callable[[Settings], int | None]  # returns the limit that settings say; None is no limit
    used: Callable[[Use], int]  # returns what of a `Use` counts against it
    retry_s: Callable[[Use], float]  # returns after how many seconds there may be room again


SESSIONS: Final = Quota(
    "sessions_per_hour",
    "Sessions an hour",
    lambda settings: settings.quota_sessions_per_hour,
    lambda use: use.sessions_this_hour,
    lambda use: use.hour_left_s,
)
BYTES: Final = Quota(
    "bytes",
    "Stored bytes",
    lambda settings: settings.quota_bytes,
    lambda use: use.bytes,
    lambda _: STORED_RETRY_S,
)
OPERATIONS: Final = Quota(
    "operations",
    "Stored operations",
    lambda settings: settings.quota_operations,
    lambda use: use.operations,
    lambda _: STORED_RETRY_S,
)
OPEN_SESSIONS: Final = Quota(
    "open_sessions",
    "Open sessions",
    lambda settings: settings.quota_open_sessions,
    lambda use: use.open_sessions,
    lambda _: OPEN_RETRY_S,
)
PRODUCERS: Final = Quota(
    "producers",
    "Producers of open sessions",
    lambda settings: settings.quota_producers,
    lambda use: use.producers,
    lambda _: OPEN_RETRY_S,
)

JOBS: Final = Quota(
    "jobs",
    "Jobs",
    lambda settings: settings.quota_jobs,
    lambda use: use.jobs,
    lambda _: STORED_RETRY_S,
)
ATTEMPTS: Final = Quota(
    "attempts",
    "Announced attempts",
    lambda settings: settings.quota_attempts,
    lambda use: use.attempts,
    lambda _: STORED_RETRY_S,
)
TENSOR_GROUPS: Final = Quota(
    "tensor_groups",
    "Tensor-parallel groups",
    lambda settings: settings.quota_tensor_groups,
    lambda use: use.tensor_groups,
    lambda _: STORED_RETRY_S,
)
PROBED_DEVICES: Final = Quota(
    "probed_devices",
    "Probed devices",
    lambda settings: settings.quota_probed_devices,
    lambda use: use.probed_devices,
    lambda _: STORED_RETRY_S,
)

NOTES: Final = Quota(
    "notes_per_hour",
    "Notes an hour",
    lambda settings: settings.quota_notes_per_hour,
    lambda use: use.notes_per_hour,
    lambda use: use.hour_left_s,
)

# SUMMED: running sums in `ProjectUsage`, updated when a session is stored. STORED adds the numbers
# of open sessions and producers, which are counted on demand. MADE: rows that few requests create;
# the creating transaction counts them.
SUMMED: Final = (SESSIONS, BYTES, OPERATIONS)
STORED: Final = (*SUMMED, OPEN_SESSIONS, PRODUCERS)
MADE: Final = (JOBS, ATTEMPTS, TENSOR_GROUPS, PROBED_DEVICES, NOTES)
# A new quota needs an entry in this tuple, a setting and a problem code; the page, metrics and
# refusals read the tuple.
QUOTAS: Final = STORED + MADE

# Table whose rows count against the quota, by the quota's name, which is also a field of `Use`.
_MADE_IN: Final[dict[str, type[OfProject]]] = {
    JOBS.name: Job,
    ATTEMPTS.name: Attempt,
    TENSOR_GROUPS.name: TensorGroup,
    PROBED_DEVICES.name: HostProbe,
    NOTES.name: JobNote,
}
# Condition of the rows that count, by the quota's name; by default all rows of the table count.
_COUNTED: Final[dict[str, ColumnElement[bool]]] = {
    NOTES.name: JobNote.noted_at >= func.date_trunc("hour", func.now(), "UTC"),
}


_ID: Final = select(bindparam(PROJECT, type_=Integer).label("id")).subquery()
_SUMMED_USE: Final = (
    select(
        ProjectUsage.hour,
        ProjectUsage.hour_sessions,
        func.coalesce(ProjectUsage.bytes, 0),
        func.coalesce(ProjectUsage.operations, 0),
        func.now(),
    )
    .select_from(_ID)
    .outerjoin(ProjectUsage, ProjectUsage.project_id == _ID.c.id)
)
# Prepared, as the statement runs for each session.
_PREPARED: Final = Prepared(_SUMMED_USE)


def use_of(
    tx: Reads, project_id: int, made: tuple[Quota, ...] = MADE, *, opened: bool = True
) -> Use:
    """Return a project's use of its quotas.

    Parameters
    ----------
    made : tuple of Quota
        Quotas of `MADE` whose rows are counted; the use of the others is 0.
    opened : bool
        Whether open sessions and producers are counted; otherwise their numbers are 0.
    """
    # One statement instead of one per count: `count` runs it under the lock that other senders of
    # the project wait for.
    counts: dict[str, ColumnElement[int]] = {
        quota.name: select(func.count())
        .select_from(_MADE_IN[quota.name])
        .where(_COUNTED.get(quota.name, true()))
        .scalar_subquery()
        for quota in made
    }
    if opened:
        counts[OPEN_SESSIONS.name] = (
            select(func.count()).select_from(Session).where(Session.state == SessionState.OPEN)
        ).scalar_subquery()
        counts[PRODUCERS.name] = (
            select(func.coalesce(func.sum(Intake.producers), 0)).where(Intake.sealed_at.is_(None))
        ).scalar_subquery()
    if counts:
        query = _SUMMED_USE.add_columns(*counts.values())
        row = tuple(tx.session.execute(query, {PROJECT: project_id}).one())
    else:
        (row,) = _PREPARED.rows(tx.session, project_id=project_id)
    hour, hour_sessions, size, operations, now, *counted = row
    tx.is_at(now)
    return summed_use(
        tx.now,
        hour=hour,
        hour_sessions=hour_sessions,
        size=size,
        operations=operations,
        **dict(zip(counts, counted, strict=True)),
    )


def summed_use(
    now: datetime,
    *,
    hour: datetime | None,
    hour_sessions: int,
    size: int,
    operations: int,
    **counts: int,
) -> Use:
    """Return the use from the columns of a `ProjectUsage` row and from the other counts."""
    this_hour = hour_of(now)
    return Use(
        sessions_this_hour=hour_sessions if hour == this_hour else 0,
        bytes=size,
        operations=operations,
        hour_left_s=(this_hour + HOUR - now).total_seconds(),
        **counts,
    )


def uses(tx: Reads) -> dict[int, Use]:
    """Return the use of quotas by each project, read with one statement."""
    hour = hour_of(tx.now)
    counted = {
        "open_sessions": _by_project(func.count(), Session, Session.state == SessionState.OPEN),
        "producers": _by_project(func.sum(Intake.producers), Intake, Intake.sealed_at.is_(None)),
        **{
            name: _by_project(func.count(), table, _COUNTED.get(name, true()))
            for name, table in _MADE_IN.items()
        },
    }
    query = select(
        Project.id,
        ProjectUsage,
        *(func.coalesce(counting.c.counted, 0).label(name) for name, counting in counted.items()),
    ).outerjoin(ProjectUsage, ProjectUsage.project_id == Project.id)
    for counting in counted.values():
        query = query.outerjoin(counting, counting.c.project_id == Project.id)
    return {
        project_id: Use(
            sessions_this_hour=used.hour_sessions if used and used.hour == hour else 0,
            bytes=used.bytes if used else 0,
            operations=used.operations if used else 0,
            hour_left_s=(hour + HOUR - tx.now).total_seconds(),
            **dict(zip(counted, counts, strict=True)),
        )
        for project_id, used, *counts in map(tuple, tx.session.execute(query))
    }


def _by_project(
    counts: ColumnElement[int], table: type[OfProject], *where: ColumnElement[bool]
) -> Subquery:
    return (
        select(table.project_id, counts.label("counted"))
        .where(*where)
        .group_by(table.project_id)
        .subquery()
    )


def hour_of(time: datetime) -> datetime:
    """Return the beginning of the hour that contains a time."""
    return time.replace(minute=0, second=0, microsecond=0)


def exceeded(quota: Quota, use: Use, limit: int) -> QuotaExceededError:
    """Return the error for a quota whose limit is exceeded."""
    return QuotaExceededError(
        f"The project's quota is used up: {quota.title.lower()}, {limit:,}.",
        code=f"quota.{quota.name}",
        retry_after_s=quota.retry_s(use),
    )


# SQL as text: the statement runs for each session and each batch of chunks, and building it with
# SQLAlchemy takes ten times as long.
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
    """Refuse a request whose quota is used up, before the request's body is processed.

    Parameters
    ----------
    quotas : tuple of Quota
        Quotas that the request needs; other quotas may be used up.

    Raises
    ------
    QuotaExceededError
        If one of these quotas is used up.
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
    """Add to a project's use; call it last in the transaction that stores the data.

    Parameters
    ----------
    size : int
        Bytes as they were sent.
    quotas : tuple of Quota
        Quotas to which the transaction adds; open sessions are counted only if these need them.

    Raises
    ------
    QuotaExceededError
        If a quota is exceeded; the caller must roll the transaction back.
    """
    given = {
        "project": project_id,
        "hour": hour_of(tx.now),
        "sessions": sessions,
        "bytes": size,
        "operations": operations,
    }
    # The upsert waits for concurrent transactions of the project, so the counts below include their
    # rows.
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
    """Refuse a created row if it exceeds its quota, within the transaction that created it.

    Concurrent transactions of the project that create or store rows wait until this one ends.

    Raises
    ------
    QuotaExceededError
        If the quota is exceeded; the caller must roll the transaction back.
    """
    if quota.limit(settings) is None:
        return
    tx.session.flush()
    _wait_for_others(tx, project_id)
    _refuse_above(settings, use_of(tx, project_id, (quota,), opened=False), (quota,))


def recount(tx: UnitOfWork, project_id: int) -> None:
    """Recompute a project's stored sums after sessions or traces were deleted or moved.

    Parameters
    ----------
    tx : UnitOfWork
        The transaction that deletes them; call this function last in it, so that the sums are exact
        whichever process is killed.
    """
    # The lock orders concurrent transactions: each has committed and is part of the sums, or adds
    # to them afterwards.
    hour = _wait_for_others(tx, project_id)
    has_trace = Session.trace_removed_at.is_(None)
    stored = tx.session.execute(
        select(
            func.count().filter(Session.received_at >= hour).label("hour_sessions"),
            func.coalesce(func.sum(Session.body_bytes).filter(has_trace), 0).label("bytes"),
            func.coalesce(func.sum(Session.operations).filter(has_trace), 0).label("operations"),
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
    """Lock a project's usage row, created if missing, and return the row's hour."""
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

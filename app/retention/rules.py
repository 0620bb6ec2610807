"""Use cases: change retention rules, apply them, pin sessions, rename and archive jobs.

A pass deletes the data that exceed a rule, the oldest first, in small transactions: first the rows
that refer to blobs, then the blobs, from a list. The next pass continues one that was killed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

import structlog
from sqlalchemy import (
    CursorResult,
    Select,
    delete,
    func,
    literal,
    or_,
    select,
    union,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from app.access.audit import Action, record
from app.errors import ConflictError, Fault
from app.incidents.models.tables import AlertGroup
from app.jobs.models import Job
from app.platform.blobs import BlobObject, BlobPart
from app.platform.container import Container
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.quotas.usage import recount
from app.retention.kinds import KINDS, Items, Kind
from app.retention.models import DoomedBlob, Retention, RetentionRules
from app.sessions.models.tables import Session
from app.sessions.read import no_session
from app.sessions.receive import check_new_job_name, no_job

# Interval between two passes over a project, and time limit of a pass: the sweeper has other
# duties.
LOOK_EVERY: Final = timedelta(minutes=5)
PASS_LIMIT_S: Final = 10.0
# Items returned by one query, which adds up the sizes of all items; they are deleted before the
# next query.
KEYS_A_QUERY: Final = 5_000
# Rows, and blob parts of at most 4 MiB, deleted in one transaction.
ROWS: Final = 200
PARTS: Final = 16

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Use:
    """Number and bytes of the stored items of a kind, and the time of the oldest item."""

    count: int = 0
    bytes: int = 0
    oldest: datetime | None = None


def rules_of(tx: Reads) -> RetentionRules:
    """Return the retention rules of the project in the transaction's scope."""
    stored = tx.session.execute(select(Retention.rules)).scalar()
    return RetentionRules() if stored is None else stored


def uses_of(tx: Reads) -> dict[str, Use]:
    """Return the number and bytes of each kind's items in the project, with one statement."""
    project_id = cast("int", tx.scope.project_id)
    counted = []
    for kind in KINDS:
        items = kind.items(project_id, tx.now)
        query = _from(
            items, literal(kind.name), func.count(), func.sum(items.size), func.min(items.at)
        )
        counted.append(query)
    rows = tx.session.execute(union_all(*counted))
    return {name: Use(count, int(size or 0), oldest) for name, count, size, oldest in rows}


def set_rules(container: Container, rules: RetentionRules) -> None:
    """Change a project's retention rules; the sweeper's next passes apply them."""
    with container.uow() as tx:
        before = rules_of(tx)
        # The next pass applies the rules, without waiting for the project's interval.
        _put(tx, container.project_id, rules=rules, looked_at=None)
        changed = [
            f"{kind.title.lower()}: {_limits_text(kind.keep(rules).days, kind.keep(rules).bytes)}"
            for kind in KINDS
            if kind.keep(rules) != kind.keep(before)
        ]
        if changed:
            record(tx, container.principal, Action.CHANGED, "retention", detail="; ".join(changed))


def losses_of(tx: Reads, rules: RetentionRules) -> dict[str, int]:
    """Return the number of items of each kind that the rules would delete now."""
    losses = {}
    for kind in KINDS:
        queries = [query.subquery() for query in _queries(tx, kind, rules)]
        if queries:
            keys = union(*(select(query.c.key) for query in queries)).subquery()
            lost = tx.session.execute(select(func.count()).select_from(keys)).scalar_one()
            if lost:
                losses[kind.name] = lost
    return losses


def keep_to_rules(container: Container) -> int:
    """Do one pass over all projects that are due; return the number of deleted items."""
    until_s = time.monotonic() + PASS_LIMIT_S
    everywhere = container.everywhere()
    with everywhere.reading() as tx:
        due = tx.session.execute(
            select(Project.id)
            .outerjoin(Retention, Retention.project_id == Project.id)
            .where(
                Project.deleted_at.is_(None),
                or_(Retention.looked_at.is_(None), Retention.looked_at < tx.now - LOOK_EVERY),
            )
            .order_by(Retention.looked_at.nulls_first())
        ).scalars()
        projects = list(due)
    removed = 0
    for project_id in projects:
        removed += _look(container.within(project_id), until_s)
    parts = _collect(everywhere, until_s)
    if removed or parts:
        _log.info("retention", removed=removed, parts=parts)
    return removed


def keep_to_rules_now(container: Container) -> int:
    """Apply the rules of all projects now; return the number of deleted items."""
    everywhere = container.everywhere()
    with everywhere.uow() as tx:
        tx.session.execute(update(Retention).values(looked_at=None))
    removed = 0
    while more := keep_to_rules(container):
        removed += more
    while _collect(everywhere, time.monotonic() + PASS_LIMIT_S):
        pass
    return removed


def _look(container: Container, until_s: float) -> int:
    """Delete the items of a project that exceed its rules until a time; return their number."""
    with container.reading() as tx:
        rules = rules_of(tx)
    removed = 0
    for kind in KINDS:
        while True:
            with container.reading() as tx:
                keys = _over(tx, kind, rules)
            for first in range(0, len(keys), ROWS):
                if time.monotonic() > until_s:
                    # `looked_at` is unchanged, so the next pass continues with this project.
                    return removed
                some = keys[first : first + ROWS]
                with container.uow() as tx:
                    kind.remove(tx, some)
                    if kind.name == "traces":
                        recount(tx, container.project_id)
                removed += len(some)
            if len(keys) < KEYS_A_QUERY:
                break
    with container.uow() as tx:
        _put(tx, container.project_id, looked_at=tx.now)
    return removed


def _over(tx: Reads, kind: Kind, rules: RetentionRules) -> list[Any]:
    """Return the keys of a kind's next items to delete, the oldest item first."""
    for query in _queries(tx, kind, rules):
        over = query.subquery()
        selected = tx.session.execute(
            select(over.c.key).order_by(over.c.at).limit(KEYS_A_QUERY)
        ).scalars()
        if keys := list(selected):
            return keys
    return []


def _queries(tx: Reads, kind: Kind, rules: RetentionRules) -> Iterator[Select[Any]]:
    """Yield a query of the items over the age limit, and one of those over the size limit."""
    keep = kind.keep(rules)
    items = kind.items(cast("int", tx.scope.project_id), tx.now)
    key, at = items.key.label("key"), items.at.label("at")
    if keep.days is not None:
        yield _from(items, key, at).where(
            items.may_go, items.at < tx.now - timedelta(days=keep.days)
        )
    if keep.bytes is None:
        return
    # Running sum from the newest item on; it includes items that must not be deleted.
    total = func.sum(items.size).over(order_by=(items.at.desc(), items.key))
    summed = _from(
        items,
        key,
        at,
        items.may_go.label("may_go"),
        total.label("total"),
    ).subquery()
    yield select(summed.c.key, summed.c.at).where(summed.c.may_go, summed.c.total > keep.bytes)


def _from(items: Items, *columns: Any) -> Select[Any]:  # noqa: ANN401 - columns differ in type
    query = select(*columns).select_from(items.table).where(items.condition)
    if items.session:
        query = query.join(Session, Session.id == items.key)
    return query


def _collect(container: Container, until_s: float) -> int:
    """Delete doomed blobs, `PARTS` parts a transaction; return the number of parts and objects."""
    gone = 0
    while time.monotonic() < until_s:
        with container.uow() as tx:
            query = select(DoomedBlob.blob_id).limit(PARTS).with_for_update(skip_locked=True)
            doomed = tx.session.execute(query).scalars().all()
            if not doomed:
                break
            some = (
                select(BlobPart.blob_id, BlobPart.part)
                .where(BlobPart.blob_id.in_(doomed))
                .limit(PARTS)
                .subquery()
            )
            parts = delete(BlobPart).where(
                BlobPart.blob_id == some.c.blob_id, BlobPart.part == some.c.part
            )
            gone += cast("CursorResult[Any]", tx.session.execute(parts)).rowcount
            # Deletes only the row; `collect_objects` later deletes the object, which no row refers
            # to then.
            objects = delete(BlobObject).where(BlobObject.blob_id.in_(doomed))
            gone += cast("CursorResult[Any]", tx.session.execute(objects)).rowcount
            left = select(BlobPart.blob_id).where(BlobPart.blob_id.in_(doomed))
            tx.session.execute(
                delete(DoomedBlob).where(
                    DoomedBlob.blob_id.in_(doomed), DoomedBlob.blob_id.not_in(left)
                )
            )
    return gone


def _put(tx: UnitOfWork, project_id: int, **values: object) -> None:
    made = {"rules": RetentionRules(), **values}
    tx.session.execute(
        insert(Retention)
        .values(project_id=project_id, **made)
        .on_conflict_do_update(index_elements=[Retention.project_id], set_=values)
    )


def _limits_text(days: float | None, size: int | None) -> str:
    parts = [] if days is None else [f"{days:g} days"]
    parts += [] if size is None else [f"{size:,} bytes"]
    return " and ".join(parts) or "all"


def pin_session(container: Container, session_id: uuid.UUID, *, pinned: bool) -> None:
    """Pin a session, which exempts it from retention, or unpin it.

    Raises
    ------
    NotFoundError
        If there is no such session.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Session.number, Session.pinned, Job.name)
            .join(Job, Job.id == Session.job_id)
            .where(Session.id == session_id)
            .with_for_update(of=Session)
        ).one_or_none()
        if row is None:
            raise no_session(session_id)
        if row.pinned == pinned:
            return
        tx.session.execute(update(Session).where(Session.id == session_id).values(pinned=pinned))
        record(
            tx,
            container.principal,
            Action.PINNED if pinned else Action.UNPINNED,
            f"session {row.number} of {row.name}",
        )


def rename_job(container: Container, job: str, name: str) -> None:
    """Rename a job; sessions sent under the old name belong to another job from now on.

    Raises
    ------
    NotFoundError
        If there is no such job.
    PacelineError
        ``job.invalid_name``.
    ConflictError
        ``job.name_taken``: another job has this name.
    """
    if name != job:
        check_new_job_name(name)
    try:
        with container.uow() as tx:
            renamed = tx.session.execute(
                update(Job).where(Job.name == job).values(name=name).returning(Job.id)
            ).scalar()
            if renamed is None:
                raise no_job(job)
            if name != job:
                record(tx, container.principal, Action.RENAMED, f"job {job}", detail=f"to {name}")
    except IntegrityError as error:
        raise ConflictError(
            f"There is a job {name} already.",
            code="job.name_taken",
            faults=(Fault("taken", "Another job has this name.", column="name"),),
        ) from error


def archive_job(container: Container, job: str, *, archived: bool) -> None:
    """Archive a job until its next session arrives, or unarchive it.

    Raises
    ------
    NotFoundError
        If there is no such job.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Job.id, Job.archived_at).where(Job.name == job).with_for_update()
        ).one_or_none()
        if row is None:
            raise no_job(job)
        if (row.archived_at is not None) == archived:
            return
        tx.session.execute(
            update(Job).where(Job.id == row.id).values(archived_at=func.now() if archived else None)
        )
        if archived:
            # The silence of an archived job is intended: rules are evaluated again with the next
            # session.
            tx.session.execute(
                update(AlertGroup).where(AlertGroup.job_id == row.id).values(look_at=None)
            )
        record(
            tx,
            container.principal,
            Action.ARCHIVED if archived else Action.UNARCHIVED,
            f"job {job}",
        )

"""The registry of kinds with a retention rule: how their items are selected and deleted."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import add
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, or_, select, true, update
from sqlalchemy.orm import aliased

from app.access.models import AuditEntry
from app.hangs.models import StoredHang, StoredHangFile
from app.hosts.models import HostProbe
from app.incidents.models.tables import AlertDelivery, DeliveryState
from app.platform.blobs import BlobObject, BlobPart
from app.platform.database.columns import Base
from app.platform.database.states import SessionState, TaskState
from app.platform.database.task_runs import TaskRun
from app.platform.database.unit_of_work import UnitOfWork
from app.pulse.models import PulseBlock, PulseNotice, PulseSpan
from app.retention.models import AUDIT_DAYS, DoomedBlob, Keep, KeepAudit, KeepRows, RetentionRules
from app.sessions.models.tables import Chunk, Session, StoredReport

# Pulses of single steps within this time before and after a notice are kept, for this number of
# days.
AROUND: Final = timedelta(minutes=15)
AROUND_KEPT: Final = timedelta(days=90)
# PostgreSQL's overhead of a row in bytes: the row header and the item pointer of its page.
_ROW_BYTES: Final = 28


@dataclass(frozen=True, slots=True)
class Items:
    """A query of the items of a kind, with the key, time and size of each item."""

    table: type[Base]  # what is selected from
    # SQL expressions: the key that `Kind.remove` takes, the time from which age counts, the bytes
    key: ColumnElement[Any]
    at: ColumnElement[Any]
    size: ColumnElement[int]
    condition: ColumnElement[bool]  # which rows are items of the kind
    may_go: ColumnElement[bool]  # condition: which of them retention may take away
    session: bool = False  # whether the table is to be joined with its sessions


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of data with a retention rule."""

    name: str  # of the member of `RetentionRules`
    # title: name on pages; what: description of the data
    title: str
    what: str
    items: Callable[[int, datetime], Items]  # takes the project and the time; returns what there is
    # takes a transaction and the keys of items, and deletes these items
    remove: Callable[[UnitOfWork, Sequence[Any]], None]

    def keep(self, rules: RetentionRules) -> Keep | KeepAudit | KeepRows:
        """Return the rule of this kind from a project's rules."""
        keep: Keep | KeepAudit | KeepRows = getattr(rules, self.name)
        return keep


def _blob_bytes(*blobs: ColumnElement[Any]) -> ColumnElement[int]:
    # `octet_length` of a value stored out of line (TOAST) does not read the value.
    size = func.coalesce(func.sum(func.octet_length(BlobPart.data)), 0)
    in_database = select(size).where(BlobPart.blob_id.in_(blobs)).scalar_subquery()
    size = func.coalesce(func.sum(BlobObject.bytes), 0)
    return in_database + select(size).where(BlobObject.blob_id.in_(blobs)).scalar_subquery()


def _row_bytes(table: type[Base]) -> ColumnElement[int]:
    columns = (
        func.coalesce(func.pg_column_size(getattr(table, column.key)), 0)
        for column in table.__mapper__.column_attrs
    )
    sizes: ColumnElement[int] = reduce(add, columns)
    return sizes + _ROW_BYTES


def _may_go() -> ColumnElement[bool]:
    return and_(~Session.pinned, Session.state.not_in(SessionState.UNDERWAY))


def _locked(tx: UnitOfWork, sessions: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    """Lock sessions and return those that may still be deleted.

    A concurrent request for a session (another analysis, a pin) either came first and exempts the
    session, or is refused.
    """
    query = select(Session.id).where(Session.id.in_(sessions), _may_go()).with_for_update()
    return list(tx.session.execute(query).scalars())


def _doom(tx: UnitOfWork, blobs: Sequence[uuid.UUID | None]) -> None:
    """Mark blobs for deletion; the sweeper deletes them part by part."""
    named = [{"blob_id": blob} for blob in blobs if blob is not None]
    if named:
        tx.session.execute(insert(DoomedBlob), named)


def _traces(_project_id: int, _now: datetime) -> Items:
    pieces = (
        select(func.coalesce(func.sum(func.octet_length(BlobPart.data)), 0))
        .join(Chunk, Chunk.blob == BlobPart.blob_id)
        .where(Chunk.session_id == Session.id)
        .scalar_subquery()
    )
    objects = (
        select(func.coalesce(func.sum(BlobObject.bytes), 0))
        .join(Chunk, Chunk.blob == BlobObject.blob_id)
        .where(Chunk.session_id == Session.id)
        .scalar_subquery()
    )
    in_chunks = exists().where(Chunk.session_id == Session.id, Chunk.blob.is_not(None))
    return Items(
        table=Session,
        key=Session.id.expression,
        at=Session.received_at.expression,
        size=_blob_bytes(Session.trace_blob.expression) + pieces + objects,
        condition=or_(Session.trace_blob.is_not(None), in_chunks),
        may_go=_may_go(),
    )


def _remove_traces(tx: UnitOfWork, sessions: Sequence[uuid.UUID]) -> None:
    ids = _locked(tx, sessions)
    traces = tx.session.execute(select(Session.trace_blob).where(Session.id.in_(ids))).scalars()
    chunks = tx.session.execute(
        select(Chunk.blob).where(Chunk.session_id.in_(ids), Chunk.blob.is_not(None))
    ).scalars()
    _doom(tx, [*traces, *chunks])
    tx.session.execute(update(Chunk).where(Chunk.session_id.in_(ids)).values(blob=None))
    tx.session.execute(
        update(Session)
        .where(Session.id.in_(ids))
        .values(trace_blob=None, trace_removed_at=func.now())
    )


def _heatmaps(_project_id: int, _now: datetime) -> Items:
    return Items(
        table=StoredReport,
        key=StoredReport.session_id.expression,
        at=Session.received_at.expression,
        size=_blob_bytes(StoredReport.heatmap_blob.expression),
        condition=StoredReport.heatmap_blob.is_not(None),
        may_go=_may_go(),
        session=True,
    )


def _remove_heatmaps(tx: UnitOfWork, sessions: Sequence[uuid.UUID]) -> None:
    of_these = StoredReport.session_id.in_(_locked(tx, sessions))
    _doom(tx, tx.session.execute(select(StoredReport.heatmap_blob).where(of_these)).scalars().all())
    tx.session.execute(update(StoredReport).where(of_these).values(heatmap_blob=None))


def _reports(_project_id: int, _now: datetime) -> Items:
    return Items(
        table=StoredReport,
        key=StoredReport.session_id.expression,
        at=Session.received_at.expression,
        size=_blob_bytes(
            StoredReport.document_blob.expression, StoredReport.heatmap_blob.expression
        ),
        condition=true(),
        may_go=_may_go(),
        session=True,
    )


def _remove_reports(tx: UnitOfWork, sessions: Sequence[uuid.UUID]) -> None:
    ids = _locked(tx, sessions)
    tx.session.execute(
        update(Session).where(Session.id.in_(ids)).values(report_removed_at=func.now())
    )
    rows = tx.session.execute(
        delete(StoredReport)
        .where(StoredReport.session_id.in_(ids))
        .returning(StoredReport.document_blob, StoredReport.heatmap_blob)
    ).all()
    _doom(tx, [blob for row in rows for blob in row])


def _hangs(_project_id: int, _now: datetime) -> Items:
    files = (
        select(func.coalesce(func.sum(func.octet_length(StoredHangFile.content)), 0))
        .where(StoredHangFile.hang_id == StoredHang.id)
        .scalar_subquery()
    )
    return Items(
        table=StoredHang,
        key=StoredHang.id.expression,
        at=StoredHang.created_at.expression,
        size=func.octet_length(StoredHang.document) + files,
        condition=true(),
        may_go=true(),
    )


def _remove_hangs(tx: UnitOfWork, hangs: Sequence[uuid.UUID]) -> None:
    # The foreign key deletes the rows of the hang's files.
    tx.session.execute(delete(StoredHang).where(StoredHang.id.in_(hangs)))


def _pulse_rows(_project_id: int, now: datetime) -> Items:
    noticed = exists().where(
        PulseNotice.job_id == PulseBlock.job_id,
        PulseNotice.noticed_at > now - AROUND_KEPT,
        PulseNotice.noticed_at > PulseBlock.minute - AROUND,
        PulseNotice.noticed_at < PulseBlock.minute + AROUND,
    )
    return Items(
        table=PulseBlock,
        key=PulseBlock.id.expression,
        at=PulseBlock.minute.expression,
        size=_row_bytes(PulseBlock),
        condition=true(),
        may_go=~noticed,
    )


def _remove_pulse_rows(tx: UnitOfWork, blocks: Sequence[int]) -> None:
    tx.session.execute(delete(PulseBlock).where(PulseBlock.id.in_(blocks)))


def _pulse_spans(_project_id: int, _now: datetime) -> Items:
    return Items(
        table=PulseSpan,
        key=PulseSpan.id.expression,
        at=PulseSpan.start.expression,
        size=_row_bytes(PulseSpan),
        condition=true(),
        may_go=true(),
    )


def _remove_pulse_spans(tx: UnitOfWork, spans: Sequence[int]) -> None:
    tx.session.execute(delete(PulseSpan).where(PulseSpan.id.in_(spans)))


def _probes(_project_id: int, _now: datetime) -> Items:
    newer, devices = aliased(HostProbe), aliased(HostProbe)
    # The latest probe of each host stays: pages show it, and other hosts are compared with it.
    probed_since = exists().where(newer.host == HostProbe.host, newer.at > HostProbe.at)
    of_it = select(func.count()).where(devices.id == HostProbe.id).scalar_subquery()
    return Items(
        table=HostProbe,
        key=HostProbe.id.expression,
        at=HostProbe.at.expression,
        size=_row_bytes(HostProbe) * of_it,
        # A probe has a row per device; the row of device 0 stands for the probe.
        condition=HostProbe.device == 0,
        may_go=probed_since,
    )


def _remove_probes(tx: UnitOfWork, probes: Sequence[uuid.UUID]) -> None:
    tx.session.execute(delete(HostProbe).where(HostProbe.id.in_(probes)))


def _task_runs(_project_id: int, _now: datetime) -> Items:
    return Items(
        table=TaskRun,
        key=TaskRun.id.expression,
        at=func.coalesce(TaskRun.finished_at, TaskRun.created_at),
        size=_row_bytes(TaskRun),
        condition=true(),
        may_go=TaskRun.state.in_(TaskState.OVER),
    )


def _remove_task_runs(tx: UnitOfWork, runs: Sequence[uuid.UUID]) -> None:
    tx.session.execute(
        delete(TaskRun).where(TaskRun.id.in_(runs), TaskRun.state.in_(TaskState.OVER))
    )


def _deliveries(_project_id: int, _now: datetime) -> Items:
    newer = aliased(AlertDelivery)
    # The last message about a job to a channel stays: it is the state that the channel shows.
    told_since = exists().where(
        newer.channel_id == AlertDelivery.channel_id,
        newer.group_id == AlertDelivery.group_id,
        newer.number > AlertDelivery.number,
        newer.state == DeliveryState.DELIVERED,
    )
    return Items(
        table=AlertDelivery,
        key=AlertDelivery.id.expression,
        at=AlertDelivery.created_at.expression,
        size=_row_bytes(AlertDelivery),
        condition=true(),
        may_go=and_(AlertDelivery.state.in_(DeliveryState.OVER), told_since),
    )


def _remove_deliveries(tx: UnitOfWork, deliveries: Sequence[uuid.UUID]) -> None:
    tx.session.execute(delete(AlertDelivery).where(AlertDelivery.id.in_(deliveries)))


def _audit(project_id: int, now: datetime) -> Items:
    return Items(
        table=AuditEntry,
        key=AuditEntry.id.expression,
        at=AuditEntry.at.expression,
        size=_row_bytes(AuditEntry),
        condition=AuditEntry.project_id == project_id,
        may_go=AuditEntry.at < now - timedelta(days=AUDIT_DAYS),
    )


def _remove_audit(tx: UnitOfWork, entries: Sequence[int]) -> None:
    tx.session.execute(delete(AuditEntry).where(AuditEntry.id.in_(entries)))


# A new kind needs an entry here and a member of `RetentionRules`; sweeper, page and API read both.
KINDS: Final = (
    Kind(
        "traces",
        "Operations",
        "timelines, questions and another analysis need them",
        _traces,
        _remove_traces,
    ),
    Kind(
        "heatmaps",
        "Heatmaps of steps",
        "the mean over the steps is in the report",
        _heatmaps,
        _remove_heatmaps,
    ),
    Kind(
        "reports",
        "Reports",
        "a session without one keeps what lists show",
        _reports,
        _remove_reports,
    ),
    Kind("hangs", "Hangs", "verdicts on jobs that stood still", _hangs, _remove_hangs),
    Kind(
        "pulse_rows",
        "Pulses, step by step",
        "those around a notice stay for 90 days",
        _pulse_rows,
        _remove_pulse_rows,
    ),
    Kind(
        "pulse_spans",
        "Pulses by minute and hour",
        "what the job's page shows of them",
        _pulse_spans,
        _remove_pulse_spans,
    ),
    Kind("probes", "Probes", "the latest of each host stays", _probes, _remove_probes),
    Kind(
        "task_runs",
        "Work that is over",
        "how often an analysis was tried",
        _task_runs,
        _remove_task_runs,
    ),
    Kind(
        "deliveries",
        "Deliveries",
        "the last one of each job stays",
        _deliveries,
        _remove_deliveries,
    ),
    Kind("audit", "Audit log", "entries of the last two years stay", _audit, _remove_audit),
)

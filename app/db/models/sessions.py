"""Tables. Durable times are the database's own (`now()`)."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app.analysis.report.summary import Summary
from app.db.documents import SUMMARY
from app.db.state_column import StateColumn, one_of
from app.db.states import SessionState, TaskState

# What a task run's `kind` may be; its subject is a session, a delivery of an alert, or a plan.
ANALYZE_SESSION: Final = "analyze_session"
DELIVER_ALERT: Final = "deliver_alert"
PLAN_TEMPLATE: Final = "plan_template"
TASK_KINDS = (ANALYZE_SESSION, DELIVER_ALERT, PLAN_TEMPLATE)


class Base(DeclarativeBase):
    """Declarative base with constraint names that migrations can address."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        datetime: DateTime(timezone=True),
        str: Text(),
        dict[str, Any]: JSONB(),
        bytes: LargeBinary(),
    }


class Job(Base):
    """A training job, known by the name that its sessions are sent under."""

    __tablename__ = "job"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class Session(Base):
    """One profiling session: what was received, where it stands and what came out."""

    __tablename__ = "session"
    __table_args__ = (
        UniqueConstraint("job_id", "content_sha256"),
        UniqueConstraint("job_id", "attempt", "number"),
        one_of("state", SessionState),
        Index("ix_session_received_at_id", "received_at", "id"),
        Index("ix_session_state_received_at", "state", "received_at"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    # Counts a job's sessions from 1: what people call it ("session 14").
    number: Mapped[int]
    # Of the body and its metadata: the same bytes again are the same session. Null where it came in
    # chunks, which have their own.
    content_sha256: Mapped[bytes | None]
    state: Mapped[SessionState] = mapped_column(StateColumn(SessionState))
    received_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    state_changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))

    # metadata document as sent, normalised (app.analysis.trace.metadata)
    meta: Mapped[dict[str, Any]]
    dp: Mapped[int]
    pp: Mapped[int]
    tp: Mapped[int]
    cp: Mapped[int]
    vpp: Mapped[int]
    world: Mapped[int]
    trace_format: Mapped[str]
    body_bytes: Mapped[int] = mapped_column(BigInteger)
    operations: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[int]
    # null until the chunks of a session that came in such are merged
    trace_blob: Mapped[uuid.UUID | None] = mapped_column(Uuid)

    # why there is no verdict: a stable code, a sentence, and details for the page
    reason_code: Mapped[str | None]
    reason: Mapped[str | None]
    reason_detail: Mapped[dict[str, Any] | None]

    # the report's headline, so that lists need not read reports
    slowdown: Mapped[float | None]
    slowdown_low: Mapped[float | None]
    slowdown_high: Mapped[float | None]
    waste: Mapped[float | None]
    gpu_hours_lost: Mapped[float | None]
    discrepancy: Mapped[float | None]
    headline: Mapped[Summary | None] = mapped_column(SUMMARY)


class Report(Base):
    """Result of the analysis of a session: at most one, replaced as a whole."""

    __tablename__ = "report"

    session_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("session.id", ondelete="CASCADE"), primary_key=True
    )
    # `paceline.report/1` as zstd-compressed JSON, and the per-step heatmaps, both in blob_part
    document_blob: Mapped[uuid.UUID] = mapped_column(Uuid)
    heatmap_blob: Mapped[uuid.UUID] = mapped_column(Uuid)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class BlobPart(Base):
    """A piece of at most 4 MiB of a blob; reached only through `app.db.blobs`."""

    __tablename__ = "blob_part"

    blob_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class TaskRun(Base):
    """A piece of durable work; the broker's message holds only its id."""

    __tablename__ = "task_run"
    __table_args__ = (
        one_of("state", TaskState),
        # Nobody can end a running task run that nobody holds, and nothing would ever expire it.
        CheckConstraint(
            "(state = 'running') = (claim_token IS NOT NULL) "
            "AND (claim_token IS NULL) = (lease_until IS NULL)",
            name="claim",
        ),
        # one open piece of work per kind and subject
        Index(
            "uq_task_run_open",
            "kind",
            "subject_id",
            unique=True,
            postgresql_where=text("state IN ('queued', 'running')"),
        ),
        Index(
            "ix_task_run_due",
            "state",
            "lease_until",
            postgresql_where=text("state IN ('queued', 'running')"),
        ),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    kind: Mapped[str]
    subject_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    state: Mapped[TaskState] = mapped_column(StateColumn(TaskState))
    attempt: Mapped[int]
    claim_token: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    lease_until: Mapped[datetime | None]
    error_code: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    published_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class WorkerHeartbeat(Base):
    """A living worker process; /readyz and the dashboard read it."""

    __tablename__ = "worker_heartbeat"

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    queues: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    seen_at: Mapped[datetime] = mapped_column(server_default=text("now()"))

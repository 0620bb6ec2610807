"""Tables of jobs, their sessions, and the reports on these."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Identity, Index, UniqueConstraint, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.analysis.report.summary import Summary
from app.db.documents import SUMMARY
from app.db.models.base import Base
from app.db.state_column import StateColumn, one_of
from app.db.states import SessionState


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

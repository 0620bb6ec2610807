"""Tables of sessions, verdicts and reports, and of the intake of their chunks."""

from __future__ import annotations

import uuid
from datetime import date, datetime
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Computed,
    Date,
    Double,
    FetchedValue,
    Identity,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    Uuid,
    case,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, MappedColumn, mapped_column
from sqlalchemy.types import TypeEngine

from app.analysis.budget.split import Shares
from app.analysis.diagnosis.earlier_sessions import Computing
from app.analysis.report.coverage import Chunks
from app.analysis.report.session_verdict import SessionVerdict, VerdictCause
from app.errors import Fault
from app.platform.database.columns import (
    Base,
    JsonDocument,
    Needs,
    OfProject,
    StateColumn,
    belongs_to,
    in_project,
    one_of,
)
from app.platform.database.states import InboxKind, SealedBy, SessionState

# Metadata key of the list of producers that have to end before the session is sealed.
PRODUCERS_KEY: Final = "producers"

# Column types for JSON documents and for parts of documents.
CHUNKS: Final = JsonDocument(TypeAdapter(Chunks))
FAULTS: Final = JsonDocument(TypeAdapter(tuple[Fault, ...]))
VERDICT: Final = JsonDocument(TypeAdapter(SessionVerdict))
CAUSES: Final = JsonDocument(TypeAdapter(tuple[VerdictCause, ...]))
SHARES: Final = JsonDocument(TypeAdapter(Shares))
COMPUTING: Final = JsonDocument(TypeAdapter(Computing))


def _of_document(kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> MappedColumn[Any]:
    """Return a column whose value a database trigger derives from the document."""
    return mapped_column(kind, FetchedValue(), nullable=True)


def _number(path: str) -> MappedColumn[Any]:
    """Return a generated column: the number at a JSON path of the document."""
    return mapped_column(Double, Computed(f"((document #>> '{path}'::text[]))::double precision"))


class Session(OfProject, Base):
    """One profiling session: its trace, its state, and the reason of the state."""

    __tablename__ = "session"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("project_id", "id"),
        UniqueConstraint("job_id", "content_sha256"),
        UniqueConstraint("job_id", "attempt", "number"),
        one_of("state", SessionState),
        Index("ix_session_project_id_received_at_id", "project_id", "received_at", "id"),
        Index("ix_session_state_received_at", "state", "received_at"),
        # For queries of the latest sessions of each job.
        Index("ix_session_job_id_received_at", "job_id", "received_at"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int]
    # Number of the session within the job's attempt, from 1; shown to users ("session 14").
    number: Mapped[int]
    # Digest by which a repeated session is found: of body and metadata, or of the beginnings and
    # ends of a folder's files. Null if the session came in chunks, which have digests of their own.
    content_sha256: Mapped[bytes | None]
    state: Mapped[SessionState] = mapped_column(StateColumn(SessionState))
    received_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    state_changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))

    # Normalized metadata document (`app.analysis.trace.metadata`).
    meta: Mapped[dict[str, Any]]
    # Labels of the metadata, stored separately for lists: the metadata of a large job are long.
    labels: Mapped[dict[str, Any] | None]
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
    # Blob of the trace; null until the session's chunks are merged.
    trace_blob: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    # Generation of the formats of the trace and of the chunks.
    needs: Mapped[Needs]
    # Whether a user exempted the session from the project's retention.
    pinned: Mapped[bool] = mapped_column(server_default=text("false"))
    # Times at which retention deleted the trace and the report.
    trace_removed_at: Mapped[datetime | None]
    report_removed_at: Mapped[datetime | None]

    # Why the session has no verdict: a stable code, a sentence, and details for the page.
    reason_code: Mapped[str | None]
    reason: Mapped[str | None]
    reason_detail: Mapped[dict[str, Any] | None]


class StoredVerdict(OfProject, Base):
    """The `SessionVerdict` of a report; it is kept when retention deletes the report.

    The database derives the columns for sorting, filters and sums from the document: lists need not
    read documents for them.
    """

    __tablename__ = "session_verdict"
    __table_args__ = (belongs_to("session_id", "session.id"),)

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    document: Mapped[SessionVerdict] = mapped_column(VERDICT)
    level: Mapped[str] = mapped_column(Computed("(document ->> 'level'::text)"))
    # Slowdown of the headline with its 95 % interval; null without a verdict.
    slowdown: Mapped[float | None] = _number("{headline,slowdown}")
    low: Mapped[float | None] = _number("{headline,ci95,0}")
    high: Mapped[float | None] = _number("{headline,ci95,1}")
    # Slowdown S as the paper defines it.
    published: Mapped[float | None] = _number("{published,slowdown}")
    discrepancy: Mapped[float] = _number("{discrepancy}")
    step_time_s: Mapped[float | None] = _number("{step_time_s}")
    measured_s: Mapped[float | None] = _number("{measured_s}")
    # The leading cause, and the cause's host, or the slowest worker's host if the cause has none.
    cause: Mapped[str | None] = mapped_column(Computed("(document #>> '{causes,0,cause}'::text[])"))
    host: Mapped[str | None] = mapped_column(
        Computed(
            "COALESCE((document #>> '{causes,0,host}'::text[]), "
            "(document #>> '{worst,0,host}'::text[]))"
        )
    )
    # A trigger computes the columns below as the properties of `SessionVerdict` do. waste: share of
    # a step known to be lost, also without a verdict.
    waste: Mapped[float | None] = _of_document(Double)
    # Largest loss, as a share of the time.
    lost: Mapped[float | None] = _of_document(Double)
    # Shares of the time that are lost to stragglers, between steps, and to slower computing of all
    # workers; null without a time budget.
    lost_to_stragglers: Mapped[float | None] = _of_document(Double)
    lost_between: Mapped[float | None] = _of_document(Double)
    lost_together: Mapped[float | None] = _of_document(Double)
    # Lost GPU-hours per hour, by cause.
    lost_by_cause: Mapped[dict[str, float] | None] = _of_document(JSONB)
    shares: Mapped[Shares | None] = _of_document(SHARES)


# Join of a session with its verdict, and the slowdown, which is null while the session is analyzed
# again.
OF_SESSION: Final = (StoredVerdict, StoredVerdict.session_id == Session.id)
SLOWDOWN: Final = case((Session.state == SessionState.ANALYZED, StoredVerdict.slowdown))


class StoredReport(OfProject, Base):
    """The report of a session: at most one per session, replaced by the next analysis."""

    __tablename__ = "report"
    __table_args__ = (belongs_to("session_id", "session.id"),)

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # Blobs of the document, `paceline.report/1` as zstd-compressed JSON, and of the heatmaps of
    # each step.
    document_blob: Mapped[uuid.UUID] = mapped_column(Uuid)
    # Null once retention has deleted the heatmaps.
    heatmap_blob: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class Intake(OfProject, Base):
    """The intake of a session in chunks; its row is the lock for adding chunks and sealing."""

    __tablename__ = "intake"
    __table_args__ = (
        belongs_to("session_id", "session.id"),
        UniqueConstraint("project_id", "session_id"),
        # For the sweeper, which looks for sessions to seal.
        Index("ix_intake_open", "last_chunk_at", postgresql_where=text("sealed_at IS NULL")),
    )

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    chunks: Mapped[int]
    # Number of producers with at least one chunk.
    producers: Mapped[int]
    last_chunk_at: Mapped[datetime]
    # Longest pause between two consecutive chunks so far, in seconds.
    longest_gap_s: Mapped[float]
    # Longest pause that the producers expect; 0 once a producer has sent its last chunk.
    pause_s: Mapped[float] = mapped_column(server_default=text("0"))
    refused_chunks: Mapped[int]
    refused_bytes: Mapped[int] = mapped_column(BigInteger)
    sealed_at: Mapped[datetime | None]
    sealed_by: Mapped[SealedBy | None] = mapped_column(Text)
    # Tracing span of the first chunk, in the format of the header `traceparent`; null without
    # tracing.
    traceparent: Mapped[str | None]
    # Coverage of the merged chunks, for the report; null before the merge.
    merged: Mapped[Chunks | None] = mapped_column(CHUNKS)


class Chunk(OfProject, Base):
    """A decoded chunk of a session, identified by producer and number."""

    __tablename__ = "chunk"
    __table_args__ = (belongs_to("session_id", "intake.session_id"),)

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    producer: Mapped[str] = mapped_column(primary_key=True)
    # number of the chunk among the producer's chunks, from 0
    number: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[bytes]
    received_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # Whether this is the producer's last chunk.
    final: Mapped[bool]
    body_bytes: Mapped[int] = mapped_column(BigInteger)
    operations: Mapped[int] = mapped_column(BigInteger)
    # Cells of DP rank and stage with operations, encoded as dp · stages + pp.
    cells: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    # Blob of the operations; null once they are merged into the session's trace.
    blob: Mapped[uuid.UUID | None] = mapped_column(Uuid)


class IngestRefusal(OfProject, Base):
    """Number of the bodies refused for one reason on one day."""

    __tablename__ = "ingest_refusal"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    # Error code of the refusal.
    code: Mapped[str] = mapped_column(primary_key=True)
    bodies: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)
    last_at: Mapped[datetime]
    # Job name in the latest refused body, as sent.
    last_job: Mapped[str]


class InboxItem(OfProject, Base):
    """A chunk or pulse as sent: durable before its sender is answered, decoded by a worker later.

    Decoded items are deleted; a refused chunk stays without its bytes, to report it to its
    producer.
    """

    __tablename__ = "inbox"
    __table_args__ = (
        belongs_to("session_id", "intake.session_id"),
        belongs_to("job_id", "job.id"),
        UniqueConstraint("session_id", "kind", "producer", "number"),
        CheckConstraint(
            "CASE kind WHEN 'chunk' THEN session_id IS NOT NULL"
            " ELSE job_id IS NOT NULL AND attempt IS NOT NULL END",
            name="subject",
        ),
        # For workers, which take the oldest waiting items first.
        Index("ix_inbox_waiting", "received_at", postgresql_where=text("code IS NULL")),
        Index("ix_inbox_pulse", "job_id", "attempt", "id", postgresql_where=text("kind = 'pulse'")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    kind: Mapped[InboxKind] = mapped_column(Text)
    # Null for a pulse.
    session_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    # Null for a chunk; a pulse has an empty producer and number 0.
    job_id: Mapped[int | None] = mapped_column(BigInteger)
    attempt: Mapped[int | None]
    producer: Mapped[str]
    # Number of the chunk among the producer's chunks, from 0.
    number: Mapped[int]
    sha256: Mapped[bytes]
    received_at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))
    # Whether this is the producer's last chunk.
    final: Mapped[bool]
    body_bytes: Mapped[int] = mapped_column(BigInteger)
    # Media type and format as sent; null if the decoder detects them from the bytes.
    content_type: Mapped[str | None]
    format_name: Mapped[str | None]
    meta: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    # Null once the item is refused.
    body: Mapped[bytes | None]
    # Lease of the worker that decodes the item.
    claim_token: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    lease_until: Mapped[datetime | None]
    # Number of times that a worker has leased the item.
    tries: Mapped[int] = mapped_column(server_default=text("0"))
    # Reason of the refusal; null while the item waits.
    code: Mapped[str | None]
    reason: Mapped[str | None]
    faults: Mapped[tuple[Fault, ...] | None] = mapped_column(FAULTS)
    # Generation of the formats of the body and of the metadata.
    needs: Mapped[Needs]

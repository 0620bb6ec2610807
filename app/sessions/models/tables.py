"""Tables of jobs, what is noted of them, their sessions, and the reports on these."""

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
    OfProject,
    StateColumn,
    belongs_to,
    in_project,
    one_of,
)
from app.platform.database.states import InboxKind, SealedBy, SessionState

# ---- Typed documents in the database: columns of JSON, and stored reports ----------------------


CHUNKS: Final = JsonDocument(TypeAdapter(Chunks))
# Of a body that was refused.
FAULTS: Final = JsonDocument(TypeAdapter(tuple[Fault, ...]))
VERDICT: Final = JsonDocument(TypeAdapter(SessionVerdict))
# Of a stored verdict.
CAUSES: Final = JsonDocument(TypeAdapter(tuple[VerdictCause, ...]))
SHARES: Final = JsonDocument(TypeAdapter(Shares))
COMPUTING: Final = JsonDocument(TypeAdapter(Computing))


def _of_document(kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> MappedColumn[Any]:
    """Return a column that a trigger writes with the document, whoever writes that."""
    return mapped_column(kind, FetchedValue(), nullable=True)


def _number(path: str) -> MappedColumn[Any]:
    """Return a number of a document, found anew whenever that is written."""
    return mapped_column(Double, Computed(f"((document #>> '{path}'::text[]))::double precision"))


class Session(OfProject, Base):
    """One profiling session: what was received, where it stands and what came out."""

    __tablename__ = "session"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("project_id", "id"),
        UniqueConstraint("job_id", "content_sha256"),
        UniqueConstraint("job_id", "attempt", "number"),
        one_of("state", SessionState),
        Index("ix_session_project_id_received_at_id", "project_id", "received_at", "id"),
        Index("ix_session_state_received_at", "state", "received_at"),
        # the latest sessions of each job
        Index("ix_session_job_id_received_at", "job_id", "received_at"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int]
    # Counts a job's sessions from 1: what people call it ("session 14").
    number: Mapped[int]
    # Of the body and its metadata, or of the beginnings and ends of the files of a folder: the same
    # again is the same session. Null where it came in chunks otherwise, which have their own.
    content_sha256: Mapped[bytes | None]
    state: Mapped[SessionState] = mapped_column(StateColumn(SessionState))
    received_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    state_changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))

    # metadata document as sent, normalised (app.analysis.trace.metadata)
    meta: Mapped[dict[str, Any]]
    # those of it, which lists show and ask for: of a large job it is long
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
    # null until the chunks of a session that came in such are merged
    trace_blob: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    # Its trace, its report and its heatmaps stay whatever the project's retention says.
    pinned: Mapped[bool] = mapped_column(server_default=text("false"))
    # when retention took them away
    trace_removed_at: Mapped[datetime | None]
    report_removed_at: Mapped[datetime | None]

    # why there is no verdict: a stable code, a sentence, and details for the page
    reason_code: Mapped[str | None]
    reason: Mapped[str | None]
    reason_detail: Mapped[dict[str, Any] | None]


class StoredVerdict(OfProject, Base):
    """A `SessionVerdict`, written and replaced with the report that it is of.

    It stays where retention takes the report away. Its document is written; the columns that are
    sorted, filtered and added up are made from that by the database: lists read no documents for
    them, which are stored apart.
    """

    __tablename__ = "session_verdict"
    __table_args__ = (belongs_to("session_id", "session.id"),)

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    document: Mapped[SessionVerdict] = mapped_column(VERDICT)
    level: Mapped[str] = mapped_column(Computed("(document ->> 'level'::text)"))
    # of the headline, null without a verdict
    slowdown: Mapped[float | None] = _number("{headline,slowdown}")
    low: Mapped[float | None] = _number("{headline,ci95,0}")
    high: Mapped[float | None] = _number("{headline,ci95,1}")
    # S
    published: Mapped[float | None] = _number("{published,slowdown}")
    discrepancy: Mapped[float] = _number("{discrepancy}")
    step_time_s: Mapped[float | None] = _number("{step_time_s}")
    measured_s: Mapped[float | None] = _number("{measured_s}")
    # the leading cause, and its host or that of the slowest worker
    cause: Mapped[str | None] = mapped_column(Computed("(document #>> '{causes,0,cause}'::text[])"))
    host: Mapped[str | None] = mapped_column(
        Computed(
            "COALESCE((document #>> '{causes,0,host}'::text[]), "
            "(document #>> '{worst,0,host}'::text[]))"
        )
    )
    # A trigger writes these with the document, as `SessionVerdict` computes them.
    # share of a step that is known to be lost, also without a verdict
    waste: Mapped[float | None] = _of_document(Double)
    # share of the time of the largest loss, whatever it is lost to
    lost: Mapped[float | None] = _of_document(Double)
    # lost_to_stragglers, lost_between, lost_together: shares of the time, null where it is not
    # known where that goes
    lost_to_stragglers: Mapped[float | None] = _of_document(Double)
    lost_between: Mapped[float | None] = _of_document(Double)
    lost_together: Mapped[float | None] = _of_document(Double)
    # GPU-hours each hour
    lost_by_cause: Mapped[dict[str, float] | None] = _of_document(JSONB)
    shares: Mapped[Shares | None] = _of_document(SHARES)


# What the verdict of a session is joined by, and how slow it says that is: null while the session
# is analyzed anew.
OF_SESSION: Final = (StoredVerdict, StoredVerdict.session_id == Session.id)
SLOWDOWN: Final = case((Session.state == SessionState.ANALYZED, StoredVerdict.slowdown))


class StoredReport(OfProject, Base):
    """Result of the analysis of a session: at most one, replaced as a whole."""

    __tablename__ = "report"
    __table_args__ = (belongs_to("session_id", "session.id"),)

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # `paceline.report/1` as zstd-compressed JSON, and the per-step heatmaps, both in blob_part
    document_blob: Mapped[uuid.UUID] = mapped_column(Uuid)
    # null once retention took them away
    heatmap_blob: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


# ---- Tables of sessions that come in chunks ----------------------------------------------------


class Intake(OfProject, Base):
    """What is known of the arrival of a session in chunks; others have none.

    Whoever adds a chunk or seals the session locks this row first.
    """

    __tablename__ = "intake"
    __table_args__ = (
        belongs_to("session_id", "session.id"),
        UniqueConstraint("project_id", "session_id"),
        # the sessions that the sweeper looks at
        Index("ix_intake_open", "last_chunk_at", postgresql_where=text("sealed_at IS NULL")),
    )

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    chunks: Mapped[int]
    # that sent at least one of them
    producers: Mapped[int]
    last_chunk_at: Mapped[datetime]
    # between two chunks so far
    longest_gap_s: Mapped[float]
    # that producers expect between two chunks, until the first of them has sent its last one
    pause_s: Mapped[float] = mapped_column(server_default=text("0"))
    # of chunks of this session that were not taken
    refused_chunks: Mapped[int]
    refused_bytes: Mapped[int] = mapped_column(BigInteger)
    sealed_at: Mapped[datetime | None]
    sealed_by: Mapped[SealedBy | None] = mapped_column(Text)
    # the span that began the session, as the header `traceparent` writes it; null without tracing
    traceparent: Mapped[str | None]
    # what was dropped when the chunks were merged, as reports show it; null until then
    merged: Mapped[Chunks | None] = mapped_column(CHUNKS)


class Chunk(OfProject, Base):
    """One chunk of a session: identified by producer and number, and by its bytes."""

    __tablename__ = "chunk"
    __table_args__ = (belongs_to("session_id", "intake.session_id"),)

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    producer: Mapped[str] = mapped_column(primary_key=True)
    # counts a producer's chunks from 0
    number: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[bytes]
    received_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # the producer sends none with a higher number
    final: Mapped[bool]
    body_bytes: Mapped[int] = mapped_column(BigInteger)
    operations: Mapped[int] = mapped_column(BigInteger)
    # DP × PP cells with operations: dp · stages + pp
    cells: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    # null once it is part of the session's trace
    blob: Mapped[uuid.UUID | None] = mapped_column(Uuid)


class IngestRefusal(OfProject, Base):
    """Bodies of a day that were refused for one reason."""

    __tablename__ = "ingest_refusal"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    # of the problem that answered them
    code: Mapped[str] = mapped_column(primary_key=True)
    bodies: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)
    last_at: Mapped[datetime]
    # as its sender called it
    last_job: Mapped[str]


class InboxItem(OfProject, Base):
    """A body as it came: durable when its sender is answered, decoded by a worker afterwards.

    Senders only append. What was taken is deleted; a chunk that was refused stays, without its
    bytes, to be named to its producer.
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
        # what workers look for, the oldest first
        Index("ix_inbox_waiting", "received_at", postgresql_where=text("code IS NULL")),
        Index("ix_inbox_pulse", "job_id", "attempt", "id", postgresql_where=text("kind = 'pulse'")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    kind: Mapped[InboxKind] = mapped_column(Text)
    # of a chunk
    session_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    # of a pulse, which has no producer, and 0 for a number
    job_id: Mapped[int | None] = mapped_column(BigInteger)
    attempt: Mapped[int | None]
    producer: Mapped[str]
    # counts a producer's chunks from 0
    number: Mapped[int]
    sha256: Mapped[bytes]
    received_at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))
    # the producer sends none with a higher number
    final: Mapped[bool]
    body_bytes: Mapped[int] = mapped_column(BigInteger)
    # as the sender told them; null where the bytes say it
    content_type: Mapped[str | None]
    format_name: Mapped[str | None]
    meta: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    # null once it was refused
    body: Mapped[bytes | None]
    # the worker that decodes it, and until when the others leave it alone
    claim_token: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    lease_until: Mapped[datetime | None]
    # how often a worker began to decode it
    tries: Mapped[int] = mapped_column(server_default=text("0"))
    # why it was refused; null while it waits
    code: Mapped[str | None]
    reason: Mapped[str | None]
    faults: Mapped[tuple[Fault, ...] | None] = mapped_column(FAULTS)

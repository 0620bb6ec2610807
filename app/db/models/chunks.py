"""Tables of sessions that come in chunks."""

from __future__ import annotations

import uuid
from datetime import date, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Date,
    Identity,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.analysis.report.coverage import Chunks
from app.db.documents import CHUNKS, FAULTS
from app.db.models.base import Base, OfProject, belongs_to, in_project
from app.db.states import InboxKind, SealedBy
from app.errors import Fault


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

"""Tables of sessions that come in chunks."""

from __future__ import annotations

import uuid
from datetime import date, datetime

from sqlalchemy import BigInteger, Date, Index, Integer, Text, UniqueConstraint, Uuid, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from app.analysis.report.coverage import Chunks
from app.db.documents import CHUNKS
from app.db.models.base import Base, OfProject, belongs_to, in_project
from app.db.states import SealedBy


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

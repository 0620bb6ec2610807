"""Tables of jobs, what is noted of them, their sessions, and the reports on these."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Computed,
    Double,
    FetchedValue,
    Identity,
    Index,
    UniqueConstraint,
    Uuid,
    case,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, MappedColumn, mapped_column

from app.analysis.budget.document import Shares
from app.analysis.report.verdict import SessionVerdict
from app.db.documents import SHARES, VERDICT
from app.db.models.base import Base, OfProject, belongs_to, in_project
from app.db.state_column import StateColumn, one_of
from app.db.states import NoteKind, SessionState

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine


def _of_document(kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> MappedColumn[Any]:
    """Return a column that a trigger writes with the document, whoever writes that."""
    return mapped_column(kind, FetchedValue(), nullable=True)


def _number(path: str) -> MappedColumn[Any]:
    """Return a number of a document, found anew whenever that is written."""
    return mapped_column(Double, Computed(f"((document #>> '{path}'::text[]))::double precision"))


class Job(OfProject, Base):
    """A training job, known by the name that its sessions are sent under."""

    __tablename__ = "job"
    __table_args__ = (
        in_project(),
        UniqueConstraint("project_id", "name"),
        UniqueConstraint("project_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # From then on the fleet leaves it out, until it sends again.
    archived_at: Mapped[datetime | None]
    # The job said that it ended; sessions of another start take that back.
    finished_at: Mapped[datetime | None]


class Attempt(OfProject, Base):
    """A start of a job that was announced; sessions may name others too."""

    __tablename__ = "attempt"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("job_id", "run_id", "restart"),
        # counted by project, for its quota
        Index("ix_attempt_project_id", "project_id"),
    )

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # counts the job's starts from 1
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # what the launcher calls the run, and how often it has restarted it
    run_id: Mapped[str]
    restart: Mapped[int]
    announced_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class JobNote(OfProject, Base):
    """Something that happened to a job at a time: a deployment, a change, a remark."""

    __tablename__ = "job_note"
    __table_args__ = (
        one_of("kind", NoteKind),
        belongs_to("job_id", "job.id"),
        Index("ix_job_note_job_id_at", "job_id", "at"),
        Index("ix_job_note_project_id", "project_id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    # when it happened; it may be noted later
    at: Mapped[datetime]
    kind: Mapped[NoteKind] = mapped_column(StateColumn(NoteKind))
    words: Mapped[str]
    author: Mapped[str]
    noted_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


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
    # Of these a trigger writes what `SessionVerdict` says (revision 0014).
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

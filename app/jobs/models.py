"""Tables of jobs: jobs, attempts, notes, weekly summaries and saved views."""

from __future__ import annotations

import uuid
from datetime import date, datetime
from typing import Any

from sqlalchemy import BigInteger, Date, Identity, Index, UniqueConstraint, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.models.tables import DeliveryState
from app.platform.database.columns import (
    Base,
    OfProject,
    StateColumn,
    belongs_to,
    in_project,
    one_of,
)
from app.platform.database.states import NoteKind


class Job(OfProject, Base):
    """A training job, identified within its project by the name in its sessions."""

    __tablename__ = "job"
    __table_args__ = (
        in_project(),
        UniqueConstraint("project_id", "name"),
        UniqueConstraint("project_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # Since this time the fleet's lists omit the job, until it sends a new session.
    archived_at: Mapped[datetime | None]
    # Reported end of the job; a session of a later start resets it to null.
    finished_at: Mapped[datetime | None]


class Attempt(OfProject, Base):
    """A start of a job that its launcher announced; a session may name an unannounced attempt."""

    __tablename__ = "attempt"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("job_id", "run_id", "restart"),
        # for the quota of attempts, which counts them by project
        Index("ix_attempt_project_id", "project_id"),
    )

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # number of the start within the job, from 1
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # id of the run and number of restarts, as the launcher reports them
    run_id: Mapped[str]
    restart: Mapped[int]
    announced_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class JobNote(OfProject, Base):
    """An event of a job at a point in time: a deployment, a change, a remark."""

    __tablename__ = "job_note"
    __table_args__ = (
        one_of("kind", NoteKind),
        belongs_to("job_id", "job.id"),
        Index("ix_job_note_job_id_at", "job_id", "at"),
        Index("ix_job_note_project_id", "project_id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    # time of the event; the note may be written later
    at: Mapped[datetime]
    kind: Mapped[NoteKind] = mapped_column(StateColumn(NoteKind))
    words: Mapped[str]
    author: Mapped[str]
    noted_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class WeeklySummary(OfProject, Base):
    """The weekly summary of a rule for a channel; sent at least once, always with this id."""

    __tablename__ = "weekly_summary"
    __table_args__ = (
        one_of("state", DeliveryState),
        belongs_to("channel_id", "alert_channel.id"),
        # at most one summary for each rule, channel and week
        UniqueConstraint("rule_id", "channel_id", "week"),
        Index(
            "ix_weekly_summary_due",
            "next_attempt_at",
            postgresql_where=text("state = 'waiting'"),
        ),
        Index("ix_weekly_summary_channel_id", "channel_id"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # no foreign key: the summary is kept when its rule is deleted
    rule_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    channel_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    # the Monday of the week in which the summary was due
    week: Mapped[date] = mapped_column(Date)
    # the period that the summary covers
    since: Mapped[datetime]
    until: Mapped[datetime]
    state: Mapped[DeliveryState] = mapped_column(StateColumn(DeliveryState))
    attempt: Mapped[int]
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # content fixed by the first attempt: an `app.incidents.channels.kind.Note`
    note: Mapped[dict[str, Any] | None]
    finished_at: Mapped[datetime | None]
    error_code: Mapped[str | None]
    error: Mapped[str | None]


class SavedView(OfProject, Base):
    """A person's filter and order of the fleet, saved under a name."""

    __tablename__ = "saved_view"
    __table_args__ = (in_project(), UniqueConstraint("project_id", "owner", "name"))

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # full name of a person, ``token NAME``, or empty for all users who are not signed in
    owner: Mapped[str]
    name: Mapped[str]
    # parameters in the address of the fleet's page, without the question mark
    query: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))

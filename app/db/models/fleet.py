"""Tables of the fleet's report: what each session is in its figures, and the weekly summaries."""

from __future__ import annotations

import uuid
from datetime import date, datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Date, Double, Index, UniqueConstraint, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.alerts.states import DeliveryState
from app.db.models.base import Base, OfProject, belongs_to
from app.db.state_column import StateColumn, one_of


class SessionFigure(OfProject, Base):
    """A session with a verdict in the figures: an `app.analysis.fleet.figures.SessionFigures`."""

    __tablename__ = "session_figure"
    __table_args__ = (
        belongs_to("session_id", "session.id"),
        belongs_to("job_id", "job.id"),
        Index("ix_session_figure_project_id_received_at", "project_id", "received_at"),
        Index("ix_session_figure_job_id", "job_id"),
    )

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    # of the session
    received_at: Mapped[datetime]
    gpus: Mapped[int]
    stages: Mapped[int]
    # tokens; null where metadata do not say
    context: Mapped[int | None] = mapped_column(BigInteger)
    # S, and GPU-hours lost each hour against the headline's reference
    slowdown: Mapped[float] = mapped_column(Double)
    lost_each_hour: Mapped[float] = mapped_column(Double)
    # how long the analyzed steps took, seconds
    measured_s: Mapped[float] = mapped_column(Double)
    m_w: Mapped[float | None] = mapped_column(Double)
    m_s: Mapped[float | None] = mapped_column(Double)
    correlation: Mapped[float | None] = mapped_column(Double)
    # share of a step that each kind of operation wastes alone
    waste: Mapped[dict[str, float]] = mapped_column(JSONB)
    # quantiles of a step's slowdown ÷ S
    steps: Mapped[list[float]] = mapped_column(ARRAY(Double))
    # GPU-hours each hour that each cause costs
    causes: Mapped[dict[str, float]] = mapped_column(JSONB)


class WeeklySummary(OfProject, Base):
    """The summary of a week for a channel, of a rule: sent at least once, under this id."""

    __tablename__ = "weekly_summary"
    __table_args__ = (
        one_of("state", DeliveryState),
        belongs_to("channel_id", "alert_channel.id"),
        # Whatever else happens: one of each week.
        UniqueConstraint("rule_id", "channel_id", "week"),
        Index(
            "ix_weekly_summary_due",
            "next_attempt_at",
            postgresql_where=text("state = 'waiting'"),
        ),
        Index("ix_weekly_summary_channel_id", "channel_id"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # It stays when its rule is deleted.
    rule_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    channel_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    # the Monday of the week in which it was due
    week: Mapped[date] = mapped_column(Date)
    # what it is about
    since: Mapped[datetime]
    until: Mapped[datetime]
    state: Mapped[DeliveryState] = mapped_column(StateColumn(DeliveryState))
    attempt: Mapped[int]
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # fixed by the first attempt: an `app.alerts.channels.note.Note`
    note: Mapped[dict[str, Any] | None]
    finished_at: Mapped[datetime | None]
    error_code: Mapped[str | None]
    error: Mapped[str | None]

"""Tables of the fleet: weekly summaries, and views that people save."""

from __future__ import annotations

import uuid
from datetime import date, datetime
from typing import Any

from sqlalchemy import Date, Index, UniqueConstraint, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.alerts.states import DeliveryState
from app.db.models.base import Base, OfProject, belongs_to, in_project
from app.db.state_column import StateColumn, one_of


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


class SavedView(OfProject, Base):
    """A filter and an order of the fleet under a name, of one person."""

    __tablename__ = "saved_view"
    __table_args__ = (in_project(), UniqueConstraint("project_id", "owner", "name"))

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # the full name of a person, ``token NAME``, or empty for all who did not sign in
    owner: Mapped[str]
    name: Mapped[str]
    # of the fleet's address, without the question mark
    query: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))

"""The table of applied fixes, with predicted and measured gains."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKeyConstraint,
    Identity,
    Index,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.platform.database.columns import Base, OfProject, StateColumn, belongs_to, one_of
from app.platform.database.states import FixSource


class AppliedFix(OfProject, Base):
    """A fix of a session's report that was applied, and the session that measured it."""

    __tablename__ = "applied_fix"
    __table_args__ = (
        one_of("source", FixSource),
        belongs_to("job_id", "job.id"),
        belongs_to("session_id", "session.id"),
        # If the measuring session is deleted, the next session measures the fix again.
        ForeignKeyConstraint(
            ["project_id", "measured_by"],
            ["session.project_id", "session.id"],
            onupdate="CASCADE",
            ondelete="SET NULL (measured_by)",
        ),
        UniqueConstraint("session_id", "action", "title"),
        Index("ix_applied_fix_job_id_applied_at", "job_id", "applied_at"),
        Index("ix_applied_fix_project_id_applied_at", "project_id", "applied_at"),
        Index("ix_applied_fix_measured_by", "measured_by"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    # The session whose report predicted the gain.
    session_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    action: Mapped[str]
    title: Mapped[str]
    applied_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # The user who marked the fix; null if the metadata of a session show the fix.
    applied_by: Mapped[str | None]
    source: Mapped[FixSource] = mapped_column(StateColumn(FixSource))
    # Mean recorded step time of the session `session_id`, and the share of it that the fix would
    # save.
    step_time_s: Mapped[float] = mapped_column(Double)
    predicted_gain: Mapped[float] = mapped_column(Double)
    # Whether the predicted gain is only an upper bound.
    at_most: Mapped[bool]

    # The first session with the fix; null until it is received.
    measured_by: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    realized_step_time_s: Mapped[float | None] = mapped_column(Double)
    realized_gain: Mapped[float | None] = mapped_column(Double)
    # Reason why the two sessions cannot be compared; null if they can.
    unlike: Mapped[str | None]

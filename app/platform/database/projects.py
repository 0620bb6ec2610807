"""The table of projects, and the condition that a row's project is not deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Identity, select, text
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column

from app.platform.database.columns import Base

# The project of installations that need only one; the first row of the table.
DEFAULT_PROJECT: Final = "default"


class Project(Base):
    """A tenant: its jobs, alerts and plans are separate from those of other projects."""

    __tablename__ = "project"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # Since this time the project is closed and its name is free; its contents are deleted in
    # batches.
    deleted_at: Mapped[datetime | None]
    # Whether the server refuses pulses of the project's jobs.
    pulse_off: Mapped[bool] = mapped_column(server_default=text("false"))


def is_there(project_id: ColumnElement[int] | InstrumentedAttribute[int]) -> ColumnElement[bool]:
    """Return the condition that a row's project is not deleted.

    For transactions of all projects: a transaction of a deleted project cannot be opened.
    """
    return project_id.not_in(select(Project.id).where(Project.deleted_at.is_not(None)))

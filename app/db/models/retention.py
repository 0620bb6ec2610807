"""Tables of what a project uses, of what is kept for how long, and of what is about to go."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import BigInteger, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.db.documents import RETENTION
from app.db.models.base import Base, OfProject, in_project
from app.inputs.retention import RetentionRules


class Retention(OfProject, Base):
    """What a project keeps; one without a row keeps what `RetentionRules` says by itself."""

    __tablename__ = "retention"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rules: Mapped[RetentionRules] = mapped_column(RETENTION)
    # by the sweeper, to the end: it looks every few minutes
    looked_at: Mapped[datetime | None]


class DoomedBlob(OfProject, Base):
    """A blob that nothing refers to any more; the sweeper takes it away part by part."""

    __tablename__ = "doomed_blob"
    __table_args__ = (in_project(),)

    blob_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)


class ProjectUsage(OfProject, Base):
    """Running sums of one project; a project without a row has used nothing.

    Whoever stores something of a project adds to its row last in its transaction: from then on
    others of the project wait for the commit, so a quota is kept exactly.
    """

    __tablename__ = "project_usage"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # the hour that `hour_sessions` counts
    hour: Mapped[datetime]
    hour_sessions: Mapped[int]
    # of all its sessions that are there
    bytes: Mapped[int] = mapped_column(BigInteger)
    operations: Mapped[int] = mapped_column(BigInteger)

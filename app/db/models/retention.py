"""Tables of what is kept for how long, and of what is about to go."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import Uuid
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

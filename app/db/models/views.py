"""Table of saved views: names that people give to what they ask a list for."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import UniqueConstraint, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.models.base import Base, OfProject, in_project


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

"""Table of blobs: traces, reports and templates, in pieces."""

from __future__ import annotations

import uuid

from sqlalchemy import Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.db.models.base import Base, OfProject, in_project


class BlobPart(OfProject, Base):
    """A piece of at most 4 MiB of a blob; reached only through `app.db.blobs`."""

    __tablename__ = "blob_part"
    __table_args__ = (in_project(),)

    blob_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]

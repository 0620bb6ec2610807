"""Tables of blobs: traces, reports and templates, in pieces here or as objects elsewhere."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, UniqueConstraint, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.models.base import Base, OfProject, in_project


class BlobPart(OfProject, Base):
    """A piece of at most 4 MiB of a blob; reached only through `app.db.blobs`."""

    __tablename__ = "blob_part"
    __table_args__ = (in_project(),)

    blob_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class BlobObject(OfProject, Base):
    """A blob whose bytes an object store has; without this row they are not referenced."""

    __tablename__ = "blob_object"
    __table_args__ = (in_project(), UniqueConstraint("key", "project_id"))

    blob_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # names the project that the bytes were received in, which is not always the present one
    key: Mapped[str]
    bytes: Mapped[int] = mapped_column(BigInteger)
    stored_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class UnreferencedObject(Base):
    """An object that a listing found and no row refers to; it goes when that has been so long."""

    __tablename__ = "unreferenced_object"

    key: Mapped[str] = mapped_column(primary_key=True)
    seen_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class ObjectLook(Base):
    """How far the present look through the object store is: one row, locked by who looks."""

    __tablename__ = "object_look"
    __table_args__ = (CheckConstraint("id = 1", name="only_one"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # when to look again, or to go on
    due_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # the present look goes on after this key; null where none is under way
    after: Mapped[str | None]

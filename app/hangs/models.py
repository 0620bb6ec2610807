"""Tables of hangs: hangs with verdicts, their files, and large archives that workers read."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

import zstandard
from pydantic import TypeAdapter
from sqlalchemy import BigInteger, Double, Index, UniqueConstraint, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.analysis.hangs.document import HangDocument
from app.analysis.hangs.findings import HangKind
from app.hangs.files import FileKind
from app.platform.database.columns import Base, OfProject, StateColumn, belongs_to, one_of
from app.platform.database.states import UploadState

_HANG: Final = TypeAdapter(HangDocument)


def open_hang(stored: bytes) -> HangDocument:
    """Return the document of a hang from its stored bytes."""
    return _HANG.validate_json(zstandard.decompress(stored))


class StoredHang(OfProject, Base):
    """A hang of a job, and the verdict on it."""

    __tablename__ = "hang"
    __table_args__ = (
        one_of("kind", HangKind),
        belongs_to("job_id", "job.id"),
        UniqueConstraint("project_id", "id"),
        UniqueConstraint("job_id", "content_sha256"),
        Index("ix_hang_job_id_created_at", "job_id", "created_at"),
        Index("ix_hang_project_id_created_at", "project_id", "created_at"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # when the last file of the hang was received
    changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # digest of the archive; null if the files were sent one by one
    content_sha256: Mapped[bytes | None]
    # when the hang ended, and the person who ended it; null if a later session or the pulse showed
    # that it ended
    over_at: Mapped[datetime | None]
    over_by: Mapped[str | None]
    kind: Mapped[HangKind] = mapped_column(StateColumn(HangKind))
    sentence: Mapped[str]
    # when the ranks began to wait, by the clocks of their hosts
    since: Mapped[datetime | None]
    ranks: Mapped[int]
    waiting: Mapped[int]
    culprits: Mapped[int]
    confidence: Mapped[float] = mapped_column(Double)
    # app.analysis.hangs.document.HangDocument as JSON, compressed with zstd
    document: Mapped[bytes]


class StoredHangFile(OfProject, Base):
    """The latest parsed file of each rank and kind of a hang."""

    __tablename__ = "hang_file"
    __table_args__ = (one_of("kind", FileKind), belongs_to("hang_id", "hang.id"))

    hang_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    kind: Mapped[FileKind] = mapped_column(StateColumn(FileKind), primary_key=True)
    # rank of the file; -1 if the file covers all ranks
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # app.hangs.files.HangFile as JSON, compressed with zstd
    content: Mapped[bytes]


class HangUpload(OfProject, Base):
    """An archive with the files of a hang; its bytes are deleted once a worker has read it."""

    __tablename__ = "hang_upload"
    __table_args__ = (
        one_of("state", UploadState),
        belongs_to("job_id", "job.id"),
        UniqueConstraint("project_id", "id"),
        UniqueConstraint("job_id", "content_sha256"),
        Index("ix_hang_upload_project_id_created_at", "project_id", "created_at"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    content_sha256: Mapped[bytes]
    state: Mapped[UploadState] = mapped_column(StateColumn(UploadState))
    # code of the error for which the archive was refused
    reason_code: Mapped[str | None]
    reason: Mapped[str | None]
    # the hang that the archive's files belong to, which may be deleted before this row
    hang_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    not_read: Mapped[list[str]] = mapped_column(JSONB, server_default=text("'[]'"))


class HangUploadPart(OfProject, Base):
    """A piece of the bytes of an archive that no worker has read yet."""

    __tablename__ = "hang_upload_part"
    __table_args__ = (belongs_to("upload_id", "hang_upload.id"),)

    upload_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content: Mapped[bytes]

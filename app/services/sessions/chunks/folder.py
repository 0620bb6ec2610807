"""Use cases: the files of a folder, sent one after the other, become one session.

They are chunks of a session that their content names, not a number: so the same folder is the same
session, and what came before a line broke need not come again. It is analyzed when whoever sends
it says that all is here. If that is never said, it is discarded (`seal.seal_silent`).
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from app.analysis.trace.recordings.files.names import FileNames, rank_in
from app.analysis.trace.unmapped import said, with_unmapped
from app.db.models.chunks import Chunk, Intake
from app.db.models.sessions import Job, Session
from app.errors import InvalidFolderError, NotFoundError
from app.inputs.recordings.listing import MAX_FILE_NAME_CHARS
from app.inputs.recordings.read import left_out
from app.services.sessions.chunks.path import ChunkPath, ChunkReceipt
from app.services.sessions.chunks.receive import receive_chunk
from app.services.sessions.chunks.seal import SealReceipt, seal_session
from app.services.sessions.receive import FIRST_ATTEMPT, check_job_name

if TYPE_CHECKING:
    from app.db.states import SessionState
    from app.inputs.recordings.choose import NotRead
    from app.services.container import Container
    from app.services.sessions.body import Body

_FOLDER: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FolderStanding:
    """What has come of a folder."""

    session: uuid.UUID
    number: int
    state: SessionState
    files: tuple[str, ...]  # names of those that are here
    sealed: bool


def folder_path(job: str, folder: str, name: str) -> ChunkPath:
    """Return the path of a file of a folder, which has one part.

    Raises
    ------
    InvalidJobNameError
    InvalidFolderError
        ``folder.malformed``: the folder is no digest, or the name is none that is shown.
    """
    check_job_name(job)
    if not _FOLDER.fullmatch(folder):
        raise InvalidFolderError("A folder is named by 64 hex digits.", code="folder.malformed")
    if not 0 < len(name) <= MAX_FILE_NAME_CHARS or "\0" in name:
        message = f"A file's name has 1 to {MAX_FILE_NAME_CHARS} characters."
        raise InvalidFolderError(message, code="folder.malformed")
    return ChunkPath(job, FIRST_ATTEMPT, 0, name, 0, _content(folder))


def receive_file(
    container: Container, path: ChunkPath, body: Body, world: int | None
) -> ChunkReceipt:
    """Decode and check a file of a folder, and store it durably; the first makes the session.

    Parameters
    ----------
    world : int or None
        How many files there are, where their names say that they are those of all ranks.

    Raises
    ------
    See `receive_chunk`; also ``file.mixed_formats``.
    """
    names = FileNames(rank_in(path.producer), world)
    return receive_chunk(container, path, replace(body, names=names), final=False)


def folder_standing(container: Container, job: str, folder: str) -> FolderStanding | None:
    """Return what has come of a folder; None where nothing has."""
    path = folder_path(job, folder, "any")
    with container.reading() as tx:
        row = tx.session.execute(
            select(Session.id, Session.number, Session.state, Intake.sealed_at)
            .join(Job)
            .join(Intake, Intake.session_id == Session.id)
            .where(path.names_session())
        ).one_or_none()
        if row is None:
            return None
        names = tx.session.execute(
            select(Chunk.producer).where(Chunk.session_id == row.id).order_by(Chunk.producer)
        ).scalars()
        return FolderStanding(
            row.id, row.number, row.state, tuple(names), row.sealed_at is not None
        )


def seal_folder(
    container: Container, job: str, folder: str, not_read: Sequence[NotRead]
) -> SealReceipt:
    """Seal the session of a folder, all of which is here, and queue its analysis.

    Parameters
    ----------
    not_read : sequence of NotRead
        The other files of the folder, which its report names.

    Raises
    ------
    NotFoundError
        Nothing of the folder is here.
    """
    path = folder_path(job, folder, "any")
    with container.uow() as tx:
        session = tx.session.execute(
            select(Session)
            .join(Job)
            .join(Intake, Intake.session_id == Session.id)
            .where(path.names_session(), Intake.sealed_at.is_(None))
            .with_for_update(of=Session)
        ).scalar_one_or_none()
        if session is not None and not_read:
            known = said(session.meta)
            session.meta = with_unmapped(session.meta, (*known, *left_out(not_read)))
    standing = folder_standing(container, job, folder)
    if standing is None:
        raise NotFoundError("Nothing of this folder is here.")
    return seal_session(container, job, FIRST_ATTEMPT, standing.number)


def _content(folder: str) -> bytes:
    # Apart from the digests of bodies.
    return hashlib.sha256(b"folder " + folder.encode()).digest()

"""What names a chunk, and what is answered for one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import and_

from app.access.names import is_plain_name
from app.db.models.sessions import Job, Session
from app.db.states import SessionState
from app.errors import Fault, PacelineError
from app.services.sessions.receive import check_job_name

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.analysis.trace.unmapped import Unmapped

MAX_PRODUCER_CHARACTERS: Final = 200


class InvalidProducerError(PacelineError):
    """A producer's name that would not survive in an address or on a page."""

    code = "producer.invalid_name"


@dataclass(frozen=True, slots=True)
class SessionPath:
    """What names a session of an attempt."""

    job: str
    attempt: int
    session: int

    def names_session(self) -> ColumnElement[bool]:
        """Return the condition under which a session and its job are the named ones."""
        return and_(
            Job.name == self.job,
            Session.attempt == self.attempt,
            Session.number == self.session,
        )


@dataclass(frozen=True, slots=True)
class ChunkPath:
    """What names a chunk: `session` counts within the attempt, `number` within the producer.

    Files of a folder name its content in place of the session, which the first one makes.
    """

    job: str
    attempt: int
    session: int
    producer: str
    number: int
    folder: bytes | None = None

    def names_session(self) -> ColumnElement[bool]:
        """Return the condition under which a session and its job are the named ones."""
        if self.folder is not None:
            return and_(Job.name == self.job, Session.content_sha256 == self.folder)
        return self.of.names_session()

    @property
    def of(self) -> SessionPath:
        """Return what names its session, where no folder does."""
        return SessionPath(self.job, self.attempt, self.session)


@dataclass(frozen=True, slots=True)
class RefusedChunk:
    """A chunk that was acknowledged and could not be taken: why, and where its faults are."""

    producer: str
    number: int
    code: str
    reason: str
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class ChunkReceipt:
    """The session that a chunk belongs to; `created` unless the chunk was there already.

    `operations` is None while the chunk waits for a worker. `refused` are earlier chunks of the
    same producer that could not be taken.
    """

    session: uuid.UUID
    number: int
    state: SessionState
    operations: int | None
    created: bool
    unmapped: tuple[Unmapped, ...] = ()
    refused: tuple[RefusedChunk, ...] = ()


def check_path(path: ChunkPath) -> None:
    """Check the names in a chunk's path.

    Raises
    ------
    InvalidJobNameError, InvalidProducerError
        If one is empty, too long, not printable, or means a folder in an address.
    """
    check_job_name(path.job)
    if not is_plain_name(path.producer, MAX_PRODUCER_CHARACTERS):
        raise InvalidProducerError(
            f"A producer's name has 1 to {MAX_PRODUCER_CHARACTERS} printable characters, "
            "without a slash and without blanks around it."
        )

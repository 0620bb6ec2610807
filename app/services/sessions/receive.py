"""Receive a session: one body in, a stored session and the work that it causes out."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import structlog
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from app.access.lookalikes import lookalike
from app.access.names import job_name_fault
from app.analysis.trace.decode import decode
from app.analysis.trace.formats.kind import Decoded
from app.analysis.trace.formats.registry import format_named
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.ndjson.streams import GZIP_MAGIC, ZSTD_MAGIC
from app.analysis.trace.storage import pack
from app.db.blobs import write_blob
from app.db.models.sessions import Job, Session
from app.db.models.tasks import ANALYZE_SESSION
from app.db.states import SessionState
from app.errors import BusyError, InvalidTraceError, NotFoundError, PacelineError
from app.inputs.recordings.archive import unpacked
from app.inputs.recordings.archive_kinds import archive_at, other_archive
from app.inputs.recordings.choose import choose, look_at, metadata_among, metadata_of
from app.inputs.recordings.read import Reading, read_files, with_not_read
from app.services.ingest.place import spool_directory
from app.services.usage.count import check_room, count, count_made
from app.services.usage.quotas import JOBS, SUMMED

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Select

    from app.analysis.trace.model import SessionMeta
    from app.analysis.trace.recordings.files.names import FileNames
    from app.analysis.trace.recordings.own.ranges import OwnRanges
    from app.analysis.trace.unmapped import Unmapped
    from app.db.blobs import Staged
    from app.db.unit_of_work import UnitOfWork
    from app.inputs.recordings.choose import NotRead
    from app.services.container import Container
    from app.settings import Settings

log = structlog.get_logger(__name__)

# A header line holds sizes, hosts and GPUs of every rank: 16,384 ranks need about 1 MiB.
MAX_HEADER_BYTES: Final = 8 * 1024 * 1024

# Bytes of a body from which on lines are read by compiled code: 20,000 operations as gzip.
COMPILED_FROM_BYTES: Final = 256 * 1024

# A session that comes in one body belongs to the first attempt: only chunks name theirs.
FIRST_ATTEMPT: Final = 1

# A job that is made or deleted meanwhile is looked for again.
TRIES: Final = 10


class InvalidJobNameError(PacelineError):
    """A job's name that would not survive in an address or on a page."""

    code = "job.invalid_name"


@dataclass(frozen=True, slots=True)
class Body:
    """A body that has arrived whole."""

    source: Path | bytes
    """Where its bytes can be read, or the bytes themselves of a small chunk."""
    size: int
    """Bytes."""
    sha256: bytes
    """Digest of the bytes."""
    content_type: str | None
    """What the sender calls them; None lets the decoder look."""
    meta: SessionMeta | None
    """None where the body itself carries the metadata."""
    format_name: str | None = None
    """Name of its format; None lets the decoder look."""
    own: OwnRanges | None = None
    """What the job calls ranges of its own."""
    names: FileNames | None = None
    """What the names of the files say that it is one of."""

    @property
    def path(self) -> Path:
        """Return where its bytes can be read.

        Raises
        ------
        TypeError
            It is in memory: only chunks are.
        """
        if isinstance(self.source, bytes):
            raise TypeError("the body is in memory")
        return self.source

    def content(self) -> bytes:
        """Return its bytes."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()


@dataclass(frozen=True, slots=True)
class Receipt:
    """The session that a body became, or already was; `unmapped` is what else it holds.

    `not_read` are the files of an archive that are no recordings.
    """

    session: uuid.UUID
    job: str
    number: int
    state: SessionState
    operations: int
    created: bool
    unmapped: tuple[Unmapped, ...] = ()
    not_read: tuple[NotRead, ...] = ()


class _AlreadyStoredError(Exception):
    """Another request stored the same body meanwhile: roll back what this one wrote."""

    def __init__(self, receipt: Receipt) -> None:
        super().__init__()
        self.receipt = receipt


def trace_limits(settings: Settings) -> Limits:
    """Return what a decoder may read of one body."""
    return Limits(
        max_decompressed_bytes=settings.max_decompressed_bytes,
        max_rows=settings.max_rows,
        max_header_bytes=MAX_HEADER_BYTES,
    )


def check_job_name(name: str) -> None:
    """Check a job's name.

    Raises
    ------
    InvalidJobNameError
        If it is empty, too long, not printable, or means a folder in an address.
    """
    fault = job_name_fault(name)
    if fault is not None:
        raise InvalidJobNameError(fault)


def check_new_job_name(name: str) -> None:
    """Check the name that a job is to get; jobs that have such a name keep it.

    Raises
    ------
    InvalidJobNameError
        As for any name, and if it can be taken for another one.
    """
    check_job_name(name)
    alike = lookalike(name)
    if alike is not None:
        raise InvalidJobNameError(f"The name {name} {alike}. Give the job another name.")


def no_job(job: str) -> NotFoundError:
    """Return what is raised where there is no such job."""
    return NotFoundError(f"There is no job {job}.")


def make_job(container: Container, tx: UnitOfWork, name: str) -> int:
    """Return the id of a job, made where it is new; until the commit its row is locked.

    Raises
    ------
    InvalidJobNameError
        If it is new, and its name can be taken for another one.
    QuotaExceededError
        If it is new, and the project has as many as it may.
    BusyError
        If it comes and goes.
    """
    found = select(Job.id, func.now()).where(Job.name == name).with_for_update(key_share=True)
    made = (
        insert(Job).values(name=name, created_at=tx.now).on_conflict_do_nothing().returning(Job.id)
    )
    for _ in range(TRIES):
        there = tx.session.execute(found).one_or_none()
        if there is not None:
            tx.is_at(there[1])
            return there[0]
        check_new_job_name(name)
        job_id = tx.session.execute(made).scalar()
        if job_id is not None:
            count_made(tx, container.settings, container.project_id, JOBS)
            return job_id
    raise BusyError(f"Others make and delete the job {name} at this moment; try again.")


def receive_session(container: Container, job: str, body: Body) -> Receipt:
    """Decode and check a body, and store it durably together with the work that it causes.

    An archive of a folder is one session, of all recordings in it.

    The same bytes with the same metadata are the same session of a job, also when they arrive
    twice at the same time.

    Parameters
    ----------
    job : str
        Name of the job; made if it is new.

    Returns
    -------
    Receipt
        Only after the commit: what it says survives a crash.

    Raises
    ------
    InvalidJobNameError, InvalidTraceError, InvalidMetadataError, UnsupportedFormatError,
    InvalidArchiveError, InvalidFolderError, UnanalyzableError, BodyTooLargeError,
    QuotaExceededError, ObjectStoreError
        Nothing is stored.
    """
    check_job_name(job)
    if body.size == 0:
        raise InvalidTraceError("The body is empty.", code="trace.empty")
    content = _content_sha256(body)
    with container.uow() as tx:
        known = _find(tx, job, content)
        if known is not None:
            # A repeated body need not be decoded to be recognized.
            return known
        check_room(tx, container.settings, container.project_id, SUMMED)
    decoded, not_read = _decoded(container.settings, body)
    staged = container.stage(pack(decoded.trace))
    try:
        with container.uow() as tx:
            receipt = _store(container, tx, job, content, body=body, decoded=decoded, staged=staged)
            count(
                tx,
                container.settings,
                container.project_id,
                sessions=1,
                size=body.size,
                operations=receipt.operations,
                quotas=SUMMED,
            )
    except _AlreadyStoredError as twin:
        return twin.receipt
    receipt = replace(receipt, not_read=not_read)
    log.info(
        "session received",
        session=str(receipt.session),
        job=job,
        number=receipt.number,
        bytes=body.size,
        operations=receipt.operations,
    )
    return receipt


def _decoded(settings: Settings, body: Body) -> tuple[Decoded, tuple[NotRead, ...]]:
    """Return what a body holds, and of an archive the files that are not read."""
    limits = trace_limits(settings)
    if body.size >= COMPILED_FROM_BYTES and _may_be_lines(body.path):
        # With the first one: a process that receives none this large needs no compiler.
        from app.analysis.trace.ndjson import plain  # noqa: PLC0415 - see above

        plain.warm_up()
    if archive_at(body.path) is None and other_archive(body.path) is None:
        decoded = decode(
            body.path,
            body.meta,
            limits=limits,
            content_type=body.content_type,
            format_name=body.format_name,
            own=body.own,
        )
        return decoded, ()
    wanted = None if body.format_name is None else format_named(body.format_name)
    directory = spool_directory(settings)
    with unpacked(body.path, limits, directory=directory, nameless=True) as files:
        chosen = choose(look_at(files), "the archive", wanted)
        said = metadata_among(files)
        meta = body.meta
        if meta is None and said is not None:
            meta = metadata_of(said)
        names = set(chosen.names)
        recorded = read_files(
            [one for one in files if one.name in names],
            meta,
            Reading(limits, together=True, format_name=chosen.known.name, own=body.own),
        )
    trace = with_not_read(recorded, chosen.not_read).trace
    return Decoded(trace, recorded.trace_format, recorded.unmapped), chosen.not_read


def _may_be_lines(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ZSTD_MAGIC)).startswith((GZIP_MAGIC, ZSTD_MAGIC, b"{"))


def _content_sha256(body: Body) -> bytes:
    meta: dict[str, Any] | None = None if body.meta is None else metadata_document(body.meta)
    canonical = json.dumps(meta, sort_keys=True, separators=(",", ":"))
    content = body.sha256 + canonical.encode()
    if body.own is not None:
        rules = [(rule.pattern, rule.op) for rule in body.own.rules]
        content += json.dumps(rules, separators=(",", ":")).encode()
    return hashlib.sha256(content).digest()


def _find(tx: UnitOfWork, job: str, content: bytes) -> Receipt | None:
    row = tx.session.execute(
        select(Session.id, Session.number, Session.state, Session.operations)
        .join(Job)
        .where(Job.name == job, Session.content_sha256 == content)
    ).one_or_none()
    if row is None:
        return None
    return Receipt(row.id, job, row.number, row.state, row.operations, created=False)


def next_number(tx: UnitOfWork, job_id: int) -> int:
    """Return the number of the next session of a job whose row is locked."""
    return tx.session.execute(_next_number(job_id)).scalar_one()


def _next_number(job_id: int) -> Select[int]:
    return select(func.coalesce(func.max(Session.number), 0) + 1).where(
        Session.job_id == job_id, Session.attempt == FIRST_ATTEMPT
    )


def _store(  # noqa: PLR0913 - one request
    container: Container,
    tx: UnitOfWork,
    job: str,
    content: bytes,
    *,
    body: Body,
    decoded: Decoded,
    staged: Staged,
) -> Receipt:
    trace = decoded.trace
    sizes = trace.meta.sizes
    # The blob first: from the job's row lock on, other sessions of the job wait.
    blob_id = write_blob(tx, staged)
    # Making or finding the job locks its row, which puts the numbers in order and lets only one
    # of two equal bodies pass.
    job_id = make_job(container, tx, job)
    twins = select(func.count()).where(Session.job_id == job_id, Session.content_sha256 == content)
    number, known = tx.session.execute(
        select(_next_number(job_id).scalar_subquery(), twins.scalar_subquery())
    ).one()
    if known and (twin := _find(tx, job, content)) is not None:
        raise _AlreadyStoredError(twin)
    session = Session(
        id=uuid.uuid4(),
        job_id=job_id,
        attempt=FIRST_ATTEMPT,
        number=number,
        content_sha256=content,
        state=SessionState.QUEUED,
        received_at=tx.now,
        state_changed_at=tx.now,
        meta=metadata_document(trace.meta),
        labels=dict(trace.meta.labels),
        dp=sizes.dp,
        pp=sizes.pp,
        tp=sizes.tp,
        cp=sizes.cp,
        vpp=sizes.vpp,
        world=sizes.world,
        trace_format=decoded.trace_format,
        body_bytes=body.size,
        operations=len(trace),
        steps=int(np.unique(trace.step).size),
        trace_blob=blob_id,
    )
    tx.session.add(session)
    tx.session.flush()
    tx.enqueue(ANALYZE_SESSION, session.id)
    tx.notify_session(session.id)
    return Receipt(
        session.id,
        job,
        number,
        session.state,
        session.operations,
        created=True,
        unmapped=decoded.unmapped,
    )

"""Receive a session: one body in, a stored session and the work that it causes out."""

from __future__ import annotations

import hashlib
import json
import math
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import structlog
from sqlalchemy import bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.analysis.replay.engine.executors import of_glibc
from app.analysis.trace.metadata import Unmapped, metadata_document
from app.errors import BusyError, InvalidTraceError, MemoryLimitError, NotFoundError, PacelineError
from app.incidents.models.tables import AlertGroup
from app.jobs.models import Attempt, Job
from app.platform.blobs import Staged, write_blob
from app.platform.container import Container
from app.platform.database.states import SessionState
from app.platform.database.task_runs import ANALYZE_SESSION
from app.platform.database.unit_of_work import Prepared, UnitOfWork, notification
from app.platform.identity import job_name_fault
from app.platform.names import lookalike
from app.platform.resources import KIB
from app.platform.settings import MIB
from app.platform.settings.kinds import variable
from app.quotas.usage import ATTEMPTS, JOBS, SUMMED, check_room, count, count_made
from app.sessions.decoding import Body, Decoding, decoding
from app.sessions.models.tables import Session
from app.sessions.recordings.choose import NotRead

log = structlog.get_logger(__name__)

# A session that comes in one body belongs to the first attempt: only chunks name theirs.
FIRST_ATTEMPT: Final = 1

_KNOWN: Final = Prepared(
    select(Session.id, Session.number, Session.state, Session.operations)
    .join(Job)
    .where(Job.name == bindparam("job"), Session.content_sha256 == bindparam("content"))
)
_LOCKED_JOB: Final = Prepared(
    select(Job.id, func.now()).where(Job.name == bindparam("job")).with_for_update(key_share=True)
)
_next_number = select(func.coalesce(func.max(Session.number), 0) + 1).where(
    Session.job_id == bindparam("of_job"), Session.attempt == FIRST_ATTEMPT
)
_NEXT_NUMBER: Final = Prepared(_next_number)
# With its number and its notification; no row where the job has the same session.
_MADE: Final = Prepared(
    insert(Session)
    .values(attempt=FIRST_ATTEMPT, state=SessionState.QUEUED, number=_next_number.scalar_subquery())
    .on_conflict_do_nothing(index_elements=[Session.job_id, Session.content_sha256])
    .returning(Session.number, notification(Session.id))
)

# A job that is made or deleted meanwhile is looked for again.
TRIES: Final = 10


class InvalidJobNameError(PacelineError):
    """A job's name that would not survive in an address or on a page."""

    code = "job.invalid_name"


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
    """The same body is there, maybe since a moment: roll back what this request wrote."""

    def __init__(self, receipt: Receipt) -> None:
        super().__init__()
        self.receipt = receipt


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
    for _ in range(TRIES):
        for job_id, now in _LOCKED_JOB.rows(tx.session, job=name):
            tx.is_at(now)
            return job_id
        check_new_job_name(name)
        made = insert(Job).values(name=name, created_at=tx.now).on_conflict_do_nothing()
        made_id = tx.session.execute(made.returning(Job.id)).scalar()
        if made_id is not None:
            count_made(tx, container.settings, container.project_id, JOBS)
            return made_id
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
    try:
        with decoding(container.settings, body) as decoded:
            receipt = _received(container, job, body, decoded)
    except _AlreadyStoredError as twin:
        return twin.receipt
    log.info(
        "session received",
        session=str(receipt.session),
        job=job,
        number=receipt.number,
        bytes=body.size,
        operations=receipt.operations,
    )
    return receipt


def _received(container: Container, job: str, body: Body, decoded: Decoding) -> Receipt:
    content = _content_sha256(body)
    with container.uow() as tx:
        known = _find(tx, job, content)
        if known is not None:
            raise _AlreadyStoredError(known)
        check_room(tx, container.settings, container.project_id, SUMMED)
        stays = decoded.kept is not None
        if stays and container.objects is None:
            # It is decoded while the database writes it: no transaction is idle for long.
            decoded.begin()
            return _store(container, tx, job, content, body, decoded, Staged(decoded.as_it_came()))
    if stays:
        decoded.begin()
    staged = container.stage(decoded.as_it_came() if stays else decoded.packed())
    with container.uow() as tx:
        return _store(container, tx, job, content, body, decoded, staged)


def _content_sha256(body: Body) -> bytes:
    meta: dict[str, Any] | None = None if body.meta is None else metadata_document(body.meta)
    canonical = json.dumps(meta, sort_keys=True, separators=(",", ":"))
    content = body.sha256 + canonical.encode()
    if body.own is not None:
        rules = [(rule.pattern, rule.op) for rule in body.own.rules]
        content += json.dumps(rules, separators=(",", ":")).encode()
    return hashlib.sha256(content).digest()


def _find(tx: UnitOfWork, job: str, content: bytes) -> Receipt | None:
    for session_id, number, state, operations in _KNOWN.rows(tx.session, job=job, content=content):
        return Receipt(session_id, job, number, state, operations, created=False)
    return None


def next_number(tx: UnitOfWork, job_id: int) -> int:
    """Return the number of the next session of a job whose row is locked."""
    ((number,),) = _NEXT_NUMBER.rows(tx.session, of_job=job_id)
    return number


def _store(  # noqa: PLR0913, PLR0917 - one request
    container: Container,
    tx: UnitOfWork,
    job: str,
    content: bytes,
    body: Body,
    decoding: Decoding,
    staged: Staged,
) -> Receipt:
    # The blob first: from the job's row lock on, other sessions of the job wait. They wait for the
    # rest of the decoding where that is milliseconds.
    blob_id = write_blob(tx, staged)
    if not body.in_memory:
        decoding.result()
    # Making or finding the job locks its row, which puts the numbers in order and lets only one
    # of two equal bodies pass.
    job_id = make_job(container, tx, job)
    session_id = uuid.uuid4()
    tx.enqueue(ANALYZE_SESSION, session_id)
    read = decoding.result()
    decoded, trace = read.decoded, read.decoded.trace
    sizes = trace.meta.sizes
    made = _MADE.rows(
        tx.session,
        id=session_id,
        job_id=job_id,
        of_job=job_id,
        content_sha256=content,
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
        steps=trace.step_count(),
        trace_blob=blob_id,
    )
    if not made:
        twin = _find(tx, job, content)
        if twin is None:
            raise BusyError("The same session is deleted at this moment; try again.")
        raise _AlreadyStoredError(twin)
    ((number, _),) = made
    count(
        tx,
        container.settings,
        container.project_id,
        sessions=1,
        size=body.size,
        operations=len(trace),
        quotas=SUMMED,
    )
    return Receipt(
        session_id,
        job,
        number,
        SessionState.QUEUED,
        len(trace),
        created=True,
        unmapped=decoded.unmapped,
        not_read=read.not_read,
    )


# ---- A job's starts, which are numbered, and its end -------------------------------------------


MAX_RUN_CHARACTERS: Final = 200


class InvalidRunError(PacelineError):
    """A run's name that would not survive on a page."""

    code = "run.invalid_name"


@dataclass(frozen=True, slots=True)
class AttemptReceipt:
    """The number of an attempt; `created` unless it was announced before."""

    number: int
    created: bool


def announce_attempt(container: Container, job: str, run_id: str, restart: int) -> AttemptReceipt:
    """Give a start of a job its number; the same run and restart are the same attempt.

    Returns
    -------
    AttemptReceipt
        One above all attempts that are known, also of those that sessions named by themselves.

    Raises
    ------
    InvalidJobNameError, InvalidRunError, QuotaExceededError
        Nothing is stored.
    """
    check_job_name(job)
    if not (0 < len(run_id) <= MAX_RUN_CHARACTERS and run_id.isprintable()):
        raise InvalidRunError(f"A run has 1 to {MAX_RUN_CHARACTERS} printable characters.")
    with container.uow() as tx:
        # Making or finding the job locks its row, which puts the numbers in order.
        job_id = make_job(container, tx, job)
        known = tx.session.execute(
            select(Attempt.number).where(
                Attempt.job_id == job_id, Attempt.run_id == run_id, Attempt.restart == restart
            )
        ).scalar()
        if known is not None:
            return AttemptReceipt(known, created=False)
        announced = select(func.max(Attempt.number)).where(Attempt.job_id == job_id)
        named = select(func.max(Session.attempt)).where(Session.job_id == job_id)
        number = tx.session.execute(
            select(
                func.coalesce(
                    func.greatest(announced.scalar_subquery(), named.scalar_subquery()), 0
                )
                + 1
            )
        ).scalar_one()
        tx.session.add(
            Attempt(
                job_id=job_id,
                number=number,
                run_id=run_id,
                restart=restart,
                announced_at=tx.now,
            )
        )
        count_made(tx, container.settings, container.project_id, ATTEMPTS)
    log.info("attempt announced", job=job, number=number, run=run_id, restart=restart)
    return AttemptReceipt(number, created=True)


def finish_job(container: Container, job: str) -> None:
    """Note that a job has ended: its silence from now on is meant.

    What its last start has recorded may still come; sessions of another start take it back
    (`app.incidents.grouping.FINISH_GRACE`).

    Raises
    ------
    NotFoundError
        If there is no such job.
    """
    with container.uow() as tx:
        job_id = tx.session.execute(
            update(Job).where(Job.name == job).values(finished_at=tx.now).returning(Job.id)
        ).scalar()
        if job_id is None:
            raise no_job(job)
        # An incident about its silence is over.
        tx.session.execute(
            update(AlertGroup).where(AlertGroup.job_id == job_id).values(look_at=tx.now)
        )
    log.info("job finished", job=job)


# ---- The memory of an analysis: how much it may have, and what a worker gives back afterwards ----


# A process of this size gives back what is free between two analyses: sessions that need so much
# are rare, and the next one would wait a few milliseconds a million operations for it.
LARGE: Final = 1 << 30
_RESIDENT: Final = Path("/proc/self/statm")

# What an operation takes at most while it is analyzed, measured with synthetic jobs of 0.3 to 2 M.
_GIB: Final = 1024 * MIB
_OPERATION_BYTES: Final = 200


def over_limit(container: Container, session_id: uuid.UUID) -> MemoryLimitError:
    """Return what is said of a session whose analysis did not fit, and how much it needs."""
    limit_bytes = container.settings.analysis_memory_limit_kib * KIB
    with container.reading() as tx:
        found = select(Session.operations).where(Session.id == session_id)
        operations = tx.session.execute(found).scalar() or 0
    needed_bytes = max(operations * _OPERATION_BYTES, limit_bytes + _GIB)
    needed_gib = math.ceil(needed_bytes / _GIB)
    return MemoryLimitError(
        f"The analysis of {operations:,} operations did not fit into {limit_bytes / _GIB:.1f} GiB; "
        f"it needs about {needed_gib} GiB: set {variable('analysis_memory_limit_kib')} to "
        f"{needed_gib * _GIB // KIB} on a worker that has them, and analyze the session again."
    )


def give_back(above: int = LARGE) -> bool:
    """Give free memory back to the system where the process has more than `above` bytes.

    Returns
    -------
    bool
        Whether that was so, as far as the system says.
    """
    if not _RESIDENT.exists() or resident_bytes() <= above:
        return False
    pa.default_memory_pool().release_unused()
    trim = of_glibc("malloc_trim")
    if trim is not None:
        trim(0)
    return True


def resident_bytes() -> int:
    """Return how much memory the process has, where the system says so (Linux)."""
    return int(_RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

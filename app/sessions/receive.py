"""Receive whole sessions, number the starts of jobs, and limit the memory of analyses."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import structlog
from sqlalchemy import bindparam, func, select, union, update
from sqlalchemy.dialects.postgresql import insert

from app.access.models import AttemptOwner
from app.access.senders import check_sender, claim_attempt
from app.analysis.generation import WRITES
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
from app.sessions.body import Body
from app.sessions.decoding import Decoding, decoding
from app.sessions.models.tables import Session
from app.sessions.recordings.choose import NotRead

log = structlog.get_logger(__name__)

MAX_ATTEMPT: Final = (1 << 31) - 1  # what the database's columns can hold
# A session sent in one body belongs to the first attempt, since only chunks name an attempt.
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
# Inserts a session, numbers it and notifies listeners; returns no row if the job has an equal
# session.
_MADE: Final = Prepared(
    insert(Session)
    .values(attempt=FIRST_ATTEMPT, state=SessionState.QUEUED, number=_next_number.scalar_subquery())
    .on_conflict_do_nothing(index_elements=[Session.job_id, Session.content_sha256])
    .returning(Session.number, notification(Session.id))
)

# Limit of the attempts to find or create a job while other transactions create and delete it.
TRIES: Final = 10


class InvalidJobNameError(PacelineError):
    """A job's name that cannot be used in a URL or on a page."""

    code = "job.invalid_name"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The session of a received body; `created` is false if an equal body was stored before.

    `unmapped` counts contents of the recording without an operation, `not_read` lists files of an
    archive that are no recordings.
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
    """An equal body is stored, possibly by a concurrent request: roll back this request."""

    def __init__(self, receipt: Receipt) -> None:
        super().__init__()
        self.receipt = receipt


def check_job_name(name: str) -> None:
    """Check that a job's name can be used in a URL and on a page.

    Raises
    ------
    InvalidJobNameError
        The name is empty, too long, not printable, or means a folder in a URL, like ``..``.
    """
    fault = job_name_fault(name)
    if fault is not None:
        raise InvalidJobNameError(fault)


def check_new_job_name(name: str) -> None:
    """Check the name of a new job, which must also not look like the name of another job.

    Raises
    ------
    InvalidJobNameError
        `check_job_name` refuses the name, or it looks like that of another job.
    """
    check_job_name(name)
    alike = lookalike(name)
    if alike is not None:
        raise InvalidJobNameError(f"The name {name} {alike}. Give the job another name.")


def no_job(job: str) -> NotFoundError:
    """Return the error for an unknown job."""
    return NotFoundError(f"There is no job {job}.")


def make_job(container: Container, tx: UnitOfWork, name: str) -> int:
    """Find or create a job and return its id; the job's row stays locked until the commit.

    Raises
    ------
    InvalidJobNameError
        The job is new, and its name looks like that of another job.
    QuotaExceededError
        The job is new, and the project is at its quota of jobs.
    BusyError
        Other transactions keep creating and deleting the job.
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


def claim_for_whole(container: Container, tx: UnitOfWork, job: str, job_id: int) -> None:
    """Check the sender of a session in one body; the first token owns the job's first attempt.

    Such a session names no attempt: a token that owns another attempt of the job may send it.

    Raises
    ------
    AttemptOwnedError
    """
    if not check_sender(container, tx, job):
        claim_attempt(container, tx, job, job_id, FIRST_ATTEMPT)


def receive_session(container: Container, job: str, body: Body) -> Receipt:
    """Decode a body, store it durably and queue its analysis; return the receipt after the commit.

    An archive of a folder is one session of all recordings in it. The same bytes with the same
    metadata are the same session of a job, also when they arrive twice at the same time.

    Parameters
    ----------
    job : str
        Name of the job; a new job is created.

    Raises
    ------
    InvalidJobNameError, InvalidTraceError, InvalidMetadataError, UnsupportedFormatError,
    InvalidArchiveError, InvalidFolderError, UnanalyzableError, BodyTooLargeError,
    AttemptOwnedError, QuotaExceededError, ObjectStoreError
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
    meta: dict[str, Any] | None = None if body.meta is None else metadata_document(body.meta)
    identity = body.sha256 + json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()
    if body.own is not None:
        rules = [(rule.pattern, rule.op) for rule in body.own.rules]
        identity += json.dumps(rules, separators=(",", ":")).encode()
    content = hashlib.sha256(identity).digest()
    with container.uow() as tx:
        equal = _find(tx, job, content)
        if equal is not None:
            raise _AlreadyStoredError(equal)
        check_room(tx, container.settings, container.project_id, SUMMED)
        as_sent = decoded.kept is not None
        if as_sent and container.objects is None:
            # The body is decoded while the database writes it, so that the transaction is not idle
            # for long.
            decoded.begin()
            return _store(container, tx, job, content, body, decoded, Staged(decoded.as_it_came()))
    if as_sent:
        decoded.begin()
    staged = container.stage(decoded.as_it_came() if as_sent else decoded.packed())
    with container.uow() as tx:
        return _store(container, tx, job, content, body, decoded, staged)


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
    # The blob is written before the job's row is locked, as other sessions of the job wait for the
    # lock. A body in memory is decoded under the lock, which takes milliseconds.
    blob_id = write_blob(tx, staged)
    if not body.in_memory:
        decoding.result()
    # Locks the job's row: sessions are numbered in order, and only one of two equal bodies is
    # stored.
    job_id = make_job(container, tx, job)
    claim_for_whole(container, tx, job, job_id)
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
        needs=WRITES,
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


MAX_RUN_CHARACTERS: Final = 200


class InvalidRunError(PacelineError):
    """A run's name that cannot be shown on a page."""

    code = "run.invalid_name"


@dataclass(frozen=True, slots=True)
class AttemptReceipt:
    """The number of an attempt; `created` is false if the start was announced before."""

    number: int
    created: bool


def announce_attempt(container: Container, job: str, run_id: str, restart: int) -> AttemptReceipt:
    """Assign a number to a start of a job; the same run and restart are the same attempt.

    A new number is one above all announced attempts, those of sessions and those with an owner.

    Raises
    ------
    InvalidJobNameError, InvalidRunError, AttemptOwnedError, QuotaExceededError
        Nothing is stored.
    """
    check_job_name(job)
    if not (0 < len(run_id) <= MAX_RUN_CHARACTERS and run_id.isprintable()):
        raise InvalidRunError(f"A run has 1 to {MAX_RUN_CHARACTERS} printable characters.")
    with container.uow() as tx:
        # Locks the job's row, so that attempts are numbered in order.
        job_id = make_job(container, tx, job)
        present = tx.session.execute(
            select(Attempt.number).where(
                Attempt.job_id == job_id, Attempt.run_id == run_id, Attempt.restart == restart
            )
        ).scalar()
        if present is not None:
            claim_attempt(container, tx, job, job_id, present)
            return AttemptReceipt(present, created=False)
        number = _new_attempt(tx, job_id)
        claim_attempt(container, tx, job, job_id, number)
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


def _new_attempt(tx: UnitOfWork, job_id: int) -> int:
    """Return the number of a job's next attempt; the job's row is locked."""
    of_job = (
        select(Attempt.number).where(Attempt.job_id == job_id),
        select(Session.attempt).where(Session.job_id == job_id),
        select(AttemptOwner.attempt).where(AttemptOwner.job_id == job_id),
    )
    highest: int | None = tx.session.execute(
        select(
            func.greatest(
                *(select(func.max(query.subquery().c[0])).scalar_subquery() for query in of_job)
            )
        )
    ).scalar()
    number = (highest or 0) + 1
    if number <= MAX_ATTEMPT:
        return number
    # A sender used the largest number without an announcement: take the first free number.
    taken = set(tx.session.execute(union(*of_job)).scalars())
    return next(free for free in itertools.count(1) if free not in taken)


def finish_job(container: Container, job: str) -> None:
    """Record that a job has ended: from now on its silence is no incident.

    Late sessions of its last start may still arrive; a session of another start reopens the job
    (`app.incidents.grouping.FINISH_GRACE`).

    Raises
    ------
    NotFoundError
        If there is no such job.
    AttemptOwnedError
    """
    with container.uow() as tx:
        check_sender(container, tx, job)
        job_id = tx.session.execute(
            update(Job).where(Job.name == job).values(finished_at=tx.now).returning(Job.id)
        ).scalar()
        if job_id is None:
            raise no_job(job)
        # The next evaluation of the job's alerts ends an incident about its silence.
        tx.session.execute(
            update(AlertGroup).where(AlertGroup.job_id == job_id).values(look_at=tx.now)
        )
    log.info("job finished", job=job)


# Memory in bytes above which a worker returns free memory to the system after an analysis. Such
# large sessions are rare, and allocating again costs a few milliseconds per million operations.
LARGE: Final = 1 << 30
_RESIDENT: Final = Path("/proc/self/statm")

# _OPERATION_BYTES: peak memory of an analysis per operation, measured on synthetic jobs of 0.3 to 2
# M operations.
_GIB: Final = 1024 * MIB
_OPERATION_BYTES: Final = 200


def over_limit(container: Container, session_id: uuid.UUID) -> MemoryLimitError:
    """Return the error for an analysis over the memory limit, with the estimated need."""
    limit_bytes = container.settings.analysis_memory_limit_kib * KIB
    with container.reading() as tx:
        query = select(Session.operations).where(Session.id == session_id)
        operations = tx.session.execute(query).scalar() or 0
    needed_bytes = max(operations * _OPERATION_BYTES, limit_bytes + _GIB)
    needed_gib = math.ceil(needed_bytes / _GIB)
    return MemoryLimitError(
        f"The analysis of {operations:,} operations did not fit into {limit_bytes / _GIB:.1f} GiB; "
        f"it needs about {needed_gib} GiB: set {variable('analysis_memory_limit_kib')} to "
        f"{needed_gib * _GIB // KIB} on a worker that has them, and analyze the session again."
    )


def give_back(above: int = LARGE) -> bool:
    """Return free memory to the system if the process uses more than `above` bytes (Linux only).

    Returns whether it did.
    """
    if not _RESIDENT.exists() or resident_bytes() <= above:
        return False
    pa.default_memory_pool().release_unused()
    trim = of_glibc("malloc_trim")
    if trim is not None:
        trim(0)
    return True


def resident_bytes() -> int:
    """Return the process's resident memory in bytes (Linux only)."""
    return int(_RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

"""Use case: read received bodies of an attempt's pulse, detect, and store the results.

A worker claims an attempt by a lease, reads its bodies and advances the stored state outside of
any transaction. State, notices, blocks, sums and the removal from the inbox are one transaction: a
worker that is killed leaves everything as it was, and the next one gets the same results. Bodies
that kill workers are read one by one, and then dropped.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Final

import structlog
from sqlalchemy import ColumnElement, Row, any_, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from app.analysis.generation import READS, WRITES
from app.analysis.pulse.columns import Pulses
from app.analysis.pulse.detector import Changes, Detector
from app.analysis.pulse.detector_state import from_bytes, to_bytes
from app.analysis.pulse.gpu_readings import Reading, joined
from app.analysis.pulse.gpu_readings import from_bytes as from_kept
from app.analysis.pulse.gpu_readings import to_bytes as to_kept
from app.analysis.pulse.packing import Places
from app.analysis.pulse.step_pace import Pace
from app.errors import LostClaimError, NewerFormatError, UnknownDocumentError
from app.hangs.files import HangFile
from app.hangs.receive import judge_live_files, limits_of
from app.incidents.store import group_of_job
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.projects import is_there
from app.platform.database.states import InboxKind
from app.platform.database.unit_of_work import Reads
from app.platform.settings import MIB
from app.pulse.body import read_bodies
from app.pulse.follow import (
    Batch,
    add_hardware,
    awaits_measure,
    clear_before,
    follow_up,
    has_open_before,
    last_minutes,
    write_notices,
)
from app.pulse.keep import StoredBatch, stored_batch, write_batch
from app.pulse.models import PulseNotice, PulseSpan, PulseState
from app.pulse.spans import slow_ranks
from app.sessions.models.tables import InboxItem, Session

# Minimum time between two batches of an attempt, because each batch reads and writes the whole
# state of the attempt's detection.
EVERY: Final = timedelta(seconds=2)
LEASE: Final = timedelta(seconds=30)
# Largest number of bodies in a batch, and largest number of bytes.
BATCH: Final = 1_024
BATCH_BYTES: Final = 8 * MIB
# Number of failed attempts to read a batch after which its bodies are dropped.
MAX_TRIES: Final = 3
# Largest number of hosts whose clock errors are stored.
MOST_CLOCKS: Final = 100
_PULSES: Final = InboxItem.kind == InboxKind.PULSE

WORKER_KILLED: Final = "pulse.worker_killed"
STATE_LOST: Final = "pulse.state_lost"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PulseClaim:
    """The right to process an attempt's bodies until a lease ends; `tries`: earlier claims."""

    token: uuid.UUID
    project_id: int
    job_id: int
    attempt: int
    tries: int


@dataclass(frozen=True, slots=True, eq=False)
class Advance:
    """Results of a batch of bodies that are not stored yet.

    Parameters
    ----------
    items : tuple of int
        Inbox ids of the processed bodies, readable or not.
    rows : Pulses or None
        Rows of the bodies; None without any.
    files : tuple of HangFile
        Stacks and recorder dumps of hanging ranks.
    pace, batch_pace : Pace
        Latest steps of the attempt, and steps of these bodies.
    places : bytes or None
        Packed places of the ranks, if changed.
    readings : mapping of int to Reading
        Last GPU readings of all ranks, if readings or notices are new; else empty.
    first : bool
        Whether the attempt had no stored state.
    """

    items: tuple[int, ...]
    rows: Pulses | None
    files: tuple[HangFile, ...]
    detector: Detector
    changes: Changes
    pace: Pace
    batch_pace: Pace
    stored: StoredBatch
    places: bytes | None
    readings: Mapping[int, Reading]
    first: bool


def advance_pulses(container: Container, every: timedelta = EVERY) -> int:
    """Process one batch of an attempt; return the number of processed bodies, 0 if none is due.

    Parameters
    ----------
    every : timedelta
        Least time between two batches of an attempt.
    """
    claim = claim_attempt(container, every)
    if claim is None:
        return 0
    within = container.within(claim.project_id)
    try:
        advance = read_batch(within, claim)
        store(within, claim, advance)
    except LostClaimError:
        return 0
    except NewerFormatError as error:
        log.warning(
            "pulse left to a later version",
            job=claim.job_id,
            attempt=claim.attempt,
            needs=error.generation,
            error=error.message,
        )
        _end_claim(
            *(within, claim),
            needs=func.greatest(PulseState.needs, error.generation),
            tries=PulseState.tries - 1,
        )
        return 0
    except Exception:
        # `tries` is not reset, so that the next worker reads a single body: this isolates the body
        # that failed.
        _end_claim(within, claim)
        raise
    return len(advance.items)


def _end_claim(container: Container, claim: PulseClaim, **values: ColumnElement[int]) -> None:
    with container.uow() as tx:
        tx.session.execute(
            update(PulseState)
            .where(*_is(claim.job_id, claim.attempt), PulseState.claim_token == claim.token)
            .values(claim_token=None, lease_until=None, advanced_at=tx.now, **values)
        )


def claim_attempt(container: Container, every: timedelta = EVERY) -> PulseClaim | None:
    """Claim the attempt with the oldest waiting body; return None if no attempt is due."""
    token = uuid.uuid4()
    with container.everywhere().uow() as tx:
        free = or_(PulseState.lease_until.is_(None), PulseState.lease_until < tx.now)
        due = or_(PulseState.advanced_at.is_(None), PulseState.advanced_at <= tx.now - every)
        oldest = tx.session.execute(
            select(InboxItem.project_id, InboxItem.job_id, InboxItem.attempt)
            .outerjoin(
                PulseState,
                (PulseState.job_id == InboxItem.job_id) & (PulseState.attempt == InboxItem.attempt),
            )
            .where(
                *(_PULSES, is_there(InboxItem.project_id), free, due),
                func.coalesce(PulseState.needs, 1) <= READS,
            )
            .order_by(InboxItem.id)
            .limit(1)
        ).one_or_none()
        if oldest is None:
            return None
        tx.session.execute(insert(PulseState).values(**oldest._asdict()).on_conflict_do_nothing())
        tries = tx.session.execute(
            update(PulseState)
            .where(*_is(oldest.job_id, oldest.attempt), free)
            .values(claim_token=token, lease_until=tx.now + LEASE, tries=PulseState.tries + 1)
            .returning(PulseState.tries)
        ).scalar()
    if tries is None:
        return None
    return PulseClaim(token, oldest.project_id, oldest.job_id, oldest.attempt, tries - 1)


def read_batch(container: Container, claim: PulseClaim) -> Advance:
    """Read the waiting bodies of an attempt and detect on their rows; write nothing."""
    with container.reading() as tx:
        kept = tx.session.execute(
            select(PulseState.state, PulseState.pace, PulseState.places, PulseState.hardware).where(
                *_is(claim.job_id, claim.attempt)
            )
        ).one_or_none()
        stored = None if kept is None else kept.state
        last = tx.session.execute(
            select(func.max(PulseNotice.number)).where(
                PulseNotice.job_id == claim.job_id, PulseNotice.attempt == claim.attempt
            )
        ).scalar()
        waiting = _waiting(tx, claim)
        # The number of ranks of the attempt, as its latest session has it.
        world = tx.session.execute(
            select(Session.world)
            .where(Session.job_id == claim.job_id, Session.attempt == claim.attempt)
            .order_by(Session.received_at.desc())
            .limit(1)
        ).scalar()
    detector, counts = _detector(stored, last)
    # After too many failed tries, drop the body that killed each worker that read it.
    dropped = len(waiting) if claim.tries > MAX_TRIES else 0
    counts.update({WORKER_KILLED: dropped} if dropped else {})
    batch = read_bodies(detector, waiting[dropped:], claim.attempt, world, counts)
    processed = waiting[: dropped + batch.bodies]
    detector.assembler.counts.update(counts)
    items = tuple(row.id for row in processed)
    pace = Pace.from_bytes(None if kept is None else kept.pace)
    files, rows, first = tuple(batch.files), batch.rows, stored is None
    if rows is None:
        changes, nothing = Changes((), ()), StoredBatch({}, {})
        return Advance(
            items, None, files, detector, changes, pace, Pace(), nothing, None, {}, first
        )
    batch_pace = pace.advance(rows)
    changes = detector.advance(rows, limits_of(container.settings))
    to_store = stored_batch(changes.steps, rows, max(row.received_at for row in processed))
    places = None
    if (watch := detector.watch) is not None:
        places = Places.of(watch.ranks, watch.pp_ranks, detector.hosts).to_bytes()
    if kept is not None and places == kept.places:
        places = None
    readings = batch.readings
    if readings or changes.notices:
        readings = joined(from_kept(None if kept is None else kept.hardware), readings)
    return Advance(
        *(items, rows, files, detector, changes, pace, batch_pace),
        *(to_store, places, readings, first),
    )


def store(container: Container, claim: PulseClaim, advance: Advance) -> None:
    """Write the results of a batch, in one transaction.

    Raises
    ------
    LostClaimError
        Another worker has the attempt; nothing is written.
    """
    detector, changes = advance.detector, advance.changes
    size = 0 if advance.rows is None else len(advance.rows)
    new = {} if advance.places is None else {"places": advance.places}
    if advance.readings:
        new["hardware"] = to_kept(advance.readings)
    with container.uow() as tx:
        mine = tx.session.execute(
            update(PulseState)
            .where(*_is(claim.job_id, claim.attempt), PulseState.claim_token == claim.token)
            .values(
                state=to_bytes(detector),
                pace=advance.pace.to_bytes(),
                advanced_at=tx.now,
                rows=PulseState.rows + size,
                counts=dict(detector.counts),
                clocks=_clocks(detector),
                lost_gpu_s=PulseState.lost_gpu_s + advance.stored.lost_gpu_s,
                claim_token=None,
                lease_until=None,
                tries=0,
                needs=func.greatest(PulseState.needs, WRITES),
                **new,
            )
            .returning(PulseState.attempt)
        ).scalar()
        if mine is None:
            raise LostClaimError("another worker has it")
        tx.session.execute(delete(InboxItem).where(InboxItem.id.in_(advance.items)))
        key = claim.job_id, claim.attempt
        restarted = advance.first and has_open_before(tx, *key)
        changed = bool(restarted or changes.notices or changes.withdrawn or advance.files)
        changed = changed or awaits_measure(tx, *key)
        # Lock the group of alerts before the notices, as every evaluation of the job does, so that
        # no deadlock occurs.
        group = group_of_job(tx, claim.job_id) if changed else None
        if restarted:
            clear_before(tx, *key)
        write_notices(tx, *key, changes)
        if advance.readings:
            add_hardware(tx, *key, advance.readings, detector.hosts)
        if not detector.heartbeats.moves(limits_of(container.settings)):
            judge_live_files(tx, *key, advance.files, detector.hosts)
        follow_up(container, tx, Batch(*key, advance.pace, advance.batch_pace), group)
        write_batch(tx, *key, advance.stored, detector.hosts)
    for notice in changes.notices:
        log.info(
            "pulse notice",
            job=claim.job_id,
            attempt=claim.attempt,
            kind=notice.kind,
            ranks=notice.ranks[:8],
            step=notice.noticed_step,
            over=notice.cleared_step is not None,
        )


def _waiting(tx: Reads, claim: PulseClaim) -> Sequence[Row[int, bytes | None, datetime]]:
    """Return the bodies of the next batch; only one body after a batch that failed."""
    sizes = tx.session.execute(
        select(InboxItem.id, InboxItem.body_bytes)
        .where(_PULSES, InboxItem.job_id == claim.job_id, InboxItem.attempt == claim.attempt)
        .order_by(InboxItem.id)
        .limit(1 if claim.tries else BATCH)
    ).all()
    before = accumulate((row.body_bytes for row in sizes), initial=0)
    ids = [row.id for row, size in zip(sizes, before, strict=False) if size < BATCH_BYTES]
    return tx.session.execute(
        select(InboxItem.id, InboxItem.body, InboxItem.received_at)
        .where(InboxItem.id.in_(ids))
        .order_by(InboxItem.id)
    ).all()


def _detector(stored: bytes | None, last: int | None) -> tuple[Detector, Counter[str]]:
    """Return the stored detector or a new one, and a count if the stored state was unreadable.

    Parameters
    ----------
    last : int or None
        Highest number of a notice of the attempt; a new detector continues behind it.
    """
    counts: Counter[str] = Counter()
    if stored is not None:
        try:
            return from_bytes(stored), counts
        except NewerFormatError:
            raise
        except UnknownDocumentError:
            counts[STATE_LOST] += 1
    detector = Detector()
    if last is not None:
        # The two ledgers number their notices in steps of two, so that their numbers never collide.
        detector.ledger.next_number = last + 1
        detector.heartbeats.ledger.next_number = last + 2
    return detector, counts


def _clocks(detector: Detector) -> dict[str, float]:
    """Return the errors of wrong clocks by host, seconds, sorted by descending size."""
    errors_s: dict[str, float] = {}
    for rank, by_ns in sorted(detector.offsets.items(), key=lambda item: -abs(item[1])):
        name = detector.hosts.get(rank, f"rank {rank}")
        if name not in errors_s and len(errors_s) >= MOST_CLOCKS:
            break
        errors_s.setdefault(name, round(by_ns / 1e9, 3))
    return errors_s


def _is(job_id: int, attempt: int) -> Sequence[ColumnElement[bool]]:
    return PulseState.job_id == job_id, PulseState.attempt == attempt


# Largest number of notices that the page of a host lists.
MOST_NOTICES: Final = 20


@dataclass(frozen=True, slots=True)
class HostRank:
    """A rank of a host that is among the slowest of a running job."""

    job: str
    rank: int
    gpu: int
    ratio: float
    step_s: float
    """Median step time of the job in its last minute, seconds."""


@dataclass(frozen=True, slots=True)
class HostNotice:
    """A notice that blames a host."""

    job: str
    noticed_at: datetime
    cleared_at: datetime | None
    sentence: str  # sentence with the differences of the rank's GPU from its peers


@dataclass(frozen=True, slots=True)
class HostNow:
    """Slow ranks of a host in running jobs, and notices that blame the host."""

    ranks: Sequence[HostRank]
    """Slow ranks, the slowest first."""
    notices: Sequence[HostNotice]
    """Notices, the latest first."""


def host_now(tx: Reads, host: str) -> HostNow:
    """Return the slow ranks of a host in running jobs, and the latest notices blaming it."""
    last = last_minutes(
        *(tx, PulseSpan.step_median_s, PulseSpan.worst_ranks, PulseSpan.worst_hosts),
        *(PulseSpan.worst_gpus, PulseSpan.worst_ratios),
    )
    running = tx.session.execute(
        select(last, Job.name.label("job"))
        .join(Job, Job.id == last.c.job_id)
        .where(any_(last.c.worst_hosts) == host)
    ).all()
    ranks = [
        HostRank(row.job, rank.rank, rank.gpu, rank.ratio, row.step_median_s)
        for row in running
        for rank in slow_ranks(row)
        if rank.host == host
    ]
    notices = tx.session.execute(
        select(Job.name, PulseNotice.noticed_at, PulseNotice.cleared_at, PulseNotice.evidence)
        .join(Job, Job.id == PulseNotice.job_id)
        .where(any_(PulseNotice.hosts) == host)
        .order_by(PulseNotice.noticed_at.desc(), PulseNotice.number.desc())
        .limit(MOST_NOTICES)
    )
    return HostNow(
        sorted(ranks, key=lambda rank: -rank.ratio),
        [
            HostNotice(job, noticed_at, cleared_at, evidence.full_sentence)
            for job, noticed_at, cleared_at, evidence in notices
        ],
    )

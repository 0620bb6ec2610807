"""Use case: take what came of an attempt's pulse, and say what it shows.

A worker claims an attempt by a lease, reads its bodies and advances the kept state outside of any
transaction. State, notices, blocks, sums and what is left of the inbox are written in one: killed
at any moment, it leaves all as it was, and the next one comes to the same. Bodies that no worker
survives are taken one by one, and left out.
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

from app.analysis.pulse.columns import Pulses
from app.analysis.pulse.detector import Changes, Detector
from app.analysis.pulse.detector_state import from_bytes, to_bytes
from app.analysis.pulse.gpu_readings import Reading, joined
from app.analysis.pulse.gpu_readings import from_bytes as from_kept
from app.analysis.pulse.gpu_readings import to_bytes as to_kept
from app.analysis.pulse.packing import Places
from app.analysis.pulse.step_pace import Pace
from app.errors import PacelineError, UnknownDocumentError
from app.hangs.files import HangFile
from app.hangs.receive import keep_live, limits_of
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
    awaits_measure,
    end_before,
    follow,
    goes_on_before,
    last_minutes,
    say_hardware,
    write_notices,
)
from app.pulse.keep import Kept, kept_of, write_kept
from app.pulse.models import PulseNotice, PulseSpan, PulseState
from app.pulse.spans import slow_ranks
from app.sessions.models.tables import InboxItem, Session

# Between two batches of an attempt: its state is read and written with each.
EVERY: Final = timedelta(seconds=2)
LEASE: Final = timedelta(seconds=30)
# Bodies of a batch, and their bytes.
BATCH: Final = 1_024
BATCH_BYTES: Final = 8 * MIB
# Workers that a body may kill.
MAX_TRIES: Final = 3
# Wrong clocks that are named.
MOST_CLOCKS: Final = 100
_PULSES: Final = InboxItem.kind == InboxKind.PULSE

WORKER_KILLED: Final = "pulse.worker_killed"
STATE_LOST: Final = "pulse.state_lost"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PulseClaim:
    """The right to advance an attempt, until the lease is over; `tries` were begun before."""

    token: uuid.UUID
    project_id: int
    job_id: int
    attempt: int
    tries: int


@dataclass(frozen=True, slots=True, eq=False)
class Advance:
    """What a batch of bodies comes to.

    Parameters
    ----------
    items : tuple of int
        The bodies that are taken, readable or not.
    rows : Pulses or None
        What was in them.
    files : tuple of HangFile
        What ranks that stand still say of themselves.
    pace, came : Pace
        The latest steps, and those of these bodies.
    places : bytes or None
        Where ranks are, if that is new.
    readings : mapping of int to Reading
        The last ones of all ranks, where some or notices are new; else empty.
    first : bool
        Nothing was kept of the attempt: it has begun.
    """

    items: tuple[int, ...]
    rows: Pulses | None
    files: tuple[HangFile, ...]
    detector: Detector
    changes: Changes
    pace: Pace
    came: Pace
    kept: Kept
    places: bytes | None
    readings: Mapping[int, Reading]
    first: bool


class LostClaimError(PacelineError):
    """Meanwhile another worker took the attempt: roll back."""

    code = "pulse.lost_claim"


def advance_pulses(container: Container, every: timedelta = EVERY) -> int:
    """Advance one attempt; return how many bodies were taken, 0 where none is due.

    Parameters
    ----------
    every : timedelta
        Between two batches of an attempt.
    """
    claim = claim_attempt(container, every)
    if claim is None:
        return 0
    within = container.within(claim.project_id)
    try:
        advance = look(within, claim)
        store(within, claim, advance)
    except LostClaimError:
        return 0
    except Exception:
        # The next one begins with a single body.
        _give_back(within, claim)
        raise
    return len(advance.items)


def claim_attempt(container: Container, every: timedelta = EVERY) -> PulseClaim | None:
    """Claim the attempt whose oldest body waits for longest; None where none is due."""
    token = uuid.uuid4()
    with container.everywhere().uow() as tx:
        free = or_(PulseState.lease_until.is_(None), PulseState.lease_until < tx.now)
        due = or_(PulseState.advanced_at.is_(None), PulseState.advanced_at <= tx.now - every)
        found = tx.session.execute(
            select(InboxItem.project_id, InboxItem.job_id, InboxItem.attempt)
            .outerjoin(
                PulseState,
                (PulseState.job_id == InboxItem.job_id) & (PulseState.attempt == InboxItem.attempt),
            )
            .where(_PULSES, is_there(InboxItem.project_id), free, due)
            .order_by(InboxItem.id)
            .limit(1)
        ).one_or_none()
        if found is None:
            return None
        key = {"job_id": found.job_id, "attempt": found.attempt}
        tx.session.execute(
            insert(PulseState).values(project_id=found.project_id, **key).on_conflict_do_nothing()
        )
        tries = tx.session.execute(
            update(PulseState)
            .where(*_is(found.job_id, found.attempt), free)
            .values(claim_token=token, lease_until=tx.now + LEASE, tries=PulseState.tries + 1)
            .returning(PulseState.tries)
        ).scalar()
    if tries is None:
        return None
    return PulseClaim(token, found.project_id, found.job_id, found.attempt, tries - 1)


def look(container: Container, claim: PulseClaim) -> Advance:
    """Read what waits of an attempt and advance its detection; nothing is written."""
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
        world = _world(tx, claim)
    detector, counts = _kept(stored, last)
    # A body that no worker survived is left out with all that waits of its batch.
    lost = len(waiting) if claim.tries > MAX_TRIES else 0
    counts.update({WORKER_KILLED: lost} if lost else {})
    came = read_bodies(detector, waiting[lost:], claim.attempt, world, counts)
    taken = lost + came.taken
    detector.assembler.counts.update(counts)
    items = tuple(row.id for row in waiting[:taken])
    pace = Pace.from_bytes(None if kept is None else kept.pace)
    files, first = tuple(came.files), stored is None
    if came.rows is None:
        changes, nothing = Changes((), ()), Kept({}, {})
        return Advance(
            items, None, files, detector, changes, pace, Pace(), nothing, None, {}, first
        )
    together = came.rows
    newest = pace.advance(together)
    changes = detector.advance(together, limits_of(container.settings))
    received_at = max(row.received_at for row in waiting[:taken])
    blocks = kept_of(changes.steps, together, received_at)
    places = _places(detector)
    if kept is not None and places == kept.places:
        places = None
    readings = came.readings
    if readings or changes.notices:
        readings = joined(from_kept(None if kept is None else kept.hardware), readings)
    return Advance(
        items,
        together,
        files,
        detector,
        changes,
        pace,
        newest,
        blocks,
        places,
        readings,
        first,
    )


def store(container: Container, claim: PulseClaim, advance: Advance) -> None:
    """Write what a batch came to, in one transaction.

    Raises
    ------
    LostClaimError
        Another worker has the attempt; nothing is written.
    """
    detector, changes = advance.detector, advance.changes
    size = 0 if advance.rows is None else len(advance.rows)
    # They hardly ever change.
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
                lost_gpu_s=PulseState.lost_gpu_s + advance.kept.lost_gpu_s,
                claim_token=None,
                lease_until=None,
                tries=0,
                **new,
            )
            .returning(PulseState.attempt)
        ).scalar()
        if mine is None:
            raise LostClaimError("another worker has it")
        tx.session.execute(delete(InboxItem).where(InboxItem.id.in_(advance.items)))
        ended = advance.first and goes_on_before(tx, claim.job_id, claim.attempt)
        changed = bool(ended or changes.notices or changes.withdrawn or advance.files)
        changed = changed or awaits_measure(tx, claim.job_id, claim.attempt)
        # Before its notices, as whoever evaluates the job takes them.
        group = group_of_job(tx, claim.job_id) if changed else None
        if ended:
            end_before(tx, claim.job_id, claim.attempt)
        write_notices(tx, claim.job_id, claim.attempt, changes)
        if advance.readings:
            say_hardware(tx, claim.job_id, claim.attempt, advance.readings, detector.hosts)
        if not detector.heartbeats.moves(limits_of(container.settings)):
            keep_live(tx, claim.job_id, claim.attempt, advance.files, detector.hosts)
        follow(container, tx, Batch(claim.job_id, claim.attempt, advance.pace, advance.came), group)
        write_kept(tx, claim.job_id, claim.attempt, advance.kept, detector.hosts)
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


def _give_back(container: Container, claim: PulseClaim) -> None:
    with container.uow() as tx:
        tx.session.execute(
            update(PulseState)
            .where(*_is(claim.job_id, claim.attempt), PulseState.claim_token == claim.token)
            .values(claim_token=None, lease_until=None, advanced_at=tx.now)
        )


def _waiting(tx: Reads, claim: PulseClaim) -> Sequence[Row[int, bytes | None, datetime]]:
    """Return the bodies of a batch; a single one where the last batch did not end well."""
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


def _world(tx: Reads, claim: PulseClaim) -> int | None:
    """Return how many ranks an attempt has by its latest session; None without one."""
    return tx.session.execute(
        select(Session.world)
        .where(Session.job_id == claim.job_id, Session.attempt == claim.attempt)
        .order_by(Session.received_at.desc())
        .limit(1)
    ).scalar()


def _kept(stored: bytes | None, last: int | None) -> tuple[Detector, Counter[str]]:
    """Return the detector of a state; a new one, and that it is, where that cannot be read.

    Parameters
    ----------
    last : int or None
        The highest number of a notice; those of a new detector come behind.
    """
    counts: Counter[str] = Counter()
    if stored is not None:
        try:
            return from_bytes(stored), counts
        except UnknownDocumentError:
            counts[STATE_LOST] += 1
    detector = Detector()
    if last is not None:
        # Its two ledgers count in twos.
        detector.ledger.next_number = last + 1
        detector.heartbeats.ledger.next_number = last + 2
    return detector, counts


def _places(detector: Detector) -> bytes | None:
    """Return where the ranks of the process group are; None before there is one."""
    watch = detector.watch
    if watch is None:
        return None
    return Places.of(watch.ranks, watch.pp_ranks, detector.hosts).to_bytes()


def _clocks(detector: Detector) -> dict[str, float]:
    """Return by how many seconds clocks are off those of the others, the farthest ones first."""
    found: dict[str, float] = {}
    for rank, by_ns in sorted(detector.offsets.items(), key=lambda item: -abs(item[1])):
        name = detector.hosts.get(rank, f"rank {rank}")
        if name not in found and len(found) >= MOST_CLOCKS:
            break
        found.setdefault(name, round(by_ns / 1e9, 3))
    return found


def _is(job_id: int, attempt: int) -> Sequence[ColumnElement[bool]]:
    return PulseState.job_id == job_id, PulseState.attempt == attempt


# A host in running jobs.
MOST_NOTICES: Final = 20


@dataclass(frozen=True, slots=True)
class HostRank:
    """A rank of a host among those that compute longest in a job that runs."""

    job: str
    rank: int
    gpu: int
    ratio: float
    step_s: float
    """Of the job, in its last minute."""


@dataclass(frozen=True, slots=True)
class HostNotice:
    """Something that was noticed of a host."""

    job: str
    noticed_at: datetime
    cleared_at: datetime | None
    sentence: str  # and what its GPUs say


@dataclass(frozen=True, slots=True)
class HostNow:
    """A host, as pulses name it."""

    ranks: Sequence[HostRank]
    """The slowest first."""
    notices: Sequence[HostNotice]
    """The latest first."""


def host_now(tx: Reads, host: str) -> HostNow:
    """Return what pulses say of a host."""
    last = last_minutes(
        tx,
        PulseSpan.step_median_s,
        PulseSpan.worst_ranks,
        PulseSpan.worst_hosts,
        PulseSpan.worst_gpus,
        PulseSpan.worst_ratios,
    )
    running = tx.session.execute(
        select(last, Job.name.label("job"))
        .join(Job, Job.id == last.c.job_id)
        .where(any_(last.c.worst_hosts) == host)
    ).all()
    ranks = [
        HostRank(row.job, one.rank, one.gpu, one.ratio, row.step_median_s)
        for row in running
        for one in slow_ranks(row)
        if one.host == host
    ]
    noticed = tx.session.execute(
        select(
            Job.name,
            PulseNotice.noticed_at,
            PulseNotice.cleared_at,
            PulseNotice.evidence,
        )
        .join(Job, Job.id == PulseNotice.job_id)
        .where(any_(PulseNotice.hosts) == host)
        .order_by(PulseNotice.noticed_at.desc(), PulseNotice.number.desc())
        .limit(MOST_NOTICES)
    )
    return HostNow(
        sorted(ranks, key=lambda one: -one.ratio),
        [
            HostNotice(job, noticed_at, cleared_at, evidence.full_sentence)
            for job, noticed_at, cleared_at, evidence in noticed
        ],
    )

"""Consequences of notices: their cost, a request for a session, and an incident.

All of this is in the transaction that writes the notices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Subquery, delete, exists, func, select, update
from sqlalchemy.dialects.postgresql import aggregate_order_by, distinct_on, insert
from sqlalchemy.orm import InstrumentedAttribute

from app.analysis.pulse.detector import Changes
from app.analysis.pulse.gpu_readings import Reading, unlike_peers
from app.analysis.pulse.step_pace import Pace
from app.hangs.models import StoredHang
from app.incidents.evaluate import look
from app.incidents.models.facts import STANDING_STILL
from app.incidents.models.tables import AlertGroup
from app.incidents.rule_store import give_rules
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.pulse.keep import MINUTE
from app.pulse.models import PulseNotice, PulseSpan, PulseState
from app.pulse.recordings import is_within_budget, open_request, request_recording, window_s
from app.sessions.models.tables import Session

# The steps within this time after a notice was cleared measure how much time its end gained.
AFTER: Final = timedelta(minutes=30)


def write_notices(tx: UnitOfWork, job_id: int, attempt: int, changes: Changes) -> None:
    """Write the changed notices of a batch, and delete the withdrawn ones."""
    key = {"job_id": job_id, "attempt": attempt}
    if changes.withdrawn:
        tx.session.execute(
            delete(PulseNotice).where(
                PulseNotice.job_id == job_id,
                PulseNotice.attempt == attempt,
                PulseNotice.number.in_(changes.withdrawn),
            )
        )
    numbers = [notice.number for notice in changes.notices]
    hardware: dict[int, str | None] = {}
    if numbers:
        stored = tx.session.execute(
            select(PulseNotice.number, PulseNotice.evidence["hardware"].astext.label("hardware"))
            .where(PulseNotice.job_id == job_id, PulseNotice.attempt == attempt)
            .where(PulseNotice.number.in_(numbers))
        )
        hardware = {row.number: row.hardware for row in stored}
    for notice in changes.notices:
        values = {
            "kind": notice.kind,
            "ranks": list(notice.ranks),
            "hosts": list(notice.hosts),
            "factor": notice.factor,
            "from_step": notice.from_step,
            "noticed_step": notice.noticed_step,
            "noticed_time_ns": notice.noticed_time_ns,
            "cleared_step": notice.cleared_step,
            "evidence": replace(notice.evidence, hardware=hardware.get(notice.number)),
        }
        tx.session.execute(
            insert(PulseNotice)
            .values(**key, number=notice.number, **values)
            .on_conflict_do_update(index_elements=["job_id", "attempt", "number"], set_=values)
        )


def add_hardware(
    tx: UnitOfWork,
    job_id: int,
    attempt: int,
    readings: Mapping[int, Reading],
    hosts: Mapping[int, str],
) -> None:
    """Add the differences between the GPUs of blamed ranks and their peers to open notices."""
    notices = tx.session.execute(
        select(PulseNotice)
        .where(
            PulseNotice.job_id == job_id,
            PulseNotice.attempt == attempt,
            PulseNotice.cleared_step.is_(None),
            func.cardinality(PulseNotice.ranks) > 0,
        )
        .execution_options(populate_existing=True)
    ).scalars()
    now_ns = int(tx.now.timestamp() * 1e9)
    for notice in notices.all():
        hardware = unlike_peers(frozenset(notice.ranks), readings, hosts, now_ns)
        if hardware != notice.evidence.hardware:
            notice.evidence = replace(notice.evidence, hardware=hardware)
    tx.session.flush()


def has_open_before(tx: Reads, job_id: int, attempt: int) -> bool:
    """Return whether a notice of an earlier attempt of the job is open."""
    query = select(PulseNotice.number).where(*_before(job_id, attempt)).limit(1)
    return tx.session.execute(query).first() is not None


def awaits_measure(tx: Reads, job_id: int, attempt: int) -> bool:
    """Return whether a cleared notice has too few later steps to measure the gain of its end.

    Its incident may wait for them.
    """
    query = (
        select(PulseNotice.number)
        .where(
            PulseNotice.job_id == job_id,
            PulseNotice.attempt == attempt,
            PulseNotice.cleared_at > tx.now - AFTER,
            PulseNotice.after_ns.is_(None),
            PulseNotice.kind.not_in(STANDING_STILL),
        )
        .limit(1)
    )
    return tx.session.execute(query).first() is not None


def clear_before(tx: UnitOfWork, job_id: int, attempt: int) -> None:
    """Clear the open notices of a job's earlier attempts; the group of alerts must be locked."""
    tx.session.execute(
        update(PulseNotice)
        .where(*_before(job_id, attempt))
        .values(
            cleared_step=func.greatest(PulseNotice.noticed_step, PulseNotice.from_step),
            cleared_at=tx.now,
        )
        .execution_options(synchronize_session=False)
    )


def _before(job_id: int, attempt: int) -> Sequence[ColumnElement[bool]]:
    return (
        PulseNotice.job_id == job_id,
        PulseNotice.attempt < attempt,
        PulseNotice.cleared_step.is_(None),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Step times of an attempt's bodies that were read together.

    Parameters
    ----------
    pace, batch_pace : Pace
        Latest steps of the attempt, and steps of these bodies.
    """

    job_id: int
    attempt: int
    pace: Pace
    batch_pace: Pace


def follow_up(container: Container, tx: UnitOfWork, batch: Batch, group: AlertGroup | None) -> None:
    """Update costs of notices; if notices changed, request a session and evaluate alert rules.

    Parameters
    ----------
    group : AlertGroup or None
        Locked group of the job's alerts; None if no notice changed.
    """
    rows = tx.session.execute(
        select(PulseNotice)
        .where(
            PulseNotice.job_id == batch.job_id,
            PulseNotice.attempt == batch.attempt,
            PulseNotice.cleared_at.is_(None) | (PulseNotice.cleared_at > tx.now - AFTER),
        )
        .order_by(PulseNotice.number)
        .execution_options(populate_existing=True)
    ).scalars()
    notices = rows.all()
    new = [notice for notice in notices if notice.fires_at is None]
    if new:
        give_rules(tx, [notice.kind for notice in new])
    for notice in notices:
        _note_end(tx, notice)
        _measure(tx, notice, batch)
    if group is None:
        return
    _request_recording(container, tx, new, batch.pace)
    tx.session.flush()
    look(container, tx, group)


def _note_end(tx: UnitOfWork, notice: PulseNotice) -> None:
    """Store the time at which a notice was cleared, or remove it if the notice is open again."""
    if notice.cleared_step is None:
        if notice.cleared_at is not None:
            notice.cleared_at = notice.after_ns = None
        return
    if notice.cleared_at is not None:
        return
    notice.cleared_at = tx.now
    if notice.kind in STANDING_STILL:
        # The hang whose files the ranks sent is over, too.
        tx.session.execute(
            update(StoredHang)
            .where(StoredHang.job_id == notice.job_id, StoredHang.over_at.is_(None))
            .values(over_at=tx.now)
            .execution_options(synchronize_session=False)
        )


def _measure(tx: UnitOfWork, notice: PulseNotice, batch: Batch) -> None:
    """Update the cost of a notice, and the gain from its end."""
    pace, end = batch.pace, notice.cleared_step
    if notice.kind in STANDING_STILL:
        seconds = notice.evidence.seconds
        if seconds is None and notice.evidence.since_ns is not None and end is None:
            seconds = max(0.0, tx.now.timestamp() - notice.evidence.since_ns / 1e9)
        if seconds is not None:
            notice.lost_ns = pace.ranks() * seconds * 1e9
        return
    if notice.baseline_ns is None:
        notice.baseline_ns = pace.mean_ns(end=notice.from_step)
        if notice.baseline_ns is not None:
            notice.lost_ns = pace.lost_ns(notice.from_step, notice.baseline_ns, end)
    else:
        notice.lost_ns += batch.batch_pace.lost_ns(notice.from_step, notice.baseline_ns, end)
    if end is not None:
        notice.after_ns = pace.mean_ns(end) or notice.after_ns
    if end is None or notice.step_ns is None:
        notice.step_ns = pace.mean_ns(notice.from_step, end) or notice.step_ns


def _request_recording(
    container: Container, tx: UnitOfWork, new: list[PulseNotice], pace: Pace
) -> None:
    """Request a session for the first new notice, if the budget allows."""
    settings = container.settings
    steps = settings.pulse_record_steps
    window = window_s(pace, steps)
    wait = timedelta(seconds=settings.pulse_confirm_wait_s)
    for notice in new:
        notice.fires_at = tx.now + timedelta(seconds=window) + wait
        if notice.kind in STANDING_STILL or notice.cleared_step is not None:
            continue
        key = notice.job_id, notice.attempt
        request = open_request(tx, *key)
        if request is None:
            rows = tx.session.execute(
                select(PulseState.rows).where(
                    PulseState.job_id == notice.job_id, PulseState.attempt == notice.attempt
                )
            ).scalar_one()
            if is_within_budget(tx, settings, *key, rows // max(1, pace.ranks())):
                request = request_recording(
                    *(tx, *key),
                    steps=steps,
                    reason=notice.evidence.sentence,
                    by=None,
                    window_s=window,
                    patience=wait,
                )
        notice.request_id = None if request is None else request.id


# Largest number of jobs in a list.
MOST_JOBS: Final = 500
# A job is running if its pulse was read within this time.
_SINCE: Final = timedelta(minutes=2)
# Oldest minute that counts as the last minute of a running job, since a step may take minutes.
_MINUTES: Final = timedelta(minutes=30)
# The last minute is compared with the median minute of this time range.
_BEFORE: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class LiveStep:
    """A running job with its step time in the last minute."""

    job: str
    ranks: int
    step_s: float
    before_s: float
    """Median step time of the minutes of the last hour, seconds."""
    suspicions: Sequence[str]
    """Sentences of notices that are open, the latest first."""
    recorded: bool
    """Whether the job has ever sent a session."""

    @property
    def change(self) -> float:
        """Return the growth of the step time against the last hour (0.1: 10 % longer)."""
        return self.step_s / self.before_s - 1 if self.before_s else 0.0


def last_minutes(tx: Reads, *columns: InstrumentedAttribute[Any]) -> Subquery:
    """Return a subquery of each running job's last minute: `job_id` and the given columns."""
    return (
        select(PulseSpan.job_id, *columns)
        .join(PulseState, PulseState.job_id == PulseSpan.job_id)
        .where(
            PulseState.advanced_at > tx.now - _SINCE,
            PulseSpan.seconds == MINUTE,
            PulseSpan.start > tx.now - _MINUTES,
        )
        .ext(distinct_on(PulseSpan.job_id))
        .order_by(PulseSpan.job_id, PulseSpan.start.desc(), PulseSpan.attempt.desc())
        .subquery()
    )


def live_steps(tx: Reads) -> list[LiveStep]:
    """Return the running jobs, sorted by descending number of ranks."""
    last = last_minutes(tx, PulseSpan.ranks, PulseSpan.step_median_s)
    before = (
        select(func.percentile_cont(0.5).within_group(PulseSpan.step_median_s))
        .where(
            PulseSpan.job_id == last.c.job_id,
            PulseSpan.seconds == MINUTE,
            PulseSpan.start > tx.now - _BEFORE,
        )
        .scalar_subquery()
    )
    sentence = PulseNotice.evidence["sentence"].astext
    suspicions = (
        select(func.array_agg(aggregate_order_by(sentence, PulseNotice.noticed_at.desc())))
        .where(PulseNotice.job_id == last.c.job_id, PulseNotice.cleared_at.is_(None))
        .scalar_subquery()
    )
    query = (
        select(
            Job.name,
            last.c.ranks,
            last.c.step_median_s,
            before,
            suspicions,
            exists().where(Session.job_id == last.c.job_id),
        )
        .join(Job, Job.id == last.c.job_id)
        .order_by(last.c.ranks.desc(), Job.name)
        .limit(MOST_JOBS)
    )
    return [
        LiveStep(job, ranks, step_s, before_s, sentences or (), recorded)
        for job, ranks, step_s, before_s, sentences, recorded in tx.session.execute(query)
    ]

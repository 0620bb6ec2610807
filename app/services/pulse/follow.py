"""What follows from notices: what they cost, a session that is asked for, an incident.

All of it is in the transaction that writes the notices.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from app.alerts.notices.facts import STANDING_STILL
from app.db.models.noticed import PulseNotice, PulseState, StoredHang
from app.services.alerts.evaluate import look
from app.services.alerts.rules import give_rules
from app.services.pulse.noticed import AFTER
from app.services.pulse.recordings import ask, is_within_budget, open_request, window_s

if TYPE_CHECKING:
    from app.analysis.pulse.evidence.pace import Pace
    from app.db.models.alerts import AlertGroup
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Bodies of an attempt of a job that were read together.

    Parameters
    ----------
    pace, came : Pace
        The latest steps, and those of these bodies.
    """

    job_id: int
    attempt: int
    pace: Pace
    came: Pace


def follow(container: Container, tx: UnitOfWork, batch: Batch, group: AlertGroup | None) -> None:
    """Keep what notices cost; where they changed, ask for a session and let rules look.

    Parameters
    ----------
    group : AlertGroup or None
        Of the job's alerts, locked before the notices were written; None where none changed.
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
        _close(tx, notice)
        _measure(tx, notice, batch)
    if group is None:
        return
    _ask(container, tx, new, batch.pace)
    tx.session.flush()
    look(container, tx, group)


def _close(tx: UnitOfWork, notice: PulseNotice) -> None:
    """Note when a notice ended by the server's clock, or that it goes on again."""
    if notice.cleared_step is None:
        if notice.cleared_at is not None:
            notice.cleared_at = notice.after_ns = None
        return
    if notice.cleared_at is not None:
        return
    notice.cleared_at = tx.now
    if notice.kind in STANDING_STILL:
        # What files say of the same hang is over with it.
        tx.session.execute(
            update(StoredHang)
            .where(StoredHang.job_id == notice.job_id, StoredHang.over_at.is_(None))
            .values(over_at=tx.now)
            .execution_options(synchronize_session=False)
        )


def _measure(tx: UnitOfWork, notice: PulseNotice, batch: Batch) -> None:
    """Bring up to date what a notice costs, and what its end brought."""
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
        notice.lost_ns += batch.came.lost_ns(notice.from_step, notice.baseline_ns, end)
    if end is not None:
        notice.after_ns = pace.mean_ns(end) or notice.after_ns
    if end is None or notice.step_ns is None:
        notice.step_ns = pace.mean_ns(notice.from_step, end) or notice.step_ns


def _ask(container: Container, tx: UnitOfWork, new: list[PulseNotice], pace: Pace) -> None:
    """Ask for a session of what was noticed first, where the budget has one."""
    settings = container.settings
    steps = settings.pulse_record_steps
    window = window_s(pace, steps)
    wait = timedelta(seconds=settings.pulse_confirm_wait_s)
    for notice in new:
        notice.fires_at = tx.now + timedelta(seconds=window) + wait
        if notice.kind in STANDING_STILL or notice.cleared_step is not None:
            continue
        request = open_request(tx, notice.job_id, notice.attempt)
        if request is None and is_within_budget(
            tx, settings, notice.job_id, notice.attempt, _steps_sent(tx, notice, pace)
        ):
            request = ask(
                tx,
                notice.job_id,
                notice.attempt,
                steps=steps,
                reason=notice.evidence.sentence,
                by=None,
                window_s=window,
                patience=wait,
            )
        notice.request_id = None if request is None else request.id


def _steps_sent(tx: UnitOfWork, notice: PulseNotice, pace: Pace) -> int:
    rows = tx.session.execute(
        select(PulseState.rows).where(
            PulseState.job_id == notice.job_id, PulseState.attempt == notice.attempt
        )
    ).scalar_one()
    return rows // max(1, pace.ranks())

"""What a batch of an attempt's pulse notices, written in the transaction that takes the batch."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.alerts.notices.facts import STANDING_STILL
from app.analysis.pulse.hardware import unlike_peers
from app.db.models.noticed import PulseNotice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement

    from app.analysis.pulse.detector import Changes
    from app.analysis.pulse.hardware import Reading
    from app.db.unit_of_work import Reads, UnitOfWork

# For so long the steps after a notice count for what its end brought.
AFTER: Final = timedelta(minutes=30)


def write_notices(tx: UnitOfWork, job_id: int, attempt: int, changes: Changes) -> None:
    """Write what a batch noticed, and take back what it withdraws."""
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
    said = _hardware_of(tx, job_id, attempt, numbers) if numbers else {}
    for notice in changes.notices:
        words = {
            "kind": notice.kind,
            "ranks": list(notice.ranks),
            "hosts": list(notice.hosts),
            "factor": notice.factor,
            "from_step": notice.from_step,
            "noticed_step": notice.noticed_step,
            "noticed_time_ns": notice.noticed_time_ns,
            "cleared_step": notice.cleared_step,
            "evidence": replace(notice.evidence, hardware=said.get(notice.number)),
        }
        tx.session.execute(
            insert(PulseNotice)
            .values(**key, number=notice.number, **words)
            .on_conflict_do_update(index_elements=["job_id", "attempt", "number"], set_=words)
        )


def _hardware_of(
    tx: Reads, job_id: int, attempt: int, numbers: Sequence[int]
) -> Mapping[int, str | None]:
    """Return what was said of the hardware in notices that are there."""
    found = tx.session.execute(
        select(PulseNotice.number, PulseNotice.evidence["hardware"].astext.label("said")).where(
            PulseNotice.job_id == job_id,
            PulseNotice.attempt == attempt,
            PulseNotice.number.in_(numbers),
        )
    )
    return {row.number: row.said for row in found}


def say_hardware(
    tx: UnitOfWork,
    job_id: int,
    attempt: int,
    readings: Mapping[int, Reading],
    hosts: Mapping[int, str],
) -> None:
    """Add to what goes on in an attempt what the GPUs of its ranks say of themselves."""
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
        said = unlike_peers(frozenset(notice.ranks), readings, hosts, now_ns)
        if said != notice.evidence.hardware:
            notice.evidence = replace(notice.evidence, hardware=said)
    tx.session.flush()


def goes_on_before(tx: Reads, job_id: int, attempt: int) -> bool:
    """Return whether a notice of an earlier attempt of a job goes on."""
    query = select(PulseNotice.number).where(*_before(job_id, attempt)).limit(1)
    return tx.session.execute(query).first() is not None


def awaits_measure(tx: Reads, job_id: int, attempt: int) -> bool:
    """Return whether a notice of an attempt is over, and too few steps ended since to measure it.

    Its incident may wait for these.
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


def end_before(tx: UnitOfWork, job_id: int, attempt: int) -> None:
    """Say that what goes on in earlier attempts of a job is over: another one has begun.

    The job's group of alerts is locked.
    """
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

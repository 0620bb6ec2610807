"""Use case: forget states of detection that nothing follows any more, and old requests."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, exists, select, update
from sqlalchemy.orm import aliased

from app.db.models.noticed import PulseState, RecordingRequest

if TYPE_CHECKING:
    from app.db.unit_of_work import UnitOfWork

# After so long a job that goes on is watched as a new one; counts and notices stay.
SILENT: Final = timedelta(days=7)
# Bodies of an attempt that come after those of a later one are at most seconds old.
FOLLOWED: Final = timedelta(hours=1)
# As long as what minutes come to is kept without a rule.
REQUESTS_KEPT: Final = timedelta(days=90)
_AT_ONCE: Final = 256


def prune_pulses(tx: UnitOfWork) -> None:
    """Forget the states of ended attempts, and requests that were answered long ago."""
    later = aliased(PulseState)
    followed = exists().where(later.job_id == PulseState.job_id, later.attempt > PulseState.attempt)
    old = (PulseState.advanced_at < tx.now - SILENT) | (
        (PulseState.advanced_at < tx.now - FOLLOWED) & followed
    )
    tx.session.execute(
        update(PulseState)
        .where(PulseState.state.is_not(None), PulseState.lease_until.is_(None), old)
        .values(state=None, pace=None)
        .execution_options(synchronize_session=False)
    )
    first = select(RecordingRequest.id).order_by(RecordingRequest.id).limit(_AT_ONCE)
    tx.session.execute(
        delete(RecordingRequest)
        .where(
            RecordingRequest.id.in_(first.scalar_subquery()),
            RecordingRequest.until < tx.now - REQUESTS_KEPT,
        )
        .execution_options(synchronize_session=False)
    )

"""The read side of applied fixes: of a session, of a job, of all, and how predictions fared."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import or_, select
from sqlalchemy.orm import aliased

from app.analysis.report.realized import Calibration, calibration, prediction_error
from app.db.models.fixes import AppliedFix
from app.db.models.sessions import Job, Session
from app.db.states import FixSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.db.unit_of_work import Reads

# Newest ones that a page or an answer lists, and that a calibration is of.
MOST_LISTED: Final = 100
MOST_CALIBRATED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Realized:
    """A fix that was applied, and what it brought.

    Parameters
    ----------
    job : str
    session : UUID
        Whose report predicted its gain.
    number : int
        That session's.
    action, title : str
        The fix's code, and what it is in words.
    applied_at : datetime
    applied_by : str or None
        None where metadata show it.
    source : FixSource
    step_time_s : float
        Mean recorded step time of that session.
    predicted_gain : float
        The share of it that the fix was to save.
    at_most : bool
        Whether that is the most that such a change can bring.
    measured_by, measured_number : UUID and int, or None
        The first session with it.
    realized_step_time_s, realized_gain : float or None
        What that took, and the share of the step time before that is saved.
    unlike : str or None
        Why the two cannot be compared.
    """

    job: str
    session: uuid.UUID
    number: int
    action: str
    title: str
    applied_at: datetime
    applied_by: str | None
    source: FixSource
    step_time_s: float
    predicted_gain: float
    at_most: bool
    measured_by: uuid.UUID | None
    measured_number: int | None
    realized_step_time_s: float | None
    realized_gain: float | None
    unlike: str | None

    @property
    def error(self) -> float | None:
        """Return by how much steps are slower than predicted; None where nothing says so."""
        if self.realized_gain is None or self.unlike is not None or self.at_most:
            return None
        return prediction_error(self.predicted_gain, self.realized_gain)


def realized_fixes(  # noqa: PLR0913 - all that they are asked for
    tx: Reads,
    *,
    job: str | None = None,
    session: uuid.UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    most: int = MOST_LISTED,
) -> tuple[Realized, ...]:
    """Return the fixes that were applied, newest first.

    Parameters
    ----------
    tx : Reads
    job : str, optional
        Of this job only.
    session : UUID, optional
        Those that this session's report recommended, and those that it measured.
    since, until : datetime, optional
        Applied within that time.
    most : int
        The newest of them.
    """
    measured = aliased(Session)
    query = (
        select(
            Job.name,
            AppliedFix.session_id,
            Session.number,
            AppliedFix.action,
            AppliedFix.title,
            AppliedFix.applied_at,
            AppliedFix.applied_by,
            AppliedFix.source,
            AppliedFix.step_time_s,
            AppliedFix.predicted_gain,
            AppliedFix.at_most,
            AppliedFix.measured_by,
            measured.number,
            AppliedFix.realized_step_time_s,
            AppliedFix.realized_gain,
            AppliedFix.unlike,
        )
        .join(Job, Job.id == AppliedFix.job_id)
        .join(Session, Session.id == AppliedFix.session_id)
        .outerjoin(measured, measured.id == AppliedFix.measured_by)
        .order_by(AppliedFix.applied_at.desc(), AppliedFix.id.desc())
        .limit(most)
    )
    if job is not None:
        query = query.where(Job.name == job)
    if since is not None:
        query = query.where(AppliedFix.applied_at >= since)
    if until is not None:
        query = query.where(AppliedFix.applied_at <= until)
    if session is not None:
        query = query.where(
            or_(AppliedFix.session_id == session, AppliedFix.measured_by == session)
        )
    # More columns than the types of a row go: their order is that of the fields.
    return tuple(Realized(*values) for values in map(tuple, tx.session.execute(query)))


def calibrations(tx: Reads) -> Mapping[str, Calibration]:
    """Return how the predictions of each kind of fix turned out; ``""`` is all of them."""
    rows = tx.session.execute(
        select(AppliedFix.action, AppliedFix.predicted_gain, AppliedFix.realized_gain)
        .where(
            AppliedFix.realized_gain.is_not(None),
            AppliedFix.unlike.is_(None),
            AppliedFix.at_most.is_(False),
        )
        .order_by(AppliedFix.applied_at.desc())
        .limit(MOST_CALIBRATED)
    ).all()
    errors: dict[str, list[float]] = {}
    for action, predicted, realized in rows:
        if realized is None:
            continue
        error = prediction_error(predicted, realized)
        errors.setdefault("", []).append(error)
        errors.setdefault(action, []).append(error)
    found = {action: calibration(items) for action, items in errors.items()}
    return {action: item for action, item in found.items() if item is not None}

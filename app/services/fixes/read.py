"""The read side of applied fixes: of a session, of a job, of all, and how predictions fared."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import aliased

from app.analysis.report.realized import Calibration, calibration, prediction_error
from app.db.models.fixes import AppliedFix
from app.db.models.sessions import Job, Session
from app.db.states import FixSource
from app.lists.columns import Column
from app.lists.listing import Listing, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import Reads

# Newest ones that a page or an answer lists, and that a calibration is of.
MOST_LISTED: Final = 100
MOST_CALIBRATED: Final = 10_000


_measured: Final = aliased(Session)


@dataclass(frozen=True, slots=True)
class Realized:
    """A fix that was applied: what was predicted, and what the next session measured.

    `session` is whose report predicted it, `applied_by` null where metadata show it. Gains are
    shares of `step_time_s`, the mean recorded step time of that session; `at_most` says that a gain
    is the most that such a change can bring. `unlike` says why the two sessions cannot be compared.
    `error` is by how much steps are slower than predicted, null where nothing says so.
    """

    job: Annotated[str, Column(Job.name)]
    session: Annotated[uuid.UUID, Column(AppliedFix.session_id)]
    number: Annotated[int, Column(Session.number)]
    action: str
    title: str
    applied_at: datetime
    applied_by: str | None
    source: FixSource
    step_time_s: float
    predicted_gain: float
    at_most: bool
    measured_by: uuid.UUID | None
    measured_number: Annotated[int | None, Column(_measured.number)]
    realized_step_time_s: float | None
    realized_gain: float | None
    unlike: str | None
    error: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        comparable = self.unlike is None and not self.at_most
        measured = self.realized_gain if comparable else None
        error = None if measured is None else prediction_error(self.predicted_gain, measured)
        object.__setattr__(self, "error", error)


FIXES: Final = Listing(
    Realized,
    lambda query: (
        query.join(Job, Job.id == AppliedFix.job_id)
        .join(Session, Session.id == AppliedFix.session_id)
        .outerjoin(_measured, _measured.id == AppliedFix.measured_by)
    ),
    ties=(AppliedFix.applied_at.desc(), AppliedFix.id.desc()),
    model=AppliedFix,
)


def realized_fixes(  # noqa: PLR0913 - all that they are asked for
    tx: Reads,
    *,
    job: str | None = None,
    session: uuid.UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    most: int = MOST_LISTED,
) -> list[Realized]:
    """Return the fixes that were applied, newest first.

    Parameters
    ----------
    session : UUID, optional
        Those that this session's report recommended, and those that it measured.
    since, until : datetime, optional
        Applied within that time.
    most : int
        The newest of them.
    """
    return read(tx, FIXES, *applied(job, session, since, until), limit=most)


def applied(
    job: str | None = None,
    session: uuid.UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[ColumnElement[bool]]:
    """Return what a row of `FIXES` has to meet; see `realized_fixes`."""
    where: list[ColumnElement[bool]] = []
    if job is not None:
        where.append(Job.name == job)
    if session is not None:
        where.append(or_(AppliedFix.session_id == session, AppliedFix.measured_by == session))
    if since is not None:
        where.append(AppliedFix.applied_at >= since)
    if until is not None:
        where.append(AppliedFix.applied_at <= until)
    return where


def calibrations(tx: Reads) -> Mapping[str, Calibration]:
    """Return how the predictions of each kind of fix turned out; ``""`` is all of them."""
    return calibrations_of(map(tuple, tx.session.execute(measured_gains())))


def measured_gains() -> Select[*tuple[Any, ...]]:
    """Return the query of what was predicted and measured, of the latest fixes of every kind."""
    return (
        select(AppliedFix.action, AppliedFix.predicted_gain, AppliedFix.realized_gain)
        .where(
            AppliedFix.realized_gain.is_not(None),
            AppliedFix.unlike.is_(None),
            AppliedFix.at_most.is_(False),
        )
        .order_by(AppliedFix.applied_at.desc())
        .limit(MOST_CALIBRATED)
    )


def calibrations_of(rows: Iterable[tuple[str, float, float]]) -> Mapping[str, Calibration]:
    """Return how predictions turned out, of rows of `measured_gains`."""
    errors: dict[str, list[float]] = {}
    for action, predicted, realized in rows:
        error = prediction_error(predicted, realized)
        errors.setdefault("", []).append(error)
        errors.setdefault(action, []).append(error)
    found = {action: calibration(items) for action, items in errors.items()}
    return {action: item for action, item in found.items() if item is not None}

"""What was done about a job that is slow, and what its whole job would take planned anew."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import null, select

from app.analysis.report.realized import Calibration
from app.db.json_values import as_json
from app.db.models.access import Project
from app.services.fixes.read import (
    FIXES,
    MOST_LISTED,
    Realized,
    applied,
    calibrations_of,
    measured_gains,
)
from app.services.plans.of_job import WholeJob, whole_job, whole_job_query

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class Remedies:
    """Fixes that were applied (the newest first), how predictions fare, and a plan.

    `calibrations` are by code of the fix; ``""`` is all of them. `whole_job` is None where none
    was asked for, and where a session has no verdict or no operations.
    """

    applied: Sequence[Realized]
    calibrations: Mapping[str, Calibration]
    whole_job: WholeJob | None


def remedies(  # noqa: PLR0913 - all that they are asked for
    tx: Reads,
    *,
    job: str | None = None,
    session: uuid.UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    most: int = MOST_LISTED,
    planned_by: uuid.UUID | None = None,
) -> Remedies:
    """Return what was done about it and how the whole job is planned, with one statement.

    Parameters
    ----------
    job, session, since, until, most
        See `app.services.fixes.read.realized_fixes`.
    planned_by : UUID, optional
        The session whose whole job it is about.
    """
    listed = FIXES.query().where(*applied(job, session, since, until)).order_by(*FIXES.ties)
    planned = null() if planned_by is None else as_json(whole_job_query(planned_by))
    fixes, measured, plans = tx.session.execute(
        select(as_json(listed.limit(most)), as_json(measured_gains()), planned)
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    return Remedies(
        FIXES.rows(fixes or ()),
        calibrations_of(
            (one["action"], one["predicted_gain"], one["realized_gain"]) for one in measured or ()
        ),
        None if planned_by is None else whole_job(planned_by, plans),
    )

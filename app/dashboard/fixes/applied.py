"""Fixes that were applied, as pages show them: predicted beside realized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.analysis.report.realized import MET_WITHIN, Calibration
from app.dashboard.look.csv_text import Table
from app.dashboard.look.format import percent, plural, seconds
from app.services.fixes.read import Realized


@dataclass(frozen=True, slots=True)
class AppliedRow:
    """A fix that was applied.

    `outcome` says how the prediction turned out, or what it waits for.
    """

    job: str
    title: str
    action: str
    session_url: str
    number: int
    applied_at: datetime
    how: str
    predicted: str
    realized: str
    outcome: str
    measured_url: str
    measured_number: int | None


@dataclass(frozen=True, slots=True)
class AppliedFixes:
    """The applied fixes of a session or a job, and how predictions fare in its project."""

    rows: Sequence[AppliedRow]
    calibration: str
    csv: str


def applied_fixes(
    found: Sequence[Realized], figures: Mapping[str, Calibration], csv: str, action: str = ""
) -> AppliedFixes:
    """Return what pages show of applied fixes.

    Parameters
    ----------
    figures : mapping of str to Calibration
        By code of the fix; ``""`` is all of them.
    csv : str
        Where they are to be had as a file.
    action : str
        Whose calibration is said.
    """
    return AppliedFixes(tuple(map(_row, found)), calibration_text(figures.get(action)), csv)


def applied_csv(found: Sequence[Realized]) -> Table:
    """Return applied fixes, the newest first."""
    return Table.of(Realized, found)


def calibration_text(found: Calibration | None) -> str:
    """Return how predictions turned out, in a sentence; empty where none did."""
    if found is None:
        return ""
    within = f"within {percent(MET_WITHIN, 0)}"
    told = plural(found.measured, "measured prediction")
    return f"Of {told}, {found.met} came true {within}; median error {percent(found.median_error)}"


def _row(fix: Realized) -> AppliedRow:
    most = "up to " if fix.at_most else ""
    predicted_s = fix.step_time_s * (1 - fix.predicted_gain)
    realized = ""
    if fix.realized_step_time_s is not None and fix.realized_gain is not None:
        realized = f"{seconds(fix.realized_step_time_s)}, {percent(-fix.realized_gain)}"
    return AppliedRow(
        job=fix.job,
        title=fix.title,
        action=fix.action,
        session_url=f"/sessions/{fix.session}",
        number=fix.number,
        applied_at=fix.applied_at,
        how="seen in the metadata" if fix.applied_by is None else f"by {fix.applied_by}",
        predicted=f"{most}{seconds(predicted_s)}, {percent(-fix.predicted_gain)}",
        realized=realized,
        outcome=_outcome(fix),
        measured_url="" if fix.measured_by is None else f"/sessions/{fix.measured_by}",
        measured_number=fix.measured_number,
    )


def _outcome(fix: Realized) -> str:
    if fix.realized_gain is None:
        return "the next session measures it"
    if fix.unlike is not None:
        return f"not comparable: {fix.unlike}"
    error = fix.error
    if error is None:
        return "predicted was the most that it can bring"
    if abs(error) <= MET_WITHIN:
        return f"as predicted, off by {percent(abs(error))}"
    return f"{percent(abs(error))} {'slower' if error > 0 else 'faster'} than predicted"

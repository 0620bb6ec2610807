"""Tables of applied fixes and the plan of a whole job, on pages of sessions, jobs and incidents."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from markupsafe import Markup

from app.analysis.report.fix_outcomes import MET_WITHIN, Calibration
from app.fixes.applied import Realized
from app.plans.of_session import Remedies, WholeJob
from app.platform.database.states import PlanState
from app.web import html, moments
from app.web.format import listing, percent, plural, seconds
from app.web.links import job_url
from app.web.tables import Drawn, Shown, Table, drawn


@dataclass(frozen=True, slots=True)
class AppliedFixes:
    """The applied fixes of a session, a job or the fleet, with the accuracy of predictions."""

    rows: Sequence[Realized]
    table: Drawn
    calibration: str


def applied_fixes(
    remedies: Remedies, csv: str, now: datetime, *, unapply: bool = False
) -> AppliedFixes:
    """Return the table of applied fixes of a session or a job.

    Parameters
    ----------
    unapply : bool
        Whether the page has buttons that remove a mark.
    """

    def fix_cell(fix: Realized) -> Markup:
        session = html.element(
            "a", f"session {fix.number}", class_="note within", href=f"/sessions/{fix.session}"
        )
        return html.join((fix.title, " ", session)) + html.narrow(outcome(fix))

    def outcome_cell(fix: Realized) -> object:
        if not unapply:
            return outcome(fix)
        button = html.element(
            "button",
            "Take back",
            type="button",
            class_="link",
            data_unapply=fix.action,
            data_fix=fix.title,
            disabled=True,
        )
        return html.join((outcome(fix), " ", button))

    columns: tuple[Shown[Realized], ...] = (
        Shown("Fix", fix_cell),
        Shown(
            "Applied",
            lambda fix: moments.ago(fix.applied_at, now) + " " + html.muted(applied_how(fix)),
            classes="opt",
        ),
        Shown("Predicted", predicted, classes="num"),
        Shown("Realized", _realized, classes="num"),
        Shown("Outcome", outcome_cell, classes="opt"),
    )
    table = drawn(columns, remedies.applied, csv=csv, classes="plain applied")
    return AppliedFixes(remedies.applied, table, calibration_text(remedies.calibrations.get("")))


def fleet_fixes(remedies: Remedies, csv: str, now: datetime) -> AppliedFixes:
    """Return the table of applied fixes of all jobs."""
    columns: tuple[Shown[Realized], ...] = (
        Shown("Job", lambda fix: html.link(job_url(fix.job), fix.job), of_cells="grow"),
        Shown("Fix", lambda fix: html.link(f"/sessions/{fix.session}", fix.title, plain=True)),
        Shown("Predicted", predicted, classes="num"),
        Shown("Realized", lambda fix: _realized(fix, plain=True), classes="num"),
        Shown("Outcome", outcome, classes="opt", of_cells="muted"),
        Shown("Applied", lambda fix: moments.ago(fix.applied_at, now), classes="num opt"),
    )
    table = drawn(columns, remedies.applied, csv=csv, classes="fleet of-fixes")
    return AppliedFixes(remedies.applied, table, calibration_text(remedies.calibrations.get("")))


def applied_csv(fixes: Sequence[Realized]) -> Table:
    """Return applied fixes as a CSV table, the newest first."""
    return Table.of(Realized, fixes)


def calibration_text(calibration: Calibration | None) -> str:
    """Return the accuracy of predictions as a sentence; empty if no fix was measured."""
    if calibration is None:
        return ""
    within = f"within {percent(MET_WITHIN, 0)}"
    measured = plural(calibration.measured, "measured prediction")
    error = percent(calibration.median_error)
    return f"Of {measured}, {calibration.met} held {within}; median error {error}"


def _realized(fix: Realized, *, plain: bool = False) -> Markup:
    if fix.measured_by is None:
        return html.muted("–")
    title = "" if plain else f"Session {fix.measured_number}"
    return html.link(f"/sessions/{fix.measured_by}", realized(fix), plain=plain, title=title)


def applied_how(fix: Realized) -> str:
    """Return the source of a mark in words: a user or the metadata."""
    return "seen in the metadata" if fix.applied_by is None else f"by {fix.applied_by}"


def predicted(fix: Realized) -> str:
    """Return the predicted step time and gain in words."""
    most = "up to " if fix.at_most else ""
    step_time_s = fix.step_time_s * (1 - fix.predicted_gain)
    return f"{most}{seconds(step_time_s)}, {percent(-fix.predicted_gain)}"


def realized(fix: Realized) -> str:
    """Return the measured step time and gain in words; empty before the measurement."""
    if fix.realized_step_time_s is None or fix.realized_gain is None:
        return ""
    return f"{seconds(fix.realized_step_time_s)}, {percent(-fix.realized_gain)}"


def outcome(fix: Realized) -> str:
    """Return the accuracy of a prediction in words, or the reason why it is unknown."""
    if fix.realized_gain is None:
        return "the next session measures it"
    if fix.unlike is not None:
        return f"not comparable: {fix.unlike}"
    error = fix.error
    if error is None:
        return "the prediction was an upper bound"
    if abs(error) <= MET_WITHIN:
        return f"as predicted, off by {percent(abs(error))}"
    return f"{percent(abs(error))} {'slower' if error > 0 else 'faster'} than predicted"


_S_PER_MS: Final = 1e-3


@dataclass(frozen=True, slots=True)
class WholeJobLine:
    """The plan of a whole job as a line; `asks`: users can request a plan for `session`."""

    title: str
    note: str
    url: str
    session: uuid.UUID
    asks: bool


def whole_job_line(job: WholeJob | None) -> WholeJobLine | None:
    """Return the plan of a whole job as a line; None if the job cannot be planned."""
    if job is None or not job.answerable:
        return None
    return WholeJobLine(
        title=_title(job),
        note="Data, pipeline and tensor parallel sizes for these nodes, with layers and slow nodes "
        f"as session {job.number} measured them",
        url="" if job.plan is None else f"/plans/{job.plan}",
        session=job.session,
        asks=job.state is None or job.state.repeatable,
    )


def lacking_text(job: WholeJob | None) -> str:
    """Return the reason why a whole job cannot be planned; empty if it can be planned."""
    if job is None or job.answerable:
        return ""
    if job.unfit:
        return job.unfit
    return f"The whole job cannot be planned: the metadata lack {listing(list(job.lacking))}."


def _title(job: WholeJob) -> str:
    if job.state is None or job.state.repeatable:
        return "Other sizes for the whole job"
    if job.state is PlanState.INFEASIBLE:
        return "No sizes fit the whole job"
    if job.iteration_ms is None or not job.running_ms:
        return "The whole job is being planned"
    now_s, best_s = job.running_ms * _S_PER_MS, job.iteration_ms * _S_PER_MS
    if best_s >= now_s:
        return f"The whole job runs as well as it can: {seconds(now_s)} an iteration"
    return (
        f"Planned as a whole, the job would take {seconds(best_s)} an iteration instead of "
        f"{seconds(now_s)}, {percent(1 - best_s / now_s)} less"
    )

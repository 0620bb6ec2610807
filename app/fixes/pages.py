"""Fixes that were applied, as pages show them: predicted and realized."""

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
    """The applied fixes of a session, a job or the fleet, and how predictions fare."""

    rows: Sequence[Realized]
    table: Drawn
    calibration: str


def applied_fixes(
    found: Remedies, csv: str, now: datetime, *, unapply: bool = False
) -> AppliedFixes:
    """Return what pages show of applied fixes.

    Parameters
    ----------
    unapply : bool
        Whether the page lets a mark be removed.
    """
    table = drawn(_columns(now, unapply=unapply), found.applied, csv=csv, classes="plain applied")
    return AppliedFixes(found.applied, table, calibration_text(found.calibrations.get("")))


def fleet_fixes(found: Remedies, csv: str, now: datetime) -> AppliedFixes:
    """Return the applied fixes of all jobs."""
    table = drawn(_fleet_columns(now), found.applied, csv=csv, classes="fleet of-fixes")
    return AppliedFixes(found.applied, table, calibration_text(found.calibrations.get("")))


def applied_csv(found: Sequence[Realized]) -> Table:
    """Return applied fixes, the newest first."""
    return Table.of(Realized, found)


def calibration_text(found: Calibration | None) -> str:
    """Return how predictions turned out, in a sentence; empty where none did."""
    if found is None:
        return ""
    within = f"within {percent(MET_WITHIN, 0)}"
    told = plural(found.measured, "measured prediction")
    return f"Of {told}, {found.met} held {within}; median error {percent(found.median_error)}"


def _columns(now: datetime, *, unapply: bool) -> tuple[Shown[Realized], ...]:
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

    return (
        Shown("Fix", _fix),
        Shown(
            "Applied",
            lambda fix: moments.ago(fix.applied_at, now) + " " + html.muted(applied_how(fix)),
            classes="opt",
        ),
        Shown("Predicted", predicted, classes="num"),
        Shown("Realized", _realized, classes="num"),
        Shown("Outcome", outcome_cell, classes="opt"),
    )


def _fleet_columns(now: datetime) -> tuple[Shown[Realized], ...]:
    return (
        Shown("Job", lambda fix: html.link(job_url(fix.job), fix.job), of_cells="grow"),
        Shown("Fix", lambda fix: html.link(f"/sessions/{fix.session}", fix.title, plain=True)),
        Shown("Predicted", predicted, classes="num"),
        Shown("Realized", lambda fix: _realized(fix, plain=True), classes="num"),
        Shown("Outcome", outcome, classes="opt", of_cells="muted"),
        Shown("Applied", lambda fix: moments.ago(fix.applied_at, now), classes="num opt"),
    )


def _fix(fix: Realized) -> Markup:
    session = html.element(
        "a", f"session {fix.number}", class_="note within", href=f"/sessions/{fix.session}"
    )
    return html.join((fix.title, " ", session)) + html.narrow(outcome(fix))


def _realized(fix: Realized, *, plain: bool = False) -> Markup:
    if fix.measured_by is None:
        return html.muted("–")
    title = "" if plain else f"Session {fix.measured_number}"
    return html.link(f"/sessions/{fix.measured_by}", realized(fix), plain=plain, title=title)


def applied_how(fix: Realized) -> str:
    """Return who says that a fix was applied."""
    return "seen in the metadata" if fix.applied_by is None else f"by {fix.applied_by}"


def predicted(fix: Realized) -> str:
    """Return the step time that was predicted, and the gain."""
    most = "up to " if fix.at_most else ""
    step_time_s = fix.step_time_s * (1 - fix.predicted_gain)
    return f"{most}{seconds(step_time_s)}, {percent(-fix.predicted_gain)}"


def realized(fix: Realized) -> str:
    """Return the step time that was measured, and the gain; empty before."""
    if fix.realized_step_time_s is None or fix.realized_gain is None:
        return ""
    return f"{seconds(fix.realized_step_time_s)}, {percent(-fix.realized_gain)}"


def outcome(fix: Realized) -> str:
    """Return how a prediction turned out, or what it waits for."""
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


# ---- The plan of a session's whole job in a sentence, on pages of sessions, jobs and incidents ---


_S_PER_MS: Final = 1e-3


@dataclass(frozen=True, slots=True)
class WholeJobLine:
    """What is said of the whole job; `url` is its plan's, `session` has none to be asked for."""

    title: str
    note: str
    url: str
    session: uuid.UUID
    asks: bool


def whole_job_line(found: WholeJob | None) -> WholeJobLine | None:
    """Return what is said of the plan of a whole job; None where it cannot be planned."""
    if found is None or not found.answerable:
        return None
    return WholeJobLine(
        title=_title(found),
        note="Data, pipeline and tensor parallel sizes for these nodes, with layers and slow nodes "
        f"as session {found.number} measured them",
        url="" if found.plan is None else f"/plans/{found.plan}",
        session=found.session,
        asks=found.state is None or found.state.repeatable,
    )


def lacking_text(found: WholeJob | None) -> str:
    """Return why a whole job cannot be planned; empty where it can."""
    if found is None or found.answerable:
        return ""
    if found.unfit:
        return found.unfit
    return f"The whole job cannot be planned: the metadata lack {listing(list(found.lacking))}."


def _title(found: WholeJob) -> str:
    if found.state is None or found.state.repeatable:
        return "Other sizes for the whole job"
    if found.state is PlanState.INFEASIBLE:
        return "No sizes fit the whole job"
    if found.iteration_ms is None or not found.running_ms:
        return "The whole job is being planned"
    now_s, best_s = found.running_ms * _S_PER_MS, found.iteration_ms * _S_PER_MS
    if best_s >= now_s:
        return f"The whole job runs as well as it can: {seconds(now_s)} an iteration"
    return (
        f"Planned as a whole, the job would take {seconds(best_s)} an iteration instead of "
        f"{seconds(now_s)}, {percent(1 - best_s / now_s)} less"
    )

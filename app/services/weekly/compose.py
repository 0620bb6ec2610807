"""The words of a week's summary: what a lead would forward."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from app.alerts.channels.note import Note, Section
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.realized import MET_WITHIN, prediction_error
from app.analysis.wording import hours, percent

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from app.services.fleet_report.costs import LabelCost
    from app.services.fleet_report.read import FixLine, FleetReport

WEEK: Final = timedelta(days=7)
# Of jobs, causes, hosts and fixes each: who wants more opens the report.
NAMED: Final = 5


def compose(
    report: FleetReport, *, note_id: uuid.UUID, at: datetime, base_url: str, receiver: str
) -> Note:
    """Return the summary of a report.

    Parameters
    ----------
    at : datetime
        When it is made.
    base_url : str
        Of the dashboard; ends with a slash.
    """
    times = {"from": _written(report.since), "to": _written(report.until)}
    sections = (
        Section("Cost", tuple(_cost(report))),
        Section("Jobs that lost most", tuple(_jobs(report))),
        Section("Causes", tuple(_causes(report))),
        Section("Teams", tuple(_labels(report.spent.teams))),
        Section("Owners", tuple(_labels(report.spent.owners))),
        Section("Hosts slow more than once", tuple(_hosts(report))),
        Section(
            "Incidents",
            (f"{report.opened} opened, {report.resolved} resolved",),
        ),
        Section("Fixes: promised and realized", tuple(_fixes(report))),
        Section("Coverage", tuple(_coverage(report))),
    )
    return Note(
        id=note_id,
        at=at,
        title=_title(report),
        sections=tuple(section for section in sections if section.lines),
        link=f"{base_url}report?{urlencode(times)}",
        receiver=receiver,
    )


def _title(report: FleetReport) -> str:
    days = f"{_day(report.since)} to {_day(report.until)}"
    if not report.costs.sessions:
        return f"Paceline, {days}: no session has a verdict"
    return (
        f"Paceline, {days}: stragglers cost {hours(report.costs.lost)} GPU-hours, "
        f"{percent(report.costs.share)} of the fleet"
    )


def _cost(report: FleetReport) -> list[str]:
    costs, before = report.costs, report.before
    if not costs.sessions:
        return []
    lines = [
        f"{hours(costs.lost)} of {hours(costs.used)} GPU-hours lost, {percent(costs.share)}",
    ]
    if before.sessions:
        word = "up" if costs.share > before.share else "down"
        trend = (
            f"{word} from {percent(before.share)}"
            if percent(costs.share) != percent(before.share)
            else "as in"
        )
        lines.append(f"{trend} the week before ({hours(before.lost)} GPU-hours)")
    lines.append(
        f"{report.spent.straggling} of {report.spent.measured} jobs straggle "
        f"(S from {STRAGGLING} on)"
    )
    return lines


def _jobs(report: FleetReport) -> list[str]:
    return [
        f"{job.job}: {hours(job.lost)} GPU-hours, {percent(job.lost / job.used)} of its own"
        for job in report.spent.jobs[:NAMED]
        if job.lost > 0 and job.used
    ]


def _causes(report: FleetReport) -> list[str]:
    lost = report.costs.lost
    if not lost:
        return []
    lines = [
        f"{title_of(cause.cause)}: {hours(cause.lost)} GPU-hours, {percent(cause.lost / lost, 0)}"
        f" of it, {cause.jobs} {'job' if cause.jobs == 1 else 'jobs'}"
        for cause in report.spent.causes[:NAMED]
    ]
    if report.unexplained > 0:
        lines.append(f"Unexplained: {hours(report.unexplained)} GPU-hours")
    return lines


def _labels(costs: Sequence[LabelCost]) -> list[str]:
    """Return what the most expensive teams or owners lost; nothing where no job names one."""
    named = [one for one in costs if one.name is not None]
    return [
        f"{one.name}: {hours(one.lost)} GPU-hours, {percent(one.lost / one.used)} of its own"
        for one in named[:NAMED]
        if one.lost > 0 and one.used
    ]


def _hosts(report: FleetReport) -> list[str]:
    return [
        f"{host.called}: {hours(host.lost)} GPU-hours, {host.sessions} sessions"
        for host in report.spent.hosts[:NAMED]
    ]


def _fixes(report: FleetReport) -> list[str]:
    return [_fix(fix) for fix in report.fixes[:NAMED]]


def _fix(fix: FixLine) -> str:
    most = "at most " if fix.at_most else ""
    text = f"{fix.job}, {fix.title}: promised {most}{percent(fix.predicted)} less time a step, "
    if fix.unlike is not None:
        return f"{text}not comparable: {fix.unlike}"
    error = prediction_error(fix.predicted, fix.realized)
    verdict = "as promised" if abs(error) <= MET_WITHIN else "not as promised"
    return f"{text}realized {percent(fix.realized)}: {verdict}"


def _coverage(report: FleetReport) -> list[str]:
    found = report.coverage
    lines = [
        (
            f"{found.counted} of {found.received} sessions and {found.counted_jobs} of "
            f"{found.jobs} jobs have a verdict and count"
        )
    ]
    if found.silent:
        jobs = "1 job was" if found.silent == 1 else f"{found.silent} jobs were"
        lines.append(f"{jobs} silent all week")
    return lines


def _day(at: datetime) -> str:
    at = at.astimezone(UTC)
    return f"{at.day} {at:%b}"


def _written(at: datetime) -> str:
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='minutes')}Z"

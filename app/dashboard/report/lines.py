"""The tables of the fleet's report, each with a title that states its finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.report.realized import MET_WITHIN, prediction_error
from app.analysis.wording import hours
from app.dashboard.ui.address import Address
from app.dashboard.ui.format import count, percent, plural, rough_percent
from app.dashboard.ui.places import host_url
from app.services.fleet_report.costs import NAMED

if TYPE_CHECKING:
    from app.services.fleet_report.costs import LabelCost
    from app.services.fleet_report.read import FixLine, FleetReport


@dataclass(frozen=True, slots=True)
class BarLine:
    """A line of a table with a bar; the longest bar is 100."""

    name: str
    url: str
    bar: float
    cost: str
    share: str
    note: str
    plain: bool = False


@dataclass(frozen=True, slots=True)
class LabelTable:
    """What the jobs of teams or owners cost."""

    title: str
    lines: Sequence[BarLine]


@dataclass(frozen=True, slots=True)
class FixView:
    """A fix that was measured."""

    title: str
    job: str
    url: str
    predicted: str
    realized: str
    met: bool
    saved: str


def causes_title(report: FleetReport) -> str:
    """Return which cause costs most."""
    if not report.spent.causes or not report.costs.lost:
        return "No cause was named"
    first = report.spent.causes[0]
    share = min(1.0, first.lost / report.costs.lost)
    return f"{title_of(first.cause)} costs {rough_percent(share)} of what is lost"


def cause_lines(report: FleetReport) -> list[BarLine]:
    """Return what each cause cost."""
    lost = report.costs.lost
    rows = [(title_of(cause.cause), cause.lost, cause.jobs, False) for cause in report.spent.causes]
    if lost:
        rows.append(("Unexplained", report.unexplained, report.costs.jobs, True))
    most = max((row[1] for row in rows), default=0.0) or 1.0
    return [
        BarLine(
            name,
            "",
            100 * cost / most,
            hours(cost),
            rough_percent(cost / lost) if lost else "",
            count(jobs),
            plain,
        )
        for name, cost, jobs, plain in rows
    ]


def jobs_title(report: FleetReport) -> str:
    """Return which job lost the most."""
    if not report.spent.jobs or not report.costs.lost:
        return "No job lost anything"
    first = report.spent.jobs[0]
    share = first.lost / report.costs.lost
    return f"{first.job} lost the most: {rough_percent(share)} of all that is lost"


def job_lines(report: FleetReport) -> list[BarLine]:
    """Return what the most expensive jobs lost."""
    most = max((job.lost for job in report.spent.jobs), default=0.0) or 1.0
    return [
        BarLine(
            job.job,
            f"/jobs/{quote(job.job)}",
            100 * job.lost / most,
            hours(job.lost),
            rough_percent(job.lost / job.used) if job.used else "",
            count(job.sessions),
        )
        for job in report.spent.jobs
    ]


def label_table(name: str, costs: Sequence[LabelCost], address: Address) -> LabelTable:
    """Return what teams or owners cost: the first ten, and the others together."""
    used, lost = sum(one.used for one in costs), sum(one.lost for one in costs)
    named = [one for one in costs if one.name is not None]
    most = max((one.lost for one in costs), default=0.0) or 1.0
    lines = [
        BarLine(
            one.name or f"no {name}",
            address.but(**{name: one.name}) if one.name else "",
            100 * one.lost / most,
            hours(one.lost),
            rough_percent(one.lost / one.used) if one.used else "",
            count(one.jobs),
            plain=one.name is None,
        )
        for one in costs[:NAMED]
    ]
    if others := costs[NAMED:]:
        cost, of = sum(one.lost for one in others), sum(one.used for one in others)
        lines.append(
            BarLine(
                plural(len(others), f"other {name}"),
                "",
                100 * min(1.0, cost / most),
                hours(cost),
                rough_percent(cost / of) if of else "",
                count(sum(one.jobs for one in others)),
                plain=True,
            )
        )
    if not named:
        title = f"No job names its {name}"
    elif not lost or not used:
        title = f"No {name} lost anything"
    else:
        first = named[0]
        title = f"{first.name} lost the most of all {name}s, {rough_percent(first.lost / lost)}"
    return LabelTable(title, lines if named else [])


def hosts_title(report: FleetReport) -> str:
    """Return how many hosts were slow more than once."""
    hosts = report.spent.hosts
    if not hosts:
        return "No host was slow more than once"
    total = hours(sum(host.lost for host in hosts))
    if len(hosts) == 1:
        return f"{hosts[0].called} alone was slow more than once"
    return f"{plural(len(hosts), 'host')} that were slow more than once cost {total} GPU-hours"


def host_lines(report: FleetReport) -> list[BarLine]:
    """Return what these hosts cost."""
    return [
        BarLine(
            host.called,
            host_url(host.host),
            0.0,
            hours(host.lost),
            count(host.jobs),
            count(host.sessions),
        )
        for host in report.spent.hosts
    ]


def has_met(fix: FixLine) -> bool:
    """Return whether a fix reached the predicted gain; of one that is at most so, no less."""
    error = prediction_error(fix.predicted, fix.realized)
    return error <= MET_WITHIN if fix.at_most else abs(error) <= MET_WITHIN


def fixes_title(fixes: Sequence[FixLine]) -> str:
    """Return how many fixes brought what was predicted."""
    measured = [fix for fix in fixes if fix.unlike is None]
    if not measured:
        return "No fix was measured"
    met = sum(has_met(fix) for fix in measured)
    return f"{count(met)} of {plural(len(measured), 'fix', 'fixes')} reached the predicted gain"


def fix_view(fix: FixLine) -> FixView:
    """Return a fix with what it brought."""
    saved = fix.gpus * fix.realized / (1 - fix.realized) if fix.realized < 1 else 0.0
    return FixView(
        title=fix.title,
        job=fix.job,
        url=f"/compare?a={fix.session}&b={fix.measured_by}",
        predicted=f"{'up to ' if fix.at_most else ''}{_change(fix.predicted)}",
        realized="not comparable" if fix.unlike else _change(fix.realized),
        met=fix.unlike is None and has_met(fix),
        saved="" if fix.unlike else f"{hours(max(0.0, saved))}",
    )


def _change(gain: float) -> str:
    return percent(-gain) if gain > 0 else f"+{percent(-gain)}" if gain < 0 else percent(0.0)

"""What the page of the fleet's report shows: what stragglers cost, why, and the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from markupsafe import Markup

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.fleet.statistics import PAPER_WASTED
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.realized import MET_WITHIN, prediction_error
from app.analysis.wording import hours
from app.dashboard.report.finding import (
    ENDS,
    AgainstView,
    FigureView,
    against_view,
    figure_view,
)
from app.dashboard.report.plot import Plot, Scale, over_time, upper
from app.dashboard.ui.address import Address
from app.dashboard.ui.format import (
    count,
    listing,
    percent,
    plural,
    rough_percent,
)
from app.dashboard.ui.moments import Form, When, span
from app.dashboard.ui.parts import STATES, Fact
from app.dashboard.ui.places import host_url
from app.dashboard.ui.ranges import Range, RangeChoices, range_choices
from app.services.fleet_report.curves import against_context, against_gpus, figures

if TYPE_CHECKING:
    from app.services.fleet_report.costs import Period
    from app.services.fleet_report.read import Coverage, FixLine, FleetReport

# Periods with and without the same words of a share: less is no trend.
CHANGED: Final = 0.0005
_DAY: Final = timedelta(days=1)


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
class FixView:
    """A fix that was measured."""

    title: str
    job: str
    url: str
    predicted: str
    realized: str
    met: bool
    saved: str


@dataclass(frozen=True, slots=True)
class ReportPage:
    """The page."""

    now: datetime
    title: str
    heading: str
    when: Markup
    counted: str
    uncounted: str
    range: RangeChoices
    earlier_url: str
    later_url: str
    facts: Sequence[Fact]
    causes_title: str
    causes: Sequence[BarLine]
    jobs_title: str
    jobs: Sequence[BarLine]
    figures: Sequence[FigureView]
    trend_title: str
    trend_note: str
    trend: Plot
    hosts_title: str
    hosts: Sequence[BarLine]
    fixes_title: str
    fixes: Sequence[FixView]
    sizes: Sequence[AgainstView]
    query: str


def report_page(report: FleetReport, about: Range, address: Address) -> ReportPage:
    """Return the page."""
    costs = report.costs
    query = Address("", address.parameters).but()
    return ReportPage(
        now=report.now,
        title=f"Report: {rough_percent(costs.share)} lost" if costs.used else "Report",
        heading=_heading(report, about),
        when=span(report.since, report.until),
        counted=_counted(report.coverage),
        uncounted=_uncounted(report.coverage),
        range=range_choices(about),
        earlier_url=_neighbor(report, address, -1),
        later_url=_neighbor(report, address, 1) if report.until < report.now else "",
        facts=_facts(report),
        causes_title=_causes_title(report),
        causes=_causes(report),
        jobs_title=_jobs_title(report),
        jobs=_jobs(report),
        figures=[figure_view(figure) for figure in figures(report.jobs)],
        trend_title=_trend_title(report.trend),
        trend_note=f"Share of GPU-hours lost, of {_length(report.until - report.since)} each; "
        "from 0",
        trend=_trend(report.trend, report.now),
        hosts_title=_hosts_title(report),
        hosts=_hosts(report),
        fixes_title=_fixes_title(report.fixes),
        fixes=[_fix(fix) for fix in report.fixes],
        sizes=[
            against_view(against_gpus(report.jobs), "GPUs", "Larger jobs", "Jobs"),
            against_view(
                against_context(report.jobs),
                "tokens",
                "Jobs with longer sequences",
                "Jobs whose metadata have seq_length or sequence_lengths",
            ),
        ],
        query=query,
    )


def _length(width: timedelta) -> str:
    if width >= 2 * _DAY:
        return plural(round(width / _DAY), "day")
    return plural(max(1, round(width / timedelta(hours=1))), "hour")


def _heading(report: FleetReport, about: Range) -> str:
    costs, coverage = report.costs, report.coverage
    if not coverage.received:
        return f"No session was received in {about.words}"
    if not costs.sessions:
        return f"None of {plural(coverage.received, 'session')} in {about.words} has a verdict"
    text = (
        f"Stragglers cost {hours(costs.lost)} GPU-hours in {about.words}, "
        f"{rough_percent(costs.share)} of the fleet"
    )
    if not report.causes or not costs.lost:
        return text
    first = report.causes[0]
    return f"{text}; {title_of(first.cause).lower()} leads"


def _counted(coverage: Coverage) -> str:
    return (
        f"{count(coverage.counted_jobs)} of {plural(coverage.jobs, 'job')} and "
        f"{count(coverage.counted)} of {plural(coverage.received, 'session')} count"
    )


def _uncounted(coverage: Coverage) -> str:
    """Return what does not count, and why."""
    parts = [
        f"{count(number)} {STATES[state].word.lower()}"
        for state, number in sorted(
            coverage.without.items(), key=lambda item: (-item[1], item[0].value)
        )
        if state in STATES
    ]
    if coverage.silent:
        jobs = "1 job is" if coverage.silent == 1 else f"{count(coverage.silent)} jobs are"
        parts.append(f"{jobs} silent")
    return f"not counted: {listing(parts)}" if parts else ""


def _facts(report: FleetReport) -> list[Fact]:
    costs, before = report.costs, report.before
    was = "no verdict in the time before"
    straggling = len(report.straggling)
    measured = [fix for fix in report.fixes if fix.unlike is None]
    met = sum(_met(fix) for fix in measured)
    return [
        Fact(
            "GPU-hours used",
            hours(costs.used),
            f"{hours(before.used)} the time before" if before.sessions else was,
            "While a verdict stood: until its job’s next session, at most 6 h",
        ),
        Fact(
            "Lost",
            hours(costs.lost),
            f"{hours(before.lost)} the time before" if before.sessions else was,
            "Against each job without its causes, else by S",
        ),
        Fact(
            "Waste",
            rough_percent(costs.share),
            f"{rough_percent(before.share)} the time before; paper {rough_percent(PAPER_WASTED)}"
            if before.sessions
            else f"paper {rough_percent(PAPER_WASTED)}",
        ),
        Fact(
            "Straggling jobs",
            f"{count(straggling)} of {count(len(report.jobs))}",
            f"S from {STRAGGLING} on in their median session",
        ),
        Fact(
            "Incidents",
            f"{count(report.opened)} opened",
            f"{count(report.resolved)} resolved",
        ),
        Fact(
            "Fixes as predicted",
            f"{count(met)} of {count(len(measured))}" if measured else "none",
            f"within {percent(MET_WITHIN, 0)} of the predicted step time"
            if measured
            else "none was measured in this time",
        ),
    ]


def _neighbor(report: FleetReport, address: Address, way: int) -> str:
    """Return the address of the time of the same length before or after."""
    move = way * (report.until - report.since)
    since, until = report.since + move, report.until + move
    return Address(address.path, {}).but(**{"from": _written(since), "to": _written(until)})


def _written(moment: datetime) -> str:
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='minutes')}Z"


def _causes_title(report: FleetReport) -> str:
    if not report.causes or not report.costs.lost:
        return "No cause was named"
    first = report.causes[0]
    share = min(1.0, first.lost / report.costs.lost)
    return f"{title_of(first.cause)} costs {rough_percent(share)} of what is lost"


def _causes(report: FleetReport) -> list[BarLine]:
    lost = report.costs.lost
    rows = [(title_of(cause.cause), cause.lost, cause.jobs, False) for cause in report.causes]
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


def _jobs_title(report: FleetReport) -> str:
    if not report.most_expensive or not report.costs.lost:
        return "No job lost anything"
    first = report.most_expensive[0]
    share = first.lost / report.costs.lost
    return f"{first.job} lost the most, {rough_percent(share)} of it"


def _jobs(report: FleetReport) -> list[BarLine]:
    most = max((job.lost for job in report.most_expensive), default=0.0) or 1.0
    return [
        BarLine(
            job.job,
            f"/jobs/{quote(job.job)}",
            100 * job.lost / most,
            hours(job.lost),
            rough_percent(job.lost / job.used) if job.used else "",
            count(job.sessions),
        )
        for job in report.most_expensive
    ]


def _hosts_title(report: FleetReport) -> str:
    if not report.hosts:
        return "No host was slow more than once"
    total = sum(host.lost for host in report.hosts)
    if len(report.hosts) == 1:
        return f"{report.hosts[0].host} alone was slow more than once"
    return f"{plural(len(report.hosts), 'host')} slow more than once cost {hours(total)} GPU-hours"


def _hosts(report: FleetReport) -> list[BarLine]:
    return [
        BarLine(
            host.host,
            host_url(host.host),
            0.0,
            hours(host.lost),
            count(host.jobs),
            count(host.sessions),
        )
        for host in report.hosts
    ]


def _met(fix: FixLine) -> bool:
    """Return whether a fix reached the predicted gain; of one that is at most so, no less."""
    error = prediction_error(fix.predicted, fix.realized)
    return error <= MET_WITHIN if fix.at_most else abs(error) <= MET_WITHIN


def _fixes_title(fixes: Sequence[FixLine]) -> str:
    measured = [fix for fix in fixes if fix.unlike is None]
    if not measured:
        return "No fix was measured"
    met = sum(_met(fix) for fix in measured)
    return f"{count(met)} of {plural(len(measured), 'fix', 'fixes')} reached the predicted gain"


def _fix(fix: FixLine) -> FixView:
    saved = fix.gpus * fix.realized / (1 - fix.realized) if fix.realized < 1 else 0.0
    return FixView(
        title=fix.title,
        job=fix.job,
        url=f"/compare?a={fix.session}&b={fix.measured_by}",
        predicted=f"{'up to ' if fix.at_most else ''}{_change(fix.predicted)}",
        realized="not comparable" if fix.unlike else _change(fix.realized),
        met=fix.unlike is None and _met(fix),
        saved="" if fix.unlike else f"{hours(max(0.0, saved))}",
    )


def _change(gain: float) -> str:
    return percent(-gain) if gain > 0 else f"+{percent(-gain)}" if gain < 0 else percent(0.0)


def _trend_title(trend: Sequence[Period]) -> str:
    known = [period.costs.share for period in trend if period.costs.sessions]
    if len(known) < 2:  # noqa: PLR2004 - of one there is no trend
        return "There is no earlier time to compare with"
    first, last = known[0], known[-1]
    if abs(last - first) < CHANGED:
        return f"Waste stayed at {rough_percent(last)}"
    verb = "fell" if last < first else "rose"
    return f"Waste {verb} from {rough_percent(first)} to {rough_percent(last)}"


def _trend(trend: Sequence[Period], now: datetime) -> Plot:
    shares = [period.costs.share if period.costs.sessions else None for period in trend]
    end = upper([share for share in shares if share is not None], ENDS)
    ticks = [(end * part / 4, percent(end * part / 4, 0 if end > 0.1 else 1)) for part in range(5)]  # noqa: PLR2004 - so that no label repeats
    days = trend[-1].until - trend[-1].since >= _DAY
    form = Form.DAY if days else Form.SHORT
    last = shares[-1]
    return over_time(
        [
            (share, When(period.until, form, now, bare=True))
            for share, period in zip(shares, trend, strict=True)
        ],
        Scale(0, end, ticks),
        "until",
        "" if last is None else rough_percent(last),
    )

"""What the page of the fleet's report shows: what stragglers cost, why, and the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.fleet.statistics import PAPER_WASTED
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.realized import MET_WITHIN
from app.analysis.wording import hours
from app.dashboard.report.finding import ENDS
from app.dashboard.report.lines import (
    BarLine,
    FixView,
    LabelTable,
    cause_lines,
    causes_title,
    fix_view,
    fixes_title,
    has_met,
    host_lines,
    hosts_title,
    job_lines,
    jobs_title,
    label_table,
)
from app.dashboard.report.plot import Plot, Scale, over_time, upper
from app.dashboard.report.query import LabelChoices, label_choices
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
from app.dashboard.ui.ranges import DAY, Range, RangeChoices, range_choices

if TYPE_CHECKING:
    from app.services.fleet_report.costs import Period
    from app.services.fleet_report.read import Coverage, FleetReport

# Periods with and without the same words of a share: less is no trend.
CHANGED: Final = 0.0005
_DAY: Final = timedelta(days=1)


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
    teams: LabelTable
    owners: LabelTable
    filters: Sequence[LabelChoices]
    kept: Sequence[tuple[str, str]]
    cleared_url: str
    figures_url: str
    trend_title: str
    trend_note: str
    trend: Plot
    hosts_title: str
    hosts: Sequence[BarLine]
    fixes_title: str
    fixes: Sequence[FixView]
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
        causes_title=causes_title(report),
        causes=cause_lines(report),
        jobs_title=jobs_title(report),
        jobs=job_lines(report),
        teams=label_table("team", report.spent.teams, address),
        owners=label_table("owner", report.spent.owners, address),
        filters=[
            label_choices("team", report.filters.team, report.spent.teams),
            label_choices("owner", report.filters.owner, report.spent.owners),
        ],
        kept=[
            (name, value)
            for name, value in address.parameters.items()
            if value and name not in ("team", "owner")
        ],
        cleared_url=address.but(team=None, owner=None, label=None) if report.filters.asked else "",
        figures_url=_figures_url(report, about),
        trend_title=_trend_title(report.spent.trend),
        trend_note=f"Share of the GPU-hours that was lost, in each "
        f"{_length(report.until - report.since)}; the axis begins at 0",
        trend=_trend(report.spent.trend, report.now),
        hosts_title=hosts_title(report),
        hosts=host_lines(report),
        fixes_title=fixes_title(report.fixes),
        fixes=[fix_view(fix) for fix in report.fixes],
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
    asked = report.filters
    whose = " and ".join(
        words
        for words in (
            asked.team and f"team {asked.team}",
            asked.owner and f"owner {asked.owner}",
            asked.label and f"label {asked.label}",
        )
        if words
    )
    text = (
        f"Stragglers cost {f'{whose} ' if whose else ''}{hours(costs.lost)} GPU-hours "
        f"in {about.words}, {rough_percent(costs.share)} of {'its hours' if whose else 'the fleet'}"
    )
    if not report.spent.causes or not costs.lost:
        return text
    first = report.spent.causes[0]
    return f"{text}; {title_of(first.cause).lower()} costs the most"


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
    straggling = report.spent.straggling
    measured = [fix for fix in report.fixes if fix.unlike is None]
    met = sum(has_met(fix) for fix in measured)
    return [
        Fact(
            "GPU-hours used",
            hours(costs.used),
            f"{hours(before.used)} in the time before" if before.sessions else was,
            "While a verdict stood: until its job’s next session, at most 6 h",
        ),
        Fact(
            "Lost",
            hours(costs.lost),
            f"{hours(before.lost)} in the time before" if before.sessions else was,
            "Against each job without its causes, else by S",
        ),
        Fact(
            "Waste",
            rough_percent(costs.share),
            f"{rough_percent(before.share)} in the time before; "
            f"{rough_percent(PAPER_WASTED)} in the paper"
            if before.sessions
            else f"{rough_percent(PAPER_WASTED)} in the paper",
        ),
        Fact(
            "Straggling jobs",
            f"{count(straggling)} of {count(report.spent.measured)}",
            f"S of {STRAGGLING} or more in their median session",
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
    moved = {"range": None, "from": _written(since), "to": _written(until)}
    return address.but(**moved)


def _written(moment: datetime) -> str:
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='minutes')}Z"


def _figures_url(report: FleetReport, about: Range) -> str:
    """Return where the figures of the paper are, of the same time and sessions."""
    asked = {"owner": report.filters.owner, "team": report.filters.team}
    return Address("/", {"tab": "figures", **about.parameters(DAY), **asked}).but()


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

"""Page of the fleet's report: costs of stragglers by cause, job, team, owner and host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import Depends
from markupsafe import Markup

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.fleet import PAPER_WASTED
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.fix_outcomes import MET_WITHIN, prediction_error
from app.analysis.wording import hours
from app.jobs.fleet_costs import NAMED, LabelCost, Period, ReportFilter
from app.jobs.fleet_report import Coverage, FixLine, FleetReport
from app.jobs.pages.report_findings import ENDS, Plot, Scale, over_time, upper
from app.web.format import count, listing, percent, plural, rough_percent
from app.web.forms import Choice
from app.web.links import Address, QueryText, asked_for, host_url
from app.web.moments import Form, When, span
from app.web.parts import STATES, Fact
from app.web.time_ranges import DAY, Range, RangeChoices, range_choices, utc_minutes

# Largest number of characters of a label; longer labels are cut.
MAX_CHARACTERS: Final = 200


class ReportQuery:
    """Filter of a report as address parameters: team, owner and label of the sessions."""

    def __init__(self, team: QueryText = "", owner: QueryText = "", label: QueryText = "") -> None:
        # PostgreSQL cannot store NUL, so no row contains it.
        self.filters = ReportFilter(
            *(text.replace("\x00", "")[:MAX_CHARACTERS].strip() for text in (team, owner, label))
        )

    @property
    def parameters(self) -> Mapping[str, str]:
        """Return the filter as parameters of an address."""
        filters = self.filters
        return {"team": filters.team, "owner": filters.owner, "label": filters.label}


ReportQueryParam = Annotated[ReportQuery, Depends(asked_for(ReportQuery))]


@dataclass(frozen=True, slots=True)
class LabelChoices:
    """Values of a label to filter by; `label` is the text of the choice without a filter."""

    name: str
    label: str
    choices: Sequence[Choice]


def label_choices(name: str, chosen: str, costs: Sequence[LabelCost]) -> LabelChoices:
    """Return the teams or owners of a report, and the chosen one even if it has no sessions."""
    values = sorted({*(cost.name or "" for cost in costs), chosen} - {""}, key=str.lower)
    return LabelChoices(
        name, f"Any {name}", [Choice(value, value, value == chosen) for value in values]
    )


@dataclass(frozen=True, slots=True)
class BarLine:
    """A table line with a bar; the longest bar has the length 100."""

    name: str
    url: str
    bar: float
    cost: str
    share: str
    note: str
    plain: bool = False


@dataclass(frozen=True, slots=True)
class LabelTable:
    """The table of teams or owners."""

    title: str
    lines: Sequence[BarLine]


@dataclass(frozen=True, slots=True)
class FixView:
    """A fix with its measured effect, as a line of the page."""

    title: str
    job: str
    url: str
    predicted: str
    realized: str
    met: bool
    saved: str


def causes_title(report: FleetReport) -> str:
    """Return the title of the table of causes, which names the most expensive cause."""
    if not report.spent.causes or not report.costs.lost:
        return "No cause was named"
    first = report.spent.causes[0]
    share = min(1.0, first.lost / report.costs.lost)
    return f"{title_of(first.cause)} costs {rough_percent(share)} of what is lost"


def cause_lines(report: FleetReport) -> list[BarLine]:
    """Return the lines of the causes and of the unexplained rest, sorted by cost."""
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
    """Return the title of the table of jobs, which names the job with the largest loss."""
    if not report.spent.jobs or not report.costs.lost:
        return "No job lost anything"
    first = report.spent.jobs[0]
    share = first.lost / report.costs.lost
    return f"{first.job} lost the most: {rough_percent(share)} of all that is lost"


def job_lines(report: FleetReport) -> list[BarLine]:
    """Return the lines of the jobs with the largest losses."""
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
    """Return the table of teams or owners: ten lines, and one line for all others."""
    used, lost = sum(cost.used for cost in costs), sum(cost.lost for cost in costs)
    named = [cost for cost in costs if cost.name is not None]
    most = max((cost.lost for cost in costs), default=0.0) or 1.0
    lines = [
        BarLine(
            cost.name or f"no {name}",
            address.but(**{name: cost.name}) if cost.name else "",
            100 * cost.lost / most,
            hours(cost.lost),
            rough_percent(cost.lost / cost.used) if cost.used else "",
            count(cost.jobs),
            plain=cost.name is None,
        )
        for cost in costs[:NAMED]
    ]
    if others := costs[NAMED:]:
        lost_by_others = sum(cost.lost for cost in others)
        used_by_others = sum(cost.used for cost in others)
        lines.append(
            BarLine(
                plural(len(others), f"other {name}"),
                "",
                100 * min(1.0, lost_by_others / most),
                hours(lost_by_others),
                rough_percent(lost_by_others / used_by_others) if used_by_others else "",
                count(sum(cost.jobs for cost in others)),
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
    """Return the title of the table of hosts: number of repeatedly slow hosts, and their cost."""
    hosts = report.spent.hosts
    if not hosts:
        return "No host was slow more than once"
    total = hours(sum(host.lost for host in hosts))
    if len(hosts) == 1:
        return f"{hosts[0].called} alone was slow more than once"
    return f"{plural(len(hosts), 'host')} that were slow more than once cost {total} GPU-hours"


def host_lines(report: FleetReport) -> list[BarLine]:
    """Return the lines of the hosts that were slow in more than one session."""
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
    """Return whether a fix's gain is as predicted; it may be below a predicted upper bound."""
    error = prediction_error(fix.predicted, fix.realized)
    return error <= MET_WITHIN if fix.at_most else abs(error) <= MET_WITHIN


def fixes_title(fixes: Sequence[FixLine]) -> str:
    """Return the title of the table of fixes: how many reached the predicted gain."""
    measured = [fix for fix in fixes if fix.unlike is None]
    if not measured:
        return "No fix was measured"
    met = sum(has_met(fix) for fix in measured)
    return f"{count(met)} of {plural(len(measured), 'fix', 'fixes')} reached the predicted gain"


def fix_view(fix: FixLine) -> FixView:
    """Return the line of a fix with its predicted and realized gain."""
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


# Least change of the wasted share between two periods that counts as a trend; both shares of a
# smaller change are written as the same per cent.
CHANGED: Final = 0.0005
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ReportPage:
    """The page of the fleet's report."""

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
    """Return the page of the fleet's report."""
    costs, coverage = report.costs, report.coverage
    query = Address("", address.parameters).but()
    groups = {"owner": report.filters.owner, "team": report.filters.team}
    return ReportPage(
        now=report.now,
        title=f"Report: {rough_percent(costs.share)} lost" if costs.used else "Report",
        heading=_heading(report, about),
        when=span(report.since, report.until),
        counted=(
            f"{count(coverage.counted_jobs)} of {plural(coverage.jobs, 'job')} and "
            f"{count(coverage.counted)} of {plural(coverage.received, 'session')} count"
        ),
        uncounted=_uncounted(coverage),
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
        figures_url=Address("/", {"tab": "figures", **about.parameters(DAY), **groups}).but(),
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
    filters = report.filters
    whose = " and ".join(
        words
        for words in (
            filters.team and f"team {filters.team}",
            filters.owner and f"owner {filters.owner}",
            filters.label and f"label {filters.label}",
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


def _uncounted(coverage: Coverage) -> str:
    """Return a text on the sessions and jobs without a verdict, by state; "" if there are none."""
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
    """Return the address of the report for the previous (-1) or next (1) period."""
    move = way * (report.until - report.since)
    since, until = report.since + move, report.until + move
    return address.but(range=None, **{"from": utc_minutes(since), "to": utc_minutes(until)})


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

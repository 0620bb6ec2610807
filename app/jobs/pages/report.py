"""Page of the fleet's report: costs of stragglers by cause, job, team, owner and host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import Depends
from markupsafe import Markup

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.fleet import PAPER_WASTED
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.fix_outcomes import MET_WITHIN
from app.analysis.wording import hours
from app.jobs.fleet_costs import NAMED, HostCost, LabelCost, Period, ReportFilter
from app.jobs.fleet_report import Coverage, FixLine, FleetReport
from app.jobs.pages.report_findings import ENDS, Plot, Scale, over_time, upper
from app.web import html
from app.web.format import count, listing, percent, plural, rough_percent
from app.web.forms import Choice
from app.web.links import Address, QueryText, asked_for, host_url, job_url
from app.web.moments import Form, When, span
from app.web.parts import STATES, Fact
from app.web.tables import Drawn, Shown, drawn
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
    """A line with the GPU-hours lost, as a bar and as a share of the GPU-hours used."""

    name: str
    lost: float
    used: float
    number: int  # of jobs or sessions
    url: str = ""
    plain: bool = False  # whether the bar has a quiet color


def bar_table(
    headings: tuple[str, str, str], lines: Sequence[BarLine], most: float, csv: str
) -> Drawn:
    """Return a table of losses; a bar of full length means the loss `most`."""
    name, share, number = headings
    return drawn(
        (
            Shown(name, lambda line: html.link(line.url, line.name) if line.url else line.name),
            Shown(
                "GPU-hours",
                lambda line: html.bar(
                    100 * min(1.0, line.lost / (most or 1.0)), "plain" if line.plain else ""
                ),
                classes="b",
            ),
            Shown(
                html.element("span", "Lost", class_="vh"),
                lambda line: hours(line.lost),
                classes="num",
            ),
            Shown(
                share,
                lambda line: rough_percent(line.lost / line.used) if line.used else "",
                classes="num",
            ),
            Shown(number, lambda line: count(line.number), classes="num opt"),
        ),
        lines,
        csv=csv,
        classes="plain bars",
    )


def causes_title(report: FleetReport) -> str:
    """Return the title of the table of causes, which names the most expensive cause."""
    if not report.spent.causes or not report.costs.lost:
        return "No cause was named"
    first = report.spent.causes[0]
    share = min(1.0, first.lost / report.costs.lost)
    return f"{title_of(first.cause)} costs {rough_percent(share)} of what is lost"


def causes_table(report: FleetReport, csv: str) -> Drawn:
    """Return the table of the causes and of the unexplained rest, sorted by cost."""
    lost = report.costs.lost
    lines = [
        BarLine(title_of(cause.cause), cause.lost, lost, cause.jobs)
        for cause in report.spent.causes
    ]
    if lost:
        lines.append(
            BarLine("Unexplained", report.unexplained, lost, report.costs.jobs, plain=True)
        )
    most = max((line.lost for line in lines), default=0.0)
    return bar_table(("Cause", "Share", "Jobs"), lines, most, csv)


def jobs_title(report: FleetReport) -> str:
    """Return the title of the table of jobs, which names the job with the largest loss."""
    if not report.spent.jobs or not report.costs.lost:
        return "No job lost anything"
    first = report.spent.jobs[0]
    share = first.lost / report.costs.lost
    return f"{first.job} lost the most: {rough_percent(share)} of all that is lost"


def jobs_table(report: FleetReport, csv: str) -> Drawn:
    """Return the table of the jobs with the largest losses."""
    jobs = report.spent.jobs
    lines = [BarLine(job.job, job.lost, job.used, job.sessions, job_url(job.job)) for job in jobs]
    most = max((job.lost for job in jobs), default=0.0)
    return bar_table(("Job", "Share of its hours", "Sessions"), lines, most, csv)


def label_table(
    name: str, costs: Sequence[LabelCost], address: Address, csv: str
) -> tuple[str, Drawn]:
    """Return title and table of teams or owners: ten lines, and one line for all others."""
    used, lost = sum(cost.used for cost in costs), sum(cost.lost for cost in costs)
    named = [cost for cost in costs if cost.name is not None]
    lines = [
        BarLine(
            *(cost.name or f"no {name}", cost.lost, cost.used, cost.jobs),
            url=address.but(**{name: cost.name}) if cost.name else "",
            plain=cost.name is None,
        )
        for cost in costs[:NAMED]
    ]
    if others := costs[NAMED:]:
        lines.append(
            BarLine(
                plural(len(others), f"other {name}"),
                sum(cost.lost for cost in others),
                sum(cost.used for cost in others),
                sum(cost.jobs for cost in others),
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
    headings = name.capitalize(), "Share of its hours", "Jobs"
    most = max((cost.lost for cost in costs), default=0.0)
    return title, bar_table(headings, lines if named else [], most, csv)


def hosts_title(report: FleetReport) -> str:
    """Return the title of the table of hosts: number of repeatedly slow hosts, and their cost."""
    hosts = report.spent.hosts
    if not hosts:
        return "No host was slow more than once"
    total = hours(sum(host.lost for host in hosts))
    if len(hosts) == 1:
        return f"{hosts[0].called} alone was slow more than once"
    return f"{plural(len(hosts), 'host')} that were slow more than once cost {total} GPU-hours"


_HOSTS: Final[tuple[Shown[HostCost], ...]] = (
    Shown("Host", lambda host: html.link(host_url(host.host), host.called)),
    Shown("GPU-hours", lambda host: hours(host.lost), classes="num"),
    Shown("Jobs", lambda host: count(host.jobs), classes="num"),
    Shown("Slow sessions", lambda host: count(host.sessions), classes="num"),
)


def fixes_title(fixes: Sequence[FixLine]) -> str:
    """Return the title of the table of fixes: how many reached the predicted gain."""
    outcomes = [fix.met for fix in fixes if fix.met is not None]
    if not outcomes:
        return "No prediction was measured"
    reached = f"{count(sum(outcomes))} of {plural(len(outcomes), 'fix', 'fixes')}"
    return f"{reached} reached the predicted gain"


def _change(gain: float) -> str:
    return percent(-gain) if gain > 0 else f"+{percent(-gain)}" if gain < 0 else percent(0.0)


def _fix(fix: FixLine) -> Markup:
    compared = html.link(f"/compare?a={fix.session}&b={fix.measured_by}", fix.title)
    return compared + html.note(fix.job)


def _realized(fix: FixLine) -> str | Markup:
    text = "not comparable" if fix.unlike else _change(fix.realized)
    return html.element("b", text) if fix.unlike is not None or fix.met is False else text


def _saved(fix: FixLine) -> str:
    saved = fix.gpus * fix.realized / (1 - fix.realized) if fix.realized < 1 else 0.0
    return "" if fix.unlike else hours(max(0.0, saved))


_FIXES: Final[tuple[Shown[FixLine], ...]] = (
    Shown("Fix", _fix),
    Shown(
        "Predicted",
        lambda fix: f"{'up to ' if fix.at_most else ''}{_change(fix.predicted)}",
        classes="num",
    ),
    Shown("Realized", _realized, classes="num"),
    Shown("Saved", _saved, classes="num"),
)

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
    causes: Drawn
    jobs_title: str
    jobs: Drawn
    # label, title and table of teams and of owners
    labels: Sequence[tuple[str, str, Drawn]]
    filters: Sequence[LabelChoices]
    kept: Sequence[tuple[str, str]]
    cleared_url: str
    figures_url: str
    trend_title: str
    trend_note: str
    trend: Plot
    hosts_title: str
    hosts: Drawn
    fixes_title: str
    fixes: Drawn
    trend_csv: str


def report_page(report: FleetReport, about: Range, address: Address) -> ReportPage:
    """Return the page of the fleet's report."""
    costs, coverage = report.costs, report.coverage
    query = Address("", address.parameters).but()
    groups = {"owner": report.filters.owner, "team": report.filters.team}
    labels = {"team": report.spent.teams, "owner": report.spent.owners}

    def csv(name: str) -> str:
        return f"/report/{name}.csv{query}"

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
        causes=causes_table(report, csv("causes")),
        jobs_title=jobs_title(report),
        jobs=jobs_table(report, csv("jobs")),
        labels=[
            (name, *label_table(name, costs, address, csv(f"{name}s")))
            for name, costs in labels.items()
        ],
        filters=[label_choices(name, groups[name], costs) for name, costs in labels.items()],
        kept=[
            (name, value)
            for name, value in address.parameters.items()
            if value and name not in ("team", "owner")
        ],
        cleared_url=address.but(team=None, owner=None, label=None)
        if report.filters.has_criteria
        else "",
        figures_url=Address("/", {"tab": "figures", **about.parameters(DAY), **groups}).but(),
        trend_title=_trend_title(report.spent.trend),
        trend_note=f"Share of the GPU-hours that was lost, in each "
        f"{_length(report.until - report.since)}; the axis begins at 0",
        trend=_trend(report.spent.trend, report.now),
        hosts_title=hosts_title(report),
        hosts=drawn(_HOSTS, report.spent.hosts, csv=csv("hosts"), classes="plain bars"),
        fixes_title=fixes_title(report.fixes),
        fixes=drawn(_FIXES, report.fixes, csv=csv("fixes"), classes="plain bars fixed"),
        trend_csv=csv("trend"),
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
    outcomes = [fix.met for fix in report.fixes if fix.met is not None]
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
            f"{count(sum(outcomes))} of {count(len(outcomes))}" if outcomes else "none",
            f"within {percent(MET_WITHIN, 0)} of the predicted step time"
            if outcomes
            else "none was measured in this time",
        ),
    ]


def _neighbor(report: FleetReport, address: Address, way: int) -> str:
    """Return the address of the report for the previous (-1) or next (1) period."""
    move = way * (report.until - report.since)
    since, until = report.since + move, report.until + move
    return address.but(range=None, **{"from": utc_minutes(since), "to": utc_minutes(until)})


def _trend_title(trend: Sequence[Period]) -> str:
    shares = [period.costs.share for period in trend if period.costs.sessions]
    if len(shares) < 2:  # noqa: PLR2004 - of one there is no trend
        return "There is no earlier time to compare with"
    first, last = shares[0], shares[-1]
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

"""Routes of the fleet's report: its page, the tab of the paper's figures, and CSV tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.guard import RequestContainer
from app.analysis.fleet import PAPER_FEWEST_GPUS, PAPER_MOST_RESTARTS
from app.analysis.report.session_verdict import KINDS
from app.jobs.fleet_costs import (
    CauseCost,
    HostCost,
    JobCost,
    JobFigures,
    LabelCost,
    ReportFilter,
)
from app.jobs.fleet_report import (
    FixLine,
    FleetReport,
    Sample,
    SampledJobs,
    against_context,
    against_gpus,
    figures,
    fleet_report,
    sampled_jobs,
    sequence_lengths,
)
from app.jobs.pages.report import ReportQueryParam, report_page
from app.jobs.pages.report_findings import (
    AgainstView,
    FigureView,
    against_view,
    figure_view,
    lengths_view,
)
from app.web.format import count, plural, rough_percent
from app.web.forms import Choice
from app.web.links import Address, QueryText
from app.web.pages import Pages
from app.web.tables import Table, csv_file, one_of
from app.web.time_ranges import ALL, Range, RangeChoices, TimeQueryParam, range_choices


def figures_csv(jobs: Sequence[JobFigures]) -> Table:
    """Return the table of the jobs in the figures, each represented by its median session."""
    return Table(
        (
            "job",
            "session",
            "number",
            "sessions",
            "gpus",
            "stages",
            "context_tokens",
            "slowdown",
            "waste",
            "m_w",
            "m_s",
            "correlation",
            *(f"waste {kind}" for kind in KINDS),
            "step_median",
            "step_largest",
            "restarts",
            "gpu_hours",
        ),
        (
            (
                *(job.job, str(job.session), job.number, job.sessions, job.gpus, job.stages),
                *(job.context, job.slowdown, job.waste, job.m_w, job.m_s, job.correlation),
                *(job.waste_by.get(kind) for kind in KINDS),
                job.steps[len(job.steps) // 2],
                job.steps[-1],
                job.restarts,
                job.gpu_hours,
            )
            for job in jobs
        ),
    )


def _labels_csv(name: str, costs: Sequence[LabelCost]) -> Table:
    """Return the table of teams or owners; the line without a name is for unlabeled jobs."""
    return Table(
        (name, "used_gpu_hours", "lost_gpu_hours", "jobs"),
        ((cost.name, cost.used, cost.lost, cost.jobs) for cost in costs),
    )


def trend_csv(report: FleetReport) -> Table:
    """Return the table of the trend's periods, earliest first."""
    return Table(
        ("from", "to", "used_gpu_hours", "lost_gpu_hours", "jobs", "sessions"),
        (
            (
                *(period.since, period.until, period.costs.used, period.costs.lost),
                *(period.costs.jobs, period.costs.sessions),
            )
            for period in report.spent.trend
        ),
    )


# File name → function that returns the file's table, given a report.
EXPORTS: Final[Mapping[str, Callable[[FleetReport], Table]]] = {
    "jobs": lambda report: Table.of(JobCost, report.spent.jobs),
    "causes": lambda report: Table.of(CauseCost, report.spent.causes),
    "teams": lambda report: _labels_csv("team", report.spent.teams),
    "owners": lambda report: _labels_csv("owner", report.spent.owners),
    "trend": trend_csv,
    "hosts": lambda report: Table.of(HostCost, report.spent.hosts),
    "fixes": lambda report: Table.of(FixLine, report.fixes),
}


# Default length of a report's period.
WEEK: Final = "7d"
FIGURES: Final = "figures"


def add_report_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages and files of the fleet's report to the dashboard."""

    @routes.get("/report")
    def report_route(
        container: RequestContainer, time: TimeQueryParam, query: ReportQueryParam
    ) -> Response:
        about = time.about(WEEK)
        with pages.reading(container) as (tx, nav):
            report = fleet_report(tx, about.since(tx.now), about.end, query.filters)
        address = Address("/report", {**query.parameters, **time.parameters})
        page = report_page(report, about, address)
        return pages.render("jobs/report/page.html", nav, page=page, now=report.now)

    @routes.get("/report/{name}.csv")
    def report_file_route(
        container: RequestContainer,
        name: str,
        time: TimeQueryParam,
        query: ReportQueryParam,
        sample: QueryText = "",
    ) -> Response:
        about = time.about(WEEK)
        with container.reading() as tx:
            selection = (tx, about.since(tx.now), about.end, query.filters)
            if name == FIGURES:
                table = figures_csv(sampled_jobs(*selection, Sample.of(sample)).jobs)
            else:
                table = one_of(EXPORTS, name)(fleet_report(*selection))
        return csv_file(f"paceline-report-{name}.csv", table)


FILE: Final = "/report/figures.csv"


@dataclass(frozen=True, slots=True)
class FiguresPage:
    """The tab of the fleet with the paper's figures."""

    now: datetime
    title: str
    heading: str
    tabs: Sequence[Choice]
    figures: Sequence[FigureView]
    sizes: Sequence[AgainstView]
    samples: Sequence[Choice]
    coverage: str
    csv: str
    range: RangeChoices
    filters: ReportFilter
    kept: Sequence[tuple[str, str]]
    cleared_url: str


def figures_page(
    sampled: SampledJobs,
    now: datetime,
    about: Range,
    filters: ReportFilter,
    tabs: Sequence[Choice],
) -> FiguresPage:
    """Return the tab of the fleet with the paper's figures."""
    jobs = sampled.jobs
    sample = "" if sampled.sample is Sample.ALL else sampled.sample.value
    parameters = {"team": filters.team, "owner": filters.owner, "label": filters.label}
    parameters["sample"] = sample
    time = about.parameters(default=ALL)
    container = Address("/", {"tab": "figures", **time, **parameters})
    csv = Address(FILE, {**time, **parameters}).but()
    slow = sum(job.straggles for job in jobs)
    return FiguresPage(
        now=now,
        title="Fleet: figures of the paper",
        heading=(
            f"{slow} of {plural(len(jobs), 'job')} straggle in their median session"
            if jobs
            else f"No session in {about.words} has a verdict"
        ),
        tabs=tabs,
        figures=[figure_view(figure) for figure in figures(jobs)] if jobs else [],
        sizes=[
            against_view(against_gpus(jobs), "GPUs", "Larger jobs", "Jobs", csv),
            against_view(
                against_context(jobs),
                "tokens",
                "Jobs with longer sequences",
                "Jobs whose metadata have seq_length or sequence_lengths",
                csv,
            ),
            lengths_view(sequence_lengths(jobs), csv),
        ]
        if jobs
        else [],
        samples=(
            Choice("", "All jobs", not sample, container.but(sample=None)),
            Choice(
                Sample.PAPER.value,
                "As in the paper",
                bool(sample),
                container.but(sample=Sample.PAPER.value),
            ),
        ),
        coverage=_coverage(sampled),
        csv=csv,
        range=range_choices(about),
        filters=filters,
        kept=[
            ("tab", "figures"),
            *((name, value) for name, value in time.items() if value),
            *([("sample", sample)] if sample else []),
        ],
        cleared_url=container.but(team=None, owner=None, label=None)
        if filters.has_criteria
        else "",
    )


def _coverage(sampled: SampledJobs) -> str:
    """Return the sentence that states which jobs are counted, and their share of the GPU-hours."""
    which = (
        f"Jobs of {PAPER_FEWEST_GPUS} GPUs or more, restarted at most {PAPER_MOST_RESTARTS} times"
        if sampled.sample is Sample.PAPER
        else "Jobs with a verdict"
    )
    return (
        f"{which}: {count(len(sampled.jobs))} of {count(sampled.fleet.jobs)}, "
        f"{rough_percent(sampled.gpu_hours_share)} of the GPU-hours"
    )

"""The second tab of the fleet: the figures of the paper, of this fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from app.dashboard.report.finding import AgainstView, FigureView, against_view, figure_view
from app.dashboard.ui.address import Address
from app.dashboard.ui.format import plural
from app.dashboard.ui.ranges import ALL, Range, RangeChoices, range_choices
from app.services.fleet_report.curves import against_context, against_gpus, figures

if TYPE_CHECKING:
    from app.dashboard.ui.choosing import Choice
    from app.services.fleet_report.filters import ReportFilter
    from app.services.fleet_report.jobs import JobFigures

FILE: Final = "/report/figures.csv"


@dataclass(frozen=True, slots=True)
class FiguresPage:
    """The tab."""

    now: datetime
    title: str
    heading: str
    tabs: Sequence[Choice]
    figures: Sequence[FigureView]
    sizes: Sequence[AgainstView]
    csv: str
    range: RangeChoices
    filters: ReportFilter
    kept: Sequence[tuple[str, str]]
    cleared_url: str


def figures_page(
    jobs: Sequence[JobFigures],
    now: datetime,
    about: Range,
    filters: ReportFilter,
    tabs: Sequence[Choice],
) -> FiguresPage:
    """Return the tab."""
    asked = {"team": filters.team, "owner": filters.owner, "label": filters.label}
    time = about.parameters(default=ALL)
    here = Address("/", {"tab": "figures", **time, **asked})
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
            against_view(against_gpus(jobs), "GPUs", "Larger jobs", "Jobs"),
            against_view(
                against_context(jobs),
                "tokens",
                "Jobs with longer sequences",
                "Jobs whose metadata have seq_length or sequence_lengths",
            ),
        ]
        if jobs
        else [],
        csv=Address(FILE, {**time, **asked}).but(),
        range=range_choices(about),
        filters=filters,
        kept=[("tab", "figures"), *((name, value) for name, value in time.items() if value)],
        cleared_url=here.but(team=None, owner=None, label=None) if filters.asked else "",
    )

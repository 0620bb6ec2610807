"""The tables of a fleet's report as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from app.analysis.report.paper import KINDS
from app.dashboard.ui.csv_text import Table

if TYPE_CHECKING:
    from app.services.fleet_report.costs import LabelCost
    from app.services.fleet_report.jobs import JobFigures
    from app.services.fleet_report.read import FleetReport


def figures_csv(jobs: Sequence[JobFigures]) -> Table:
    """Return every job that the figures are of, by its median session."""
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
        ),
        (
            (
                one.job,
                str(one.session),
                one.number,
                one.sessions,
                one.gpus,
                one.stages,
                one.context,
                one.slowdown,
                one.waste,
                one.m_w,
                one.m_s,
                one.correlation,
                *(one.waste_by.get(kind) for kind in KINDS),
                one.steps[len(one.steps) // 2],
                one.steps[-1],
            )
            for one in jobs
        ),
    )


def jobs_csv(report: FleetReport) -> Table:
    """Return the jobs that lost most."""
    return Table(
        ("job", "used_gpu_hours", "lost_gpu_hours", "sessions"),
        ((one.job, one.used, one.lost, one.sessions) for one in report.spent.jobs),
    )


def causes_csv(report: FleetReport) -> Table:
    """Return what each cause cost."""
    return Table(
        ("cause", "lost_gpu_hours", "jobs"),
        ((one.cause, one.lost, one.jobs) for one in report.spent.causes),
    )


def _labels_csv(name: str, costs: Sequence[LabelCost]) -> Table:
    """Return what teams or owners cost; without a name those that have none."""
    return Table(
        (name, "used_gpu_hours", "lost_gpu_hours", "jobs"),
        ((one.name, one.used, one.lost, one.jobs) for one in costs),
    )


def teams_csv(report: FleetReport) -> Table:
    """Return what each team cost."""
    return _labels_csv("team", report.spent.teams)


def owners_csv(report: FleetReport) -> Table:
    """Return what each owner cost."""
    return _labels_csv("owner", report.spent.owners)


def trend_csv(report: FleetReport) -> Table:
    """Return the times of the trend, the earliest first."""
    return Table(
        ("from", "to", "used_gpu_hours", "lost_gpu_hours", "jobs", "sessions"),
        (
            (
                one.since.isoformat(),
                one.until.isoformat(),
                one.costs.used,
                one.costs.lost,
                one.costs.jobs,
                one.costs.sessions,
            )
            for one in report.spent.trend
        ),
    )


def hosts_csv(report: FleetReport) -> Table:
    """Return the hosts that were slow more than once."""
    return Table(
        ("host", "lost_gpu_hours", "jobs", "sessions", "guessed"),
        (
            (one.host, one.lost, one.jobs, one.sessions, str(one.guessed).lower())
            for one in report.spent.hosts
        ),
    )


def fixes_csv(report: FleetReport) -> Table:
    """Return the fixes that were measured."""
    return Table(
        ("job", "fix", "predicted_gain", "at_most", "realized_gain", "not_comparable"),
        (
            (
                one.job,
                one.title,
                one.predicted,
                str(one.at_most).lower(),
                one.realized,
                one.unlike,
            )
            for one in report.fixes
        ),
    )


# File name → what makes it of a report.
EXPORTS: Final[Mapping[str, Callable[[FleetReport], Table]]] = {
    "jobs": jobs_csv,
    "causes": causes_csv,
    "teams": teams_csv,
    "owners": owners_csv,
    "trend": trend_csv,
    "hosts": hosts_csv,
    "fixes": fixes_csv,
}

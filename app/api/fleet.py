"""The fleet over the API: what stragglers cost it in a time, and the paper's figures."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, Field

from app.analysis.fleet.statistics import Point
from app.api.frame.answers import ReadBody
from app.api.frame.routers import api_router
from app.auth.here import Here
from app.db.states import SessionState
from app.services.fleet_report.curves import Curve, Name, figures
from app.services.fleet_report.filters import ReportFilter
from app.services.fleet_report.jobs import job_figures
from app.services.fleet_report.read import fleet_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.services.fleet_report.jobs import JobFigures
    from app.services.fleet_report.read import FleetReport

Since = Annotated[
    AwareDatetime | None,
    Query(alias="from", description="Start; default: a week before the end."),
]
Until = Annotated[AwareDatetime | None, Query(alias="to", description="End; default: now.")]

# No label holds such a character, and the database takes none.
_NO_NUL: Final = r"^[^\x00]*$"
Labeled = Annotated[
    str, Query(max_length=200, pattern=_NO_NUL, description="Only sessions with this label.")
]
LabelText = Annotated[
    str,
    Query(max_length=200, pattern=_NO_NUL, description="`name=value`, or the name of a label."),
]


class CostsBody(ReadBody):
    """GPU-hours for which verdicts stand, and of these what stragglers cost."""

    used_gpu_hours: float = Field(validation_alias="used")
    lost_gpu_hours: float = Field(validation_alias="lost")
    waste: float = Field(validation_alias="share")
    jobs: int
    sessions: int


class PeriodBody(CostsBody):
    """The same of a part of the trend."""

    since: datetime
    until: datetime


class CoverageBody(ReadBody):
    """How many sessions and jobs count, and which do not.

    `without` are sessions without a verdict, by their state.
    """

    sessions: int = Field(validation_alias="received")
    counted_sessions: int = Field(validation_alias="counted")
    without: dict[SessionState, int]
    jobs: int
    counted_jobs: int
    silent_jobs: int = Field(validation_alias="silent")


class NamedCostBody(BaseModel):
    """What a job, a cause or a host cost, GPU-hours; causes of a job may overlap."""

    name: str
    lost_gpu_hours: float
    jobs: int
    sessions: int | None
    guessed: bool = Field(default=False, description="Of a host: its name may be a container's.")


class LabelCostBody(ReadBody):
    """What the jobs of a team or an owner cost, GPU-hours; without a name those that have none."""

    name: str | None
    used_gpu_hours: float = Field(validation_alias="used")
    lost_gpu_hours: float = Field(validation_alias="lost")
    jobs: int


class ExampleBody(ReadBody):
    """A job at the upper end of a figure, by its median session."""

    job: str
    session: uuid.UUID
    number: int
    value: float
    what: str = Field(validation_alias="note")


class FigureBody(ReadBody):
    """A figure of the paper, of this fleet."""

    name: Name
    jobs: int
    curves: list[Curve]
    paper: list[Point]
    examples: list[ExampleBody]


class MeasuredFixBody(ReadBody):
    """A fix that was measured in the time; gains are shares of the step time."""

    job: str
    title: str
    session: uuid.UUID
    measured_by: uuid.UUID
    predicted_gain: float = Field(validation_alias="predicted")
    at_most: bool
    realized_gain: float = Field(validation_alias="realized")
    not_comparable: str | None = Field(validation_alias="unlike")


class FleetReportBody(BaseModel):
    """What stragglers cost a fleet in a time; the last part of the trend is the time itself."""

    since: datetime
    until: datetime
    coverage: CoverageBody
    costs: CostsBody
    trend: list[PeriodBody]
    straggling_jobs: int
    causes: list[NamedCostBody]
    unexplained_gpu_hours: float
    jobs: list[NamedCostBody]
    teams: list[LabelCostBody]
    owners: list[LabelCostBody]
    hosts: list[NamedCostBody]
    fixes: list[MeasuredFixBody]
    incidents_opened: int
    incidents_resolved: int
    figures: list[FigureBody]


def router() -> APIRouter:
    """Return the route of the fleet's report."""
    routes = api_router("fleet", "/api/v1/fleet")

    @routes.get("/report", summary="What stragglers cost in a time")
    def get_report(  # noqa: PLR0913 - one for each parameter
        container: Here,
        since: Since = None,
        until: Until = None,
        *,
        team: Labeled = "",
        owner: Labeled = "",
        label: LabelText = "",
    ) -> FleetReportBody:
        filters = ReportFilter(team, owner, label)
        with container.reading() as tx:
            found = fleet_report(tx, since, until, filters)
            jobs = job_figures(tx, since, until, filters)
        return _body(found, jobs)

    return routes


def _body(report: FleetReport, jobs: Sequence[JobFigures]) -> FleetReportBody:
    return FleetReportBody(
        since=report.since,
        until=report.until,
        coverage=CoverageBody.model_validate(report.coverage),
        costs=CostsBody.model_validate(report.costs),
        trend=[
            PeriodBody(
                since=part.since, until=part.until, **dict(CostsBody.model_validate(part.costs))
            )
            for part in report.spent.trend
        ],
        straggling_jobs=report.spent.straggling,
        causes=[
            NamedCostBody(name=one.cause, lost_gpu_hours=one.lost, jobs=one.jobs, sessions=None)
            for one in report.spent.causes
        ],
        unexplained_gpu_hours=report.unexplained,
        jobs=[
            NamedCostBody(name=one.job, lost_gpu_hours=one.lost, jobs=1, sessions=one.sessions)
            for one in report.spent.jobs
        ],
        teams=[LabelCostBody.model_validate(one) for one in report.spent.teams],
        owners=[LabelCostBody.model_validate(one) for one in report.spent.owners],
        hosts=[
            NamedCostBody(
                name=one.host,
                lost_gpu_hours=one.lost,
                jobs=one.jobs,
                sessions=one.sessions,
                guessed=one.guessed,
            )
            for one in report.spent.hosts
        ],
        fixes=[MeasuredFixBody.model_validate(one) for one in report.fixes],
        incidents_opened=report.opened,
        incidents_resolved=report.resolved,
        figures=[FigureBody.model_validate(one) for one in figures(jobs)],
    )

"""API of jobs and the fleet: list, history, notes, report with figures, saved views, search."""

from __future__ import annotations

import uuid
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.access.guard import RequestContainer, api_router
from app.analysis.fleet import LengthClass, Point
from app.analysis.replay.metrics import STRAGGLING
from app.incidents.models.tables import IncidentState
from app.incidents.reads import MAX_CHARACTERS
from app.jobs.current import FLEET, FleetFilter, Loss, Moment, Show
from app.jobs.fleet import fleet_view
from app.jobs.fleet_costs import ReportFilter
from app.jobs.fleet_report import (
    Curve,
    FleetReport,
    Sample,
    SampledJobs,
    figures,
    fleet_report,
    sampled_jobs,
    sequence_lengths,
)
from app.jobs.fleet_report import Name as FleetReportName
from app.jobs.saved_views import (
    MAX_NAME_CHARACTERS,
    MAX_QUERY_CHARACTERS,
    View,
    change_view,
    delete_view,
    list_views,
    save_view,
    shared_view,
)
from app.jobs.search import Found, find
from app.jobs.time_axis import (
    MOST_LISTED,
    JobAxis,
    delete_note,
    job_axis,
    known_job,
    notes_of,
    write_note,
)
from app.platform.database.states import NoteKind, SessionState
from app.platform.validation import Moment as ValidationMoment
from app.sessions.api.read import SessionBody, session_body
from app.web import problems
from app.web.bodies import ReadBody
from app.web.lists import PageRequest

Since = Annotated[
    ValidationMoment | None,
    Query(alias="from", description="Start; default: a week before the end."),
]
Until = Annotated[ValidationMoment | None, Query(alias="to", description="End; default: now.")]

# Excludes NUL, which PostgreSQL's text type cannot store.
_NO_NUL: Final = r"^[^\x00]*$"
Labeled = Annotated[
    str, Query(max_length=200, pattern=_NO_NUL, description="Only sessions with this label.")
]
LabelText = Annotated[
    str,
    Query(max_length=200, pattern=_NO_NUL, description="`name=value`, or the name of a label."),
]


class CostsBody(ReadBody):
    """GPU-hours of the sessions with a verdict, and the GPU-hours that stragglers cost."""

    used_gpu_hours: float = Field(validation_alias="used")
    lost_gpu_hours: float = Field(validation_alias="lost")
    waste: float = Field(validation_alias="share")
    jobs: int
    sessions: int


class PeriodBody(CostsBody):
    """The costs of one period of the trend."""

    since: datetime
    until: datetime


class CoverageBody(ReadBody):
    """Numbers of sessions and jobs with and without a verdict.

    `without` counts the sessions without a verdict by state.
    """

    sessions: int = Field(validation_alias="received")
    counted_sessions: int = Field(validation_alias="counted")
    without: dict[SessionState, int]
    jobs: int
    counted_jobs: int
    silent_jobs: int = Field(validation_alias="silent")


class NamedCostBody(BaseModel):
    """GPU-hours lost by a job, a cause or a host; the losses of a job's causes may overlap."""

    name: str
    lost_gpu_hours: float
    jobs: int
    sessions: int | None
    guessed: bool = Field(default=False, description="Of a host: its name may be a container's.")


class LabelCostBody(ReadBody):
    """GPU-hours lost by a team's or an owner's jobs; `name` is null for jobs without the label."""

    name: str | None
    used_gpu_hours: float = Field(validation_alias="used")
    lost_gpu_hours: float = Field(validation_alias="lost")
    jobs: int


class ExampleBody(ReadBody):
    """A job at the upper end of a figure, represented by its median session."""

    job: str
    session: uuid.UUID
    number: int
    value: float
    what: str = Field(validation_alias="note")


class FigureBody(ReadBody):
    """A figure of the paper, computed for this fleet."""

    name: FleetReportName
    jobs: int
    curves: list[Curve]
    paper: list[Point]
    examples: list[ExampleBody]


class SampleBody(BaseModel):
    """The jobs that the figures count, of all jobs with a session in the period."""

    sample: Sample
    jobs: int
    fleet_jobs: int
    gpu_hours_share: float = Field(description="Share of the fleet's GPU-hours that they used.")


class MeasuredFixBody(ReadBody):
    """A fix whose effect was measured in the period; gains are shares of the step time."""

    job: str
    title: str
    session: uuid.UUID
    measured_by: uuid.UUID
    predicted_gain: float = Field(validation_alias="predicted")
    at_most: bool
    realized_gain: float = Field(validation_alias="realized")
    not_comparable: str | None = Field(validation_alias="unlike")


class FleetReportBody(BaseModel):
    """Costs of stragglers over a period; the last period of the trend is this period."""

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
    sample: SampleBody
    lengths: list[LengthClass] = Field(
        description="Distribution of recorded sequence lengths over these jobs, each alike."
    )


def router() -> APIRouter:
    """Return the router of the fleet's report."""
    routes = api_router("fleet", "/api/v1/fleet")

    @routes.get("/report", summary="What stragglers cost in a time")
    def get_report(  # noqa: PLR0913 - one for each parameter
        container: RequestContainer,
        since: Since = None,
        until: Until = None,
        *,
        team: Labeled = "",
        owner: Labeled = "",
        label: LabelText = "",
        sample: Annotated[
            Sample,
            Query(
                description="Jobs in `figures` and `lengths`: `paper` only those of 128 GPUs or "
                "more that were restarted at most 15 times."
            ),
        ] = Sample.ALL,
    ) -> FleetReportBody:
        filters = ReportFilter(team, owner, label)
        with container.reading() as tx:
            report = fleet_report(tx, since, until, filters)
            sampled = sampled_jobs(tx, since, until, filters, sample)
        return _body(report, sampled)

    return routes


def _body(report: FleetReport, sampled: SampledJobs) -> FleetReportBody:
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
            NamedCostBody(
                name=cause.cause, lost_gpu_hours=cause.lost, jobs=cause.jobs, sessions=None
            )
            for cause in report.spent.causes
        ],
        unexplained_gpu_hours=report.unexplained,
        jobs=[
            NamedCostBody(name=job.job, lost_gpu_hours=job.lost, jobs=1, sessions=job.sessions)
            for job in report.spent.jobs
        ],
        teams=[LabelCostBody.model_validate(team) for team in report.spent.teams],
        owners=[LabelCostBody.model_validate(owner) for owner in report.spent.owners],
        hosts=[
            NamedCostBody(
                name=host.host,
                lost_gpu_hours=host.lost,
                jobs=host.jobs,
                sessions=host.sessions,
                guessed=host.guessed,
            )
            for host in report.spent.hosts
        ],
        fixes=[MeasuredFixBody.model_validate(fix) for fix in report.fixes],
        incidents_opened=report.opened,
        incidents_resolved=report.resolved,
        figures=[FigureBody.model_validate(figure) for figure in figures(sampled.jobs)],
        sample=SampleBody(
            sample=sampled.sample,
            jobs=len(sampled.jobs),
            fleet_jobs=sampled.fleet.jobs,
            gpu_hours_share=sampled.gpu_hours_share,
        ),
        lengths=list(sequence_lengths(sampled.jobs).classes),
    )


def history_router() -> APIRouter:
    """Return the router of a job's history."""
    routes = api_router("jobs", "/api/v1")

    @routes.get("/jobs/{job}/history", summary="A job over time")
    def get_history(
        container: RequestContainer,
        job: Annotated[str, Path(description="Name of the job.")],
        since: Annotated[ValidationMoment | None, Query(alias="from")] = None,
        until: Annotated[ValidationMoment | None, Query(alias="to")] = None,
    ) -> JobAxis:
        """Return the sessions of a job over time, with marks of events and lasting changes."""
        with container.reading() as tx:
            known_job(tx, job)
            return job_axis(tx, job, since=since, until=until)

    return routes


DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
Word = Annotated[str, StringConstraints(max_length=200, pattern=_NO_NUL)]


class JobIncidentBody(BaseModel):
    """The most pressing open incident of a job."""

    id: uuid.UUID
    state: IncidentState


class JobBody(BaseModel):
    """A job and its status.

    `told` is the latest completed session, whose verdict represents the job; `latest_session` may
    still be under way. `finished`: the job reported its end.
    """

    name: str
    labels: dict[str, str]
    finished: bool
    incident: JobIncidentBody | None
    latest_session: uuid.UUID
    latest_received_at: datetime
    told: SessionBody


class JobListBody(BaseModel):
    """Jobs, sorted by loss, largest first; `total` is the number of all matching jobs."""

    jobs: list[JobBody]
    total: int = Field(description="With a session in the time.")
    page: int


def jobs_router() -> APIRouter:
    """Return the router of jobs."""
    routes = api_router("jobs", "/api/v1")

    @routes.get("/jobs", summary="Jobs, the one that loses most first")
    def get_jobs(  # noqa: PLR0913 - what may be asked for
        container: RequestContainer,
        *,
        q: Annotated[Word, Query(description="Words in a name, a label, a cause or a host.")] = "",
        show: Show = Show.ALL,
        owner: Word = "",
        label: LabelText = "",
        loss: Loss | None = None,
        since: Annotated[
            ValidationMoment | None,
            Query(alias="from", description="Only jobs with a session since then."),
        ] = None,
        sort: Annotated[
            str,
            Query(pattern=f"^-?({'|'.join(FLEET.sorts)})$", description="A minus: largest first."),
        ] = FLEET.default_sort,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
        page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    ) -> JobListBody:
        with container.reading() as tx:
            fleet = fleet_view(
                tx,
                Moment(since, None, True, STRAGGLING),  # noqa: FBT003 - incidents are those of now
                FleetFilter(" ".join(q.split()), show, owner, label.strip(), loss),
                page=PageRequest(sort, page, limit),
                brief=True,
            )
        rows = fleet.page
        jobs = [
            JobBody(
                name=job.name,
                labels=dict(job.labels),
                finished=job.finished,
                incident=None
                if job.incident is None
                else JobIncidentBody(id=job.incident.id, state=job.incident.state),
                latest_session=job.latest.id,
                latest_received_at=job.latest.received_at,
                told=session_body(job.verdict_session),
            )
            for job in rows.rows
        ]
        return JobListBody(jobs=jobs, total=rows.total, page=rows.number)

    return routes


MOST_CHARACTERS = 2000

JobName = Annotated[str, Path(description="Name of the job.")]
Words = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=MOST_CHARACTERS, pattern=_NO_NUL
    ),
]
By = Annotated[
    str | None,
    Field(min_length=1, max_length=200, description="Taken from the sign-in where there is one."),
]


class NewNoteBody(BaseModel):
    """A note on an event of a job."""

    model_config = ConfigDict(extra="forbid")

    text: Words = Field(examples=["image 2026.11.3: NCCL 2.27"])
    kind: NoteKind = NoteKind.NOTE
    at: Annotated[ValidationMoment | None, Field(description="When it happened; default: now.")] = (
        None
    )
    by: By = None


class NoteBody(BaseModel):
    """A note: the time of the event, its text, and the author and time of the note."""

    id: int
    at: datetime
    kind: NoteKind
    text: str = Field(validation_alias="words")
    author: str
    noted_at: datetime

    model_config = ConfigDict(from_attributes=True)


class NotesBody(BaseModel):
    """Notes, sorted by the time of the event, newest first."""

    notes: list[NoteBody]


def notes_router() -> APIRouter:
    """Return the router of notes."""
    routes = api_router("jobs", "/api/v1/jobs/{job}/notes")

    @routes.get("", summary="Notes on a job's time axis")
    def get_notes(
        container: RequestContainer,
        job: JobName,
        since: Annotated[ValidationMoment | None, Query(alias="from")] = None,
        until: Annotated[ValidationMoment | None, Query(alias="to")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = MOST_LISTED,
    ) -> NotesBody:
        """Return the notes, sorted by the time of the event, newest first."""
        with container.reading() as tx:
            known_job(tx, job)
            notes = notes_of(tx, job, since=since, until=until, limit=limit)
        return NotesBody(notes=[NoteBody.model_validate(note) for note in notes])

    @routes.post(
        "",
        status_code=HTTPStatus.CREATED,
        summary="Note what happened to a job",
        responses={409: problems.described("It is to come, or the job has too many notes")},
    )
    def post_note(container: RequestContainer, job: JobName, body: NewNoteBody) -> NoteBody:
        """Mark a deployment, a change or a remark on the job's time axis."""
        note = write_note(container, job, words=body.text, kind=body.kind, at=body.at, by=body.by)
        return NoteBody.model_validate(note)

    @routes.delete("/{note}", status_code=HTTPStatus.NO_CONTENT, summary="Delete a note")
    def remove_note(
        container: RequestContainer,
        job: JobName,
        note: int,
        by: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    ) -> Response:
        """Delete a note from the job's time axis."""
        delete_note(container, job, note, by)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return routes


Name = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=_NO_NUL
    ),
]
AddressQuery = Annotated[
    str,
    StringConstraints(max_length=MAX_QUERY_CHARACTERS, pattern=_NO_NUL),
    Field(
        description="Parameters of the fleet's address; its page and tab are left out.",
        examples=["owner=ann&sort=-lost&range=7d"],
    ),
]


class NewViewBody(BaseModel):
    """A view to save."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    query: AddressQuery


class ChangedViewBody(BaseModel):
    """Changes of a view; omitted fields keep their values."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    query: AddressQuery | None = None


class ViewsBody(BaseModel):
    """Views, sorted by name."""

    views: list[View]


def views_router() -> APIRouter:
    """Return the router of saved views."""
    routes = api_router("fleet", "/api/v1/views")
    taken: dict[int | str, dict[str, Any]] = {
        409: problems.described("There is a view of that name, or too many")
    }

    @routes.get("", summary="Your saved views of the fleet")
    def get_views(container: RequestContainer) -> ViewsBody:
        """Return the caller's views; all callers without sign-in share the same views."""
        with container.reading() as tx:
            return ViewsBody(views=list_views(tx, container.principal))

    @routes.post(
        "", status_code=HTTPStatus.CREATED, summary="Save a view of the fleet", responses=taken
    )
    def post_view(container: RequestContainer, body: NewViewBody) -> View:
        """Save a filter and an order under a name."""
        return save_view(container, body.name, body.query)

    @routes.get("/{view}", summary="A saved view, whoever saved it")
    def get_view(container: RequestContainer, view: uuid.UUID) -> View:
        """Return the view behind the link `/views/{view}`."""
        with container.reading() as tx:
            return shared_view(tx, view)

    @routes.patch("/{view}", summary="Rename or change a view", responses=taken)
    def patch_view(container: RequestContainer, view: uuid.UUID, body: ChangedViewBody) -> View:
        """Change a view of the caller."""
        return change_view(container, view, name=body.name, query=body.query)

    @routes.delete("/{view}", status_code=HTTPStatus.NO_CONTENT, summary="Delete a view")
    def delete_one(container: RequestContainer, view: uuid.UUID) -> Response:
        """Delete a view of the caller; its link is invalid from then on."""
        delete_view(container, view)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return routes


class SearchBody(BaseModel):
    """Results of a search, a few of each kind."""

    found: list[Found]


def search_router() -> APIRouter:
    """Return the router of the search."""
    routes = api_router("sessions", "/api/v1")

    @routes.get("/search", summary="Jobs, sessions, hosts and incidents by words")
    def get_found(
        container: RequestContainer,
        q: Annotated[
            str,
            Query(
                max_length=MAX_CHARACTERS,
                pattern=_NO_NUL,
                description="Words, all of which must be in a name; numbers of sessions; ids.",
            ),
        ] = "",
    ) -> SearchBody:
        with container.reading() as tx:
            results = find(tx, q)
        return SearchBody(found=results)

    return routes

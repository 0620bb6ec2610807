"""Incidents: found, acknowledged, silenced, resolved, assigned and talked about."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, StringConstraints

from app.alerts.rules import Severity
from app.alerts.states import IncidentState
from app.api.alerts.bodies.incidents import (
    IncidentBody,
    IncidentDetailBody,
    IncidentListBody,
    incident_detail_body,
    incident_values,
)
from app.api.alerts.bodies.orders import (
    BY,
    AckBody,
    AcknowledgeManyBody,
    AssigneeBody,
    AssignManyBody,
    OrderBody,
    ReopenManyBody,
    ResolveManyBody,
    SaidBody,
    SilenceBody,
    SilenceManyBody,
    UnacknowledgeManyBody,
)
from app.auth.here import Here
from app.services.alerts.filters import MAX_CHARACTERS, IncidentFilter
from app.services.alerts.incident_reads import INCIDENTS, get_incident, list_incidents
from app.services.alerts.incidents import (
    acknowledge_incident,
    end_incident_silence,
    reopen_incident,
    resolve_incident,
    silence_incident,
    unacknowledge_incident,
)
from app.services.alerts.triage.notes import assign_incidents, comment_on
from app.services.alerts.triage.orders import (
    OrderOutcome,
    acknowledge_many,
    reopen_many,
    resolve_many,
    silence_many,
    unacknowledge_many,
)

if TYPE_CHECKING:
    from app.services.container import Container

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
MAX_OFFSET: Final = 1_000_000
CREATED: Final = 201

# No row holds the character that the database takes none of.
Word = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS, pattern=r"^[^\x00]*$")]
By = Annotated[str | None, Query(min_length=1, max_length=200, description=BY)]
Sort = Annotated[
    str,
    Query(
        pattern=f"^-?({'|'.join(INCIDENTS.sorts)})$",
        description="A column; a minus sign in front turns it round.",
    ),
]


class Filters:
    """What incidents are asked for by, in addition to their state and job."""

    def __init__(  # noqa: PLR0913 - one for each parameter
        self,
        *,
        q: Annotated[
            Word, Query(description="Words, each of which is in job, cause, host, label…")
        ] = "",
        severity: Severity | None = None,
        cause: Word = "",
        host: Annotated[Word, Query(description="That it blames.")] = "",
        owner: Annotated[Word, Query(description="The job's label of this name.")] = "",
        project: Annotated[Word, Query(description="The job's label of this name.")] = "",
        label: Annotated[Word, Query(description="A label of the job: name=value, or name.")] = "",
        assignee: Annotated[Word, Query(description="The assignee; -: not assigned.")] = "",
        begin: Annotated[
            AwareDatetime | None,
            Query(alias="from", description="Began since; with state=resolved ended since."),
        ] = None,
        end: Annotated[
            AwareDatetime | None,
            Query(alias="to", description="Began until; with state=resolved ended until."),
        ] = None,
    ) -> None:
        self.filtered = IncidentFilter(
            words=q,
            severity=severity or "",
            cause=cause,
            host=host,
            owner=owner,
            project=project,
            label=label,
            assignee=assignee,
            since=begin,
            until=end,
        )


def add_incidents(routes: APIRouter) -> None:
    """Add the routes of incidents."""
    _reads(routes)
    _orders(routes)
    _notes(routes)


def _reads(routes: APIRouter) -> None:
    @routes.get("/incidents", summary="Incidents, firing ones first")
    def get_incidents(  # noqa: PLR0913 - one for each parameter
        container: Here,
        *,
        filters: Annotated[Filters, Depends()],
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
        offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
        state: Annotated[IncidentState | None, Query(description="Only in this state.")] = None,
        job: Annotated[str | None, Query(description="Only of this job.")] = None,
        sort: Sort | None = None,
    ) -> IncidentListBody:
        with container.reading() as tx:
            rows = list_incidents(
                tx,
                limit,
                state=state,
                job=job,
                filtered=replace(filters.filtered, state=state),
                sort=sort or "",
                offset=offset,
            )
        return IncidentListBody(incidents=[IncidentBody(**incident_values(row)) for row in rows])

    @routes.get("/incidents/{incident}", summary="An incident, its history and comments")
    def get_one_incident(container: Here, incident: uuid.UUID) -> IncidentDetailBody:
        with container.reading() as tx:
            view = get_incident(tx, incident)
        return incident_detail_body(view)


def _orders(routes: APIRouter) -> None:
    @routes.post("/incidents/orders", summary="The same order for many incidents")
    def post_order(container: Here, body: OrderBody) -> OrderOutcome:
        """All or none where one is not there; what the order does not apply to is listed."""
        return _carried_out(container, body)

    @routes.post("/incidents/{incident}/ack", summary="Acknowledge: no more repeats")
    def post_ack(container: Here, incident: uuid.UUID, body: AckBody) -> IncidentDetailBody:
        return incident_detail_body(
            acknowledge_incident(container, incident, by=body.by, note=body.note)
        )

    @routes.delete("/incidents/{incident}/ack", summary="Take the acknowledgement back")
    def remove_ack(container: Here, incident: uuid.UUID, by: By = None) -> IncidentDetailBody:
        """Let it fire again, with repeats."""
        return incident_detail_body(unacknowledge_incident(container, incident, by=by))

    @routes.post("/incidents/{incident}/silence", summary="Send no messages until a time")
    def post_silence(container: Here, incident: uuid.UUID, body: SilenceBody) -> IncidentDetailBody:
        return incident_detail_body(
            silence_incident(container, incident, until=body.until, reason=body.reason, by=body.by)
        )

    @routes.delete("/incidents/{incident}/silence", summary="End a silence early")
    def remove_silence(
        container: Here,
        incident: uuid.UUID,
        by: By = None,
    ) -> IncidentDetailBody:
        return incident_detail_body(end_incident_silence(container, incident, by=by))

    @routes.post("/incidents/{incident}/resolve", summary="Say that it is over")
    def post_resolve(container: Here, incident: uuid.UUID, body: AckBody) -> IncidentDetailBody:
        """Sessions up to now are settled: the same must hold anew before it fires again."""
        return incident_detail_body(
            resolve_incident(container, incident, by=body.by, note=body.note)
        )

    @routes.post("/incidents/{incident}/reopen", summary="Take back that it is over")
    def post_reopen(container: Here, incident: uuid.UUID, body: AckBody) -> IncidentDetailBody:
        """Its sessions count again; only what a user ended is reopened."""
        return incident_detail_body(
            reopen_incident(container, incident, by=body.by, note=body.note)
        )


def _carried_out(container: Container, body: OrderBody) -> OrderOutcome:
    ids = set(body.incidents)
    match body:
        case SilenceManyBody():
            return silence_many(container, ids, until=body.until, reason=body.reason, by=body.by)
        case AssignManyBody():
            return assign_incidents(container, ids, to=body.to, by=body.by)
        case AcknowledgeManyBody():
            return acknowledge_many(container, ids, by=body.by, note=body.note)
        case UnacknowledgeManyBody():
            return unacknowledge_many(container, ids, by=body.by)
        case ReopenManyBody():
            return reopen_many(container, ids, by=body.by, note=body.note)
        case ResolveManyBody():
            return resolve_many(container, ids, by=body.by, note=body.note)


def _notes(routes: APIRouter) -> None:
    @routes.post(
        "/incidents/{incident}/comments", status_code=CREATED, summary="Say something about it"
    )
    def post_comment(container: Here, incident: uuid.UUID, body: SaidBody) -> IncidentDetailBody:
        return incident_detail_body(comment_on(container, incident, words=body.words, by=body.by))

    @routes.put("/incidents/{incident}/assignee", summary="Say whose it is")
    def put_assignee(
        container: Here, incident: uuid.UUID, body: AssigneeBody
    ) -> IncidentDetailBody:
        assign_incidents(container, [incident], to=body.to, by=body.by)
        with container.reading() as tx:
            return incident_detail_body(get_incident(tx, incident))

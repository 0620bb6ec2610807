"""Notes on a job's time axis: write one, list them, take one back."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from app.api.frame import problems
from app.api.frame.routers import api_router
from app.auth.here import Here
from app.db.states import NoteKind
from app.inputs.values import Moment
from app.services.history.notes import MOST_LISTED, delete_note, known_job, notes_of, write_note

MOST_CHARACTERS = 2000

JobName = Annotated[str, Path(description="Name of the job.")]
# The database takes no NUL.
Words = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=MOST_CHARACTERS, pattern=r"^[^\x00]*$"
    ),
]
By = Annotated[
    str | None,
    Field(min_length=1, max_length=200, description="Taken from the sign-in where there is one."),
]


class NewNoteBody(BaseModel):
    """What happened to a job."""

    model_config = ConfigDict(extra="forbid")

    text: Words = Field(examples=["image 2026.11.3: NCCL 2.27"])
    kind: NoteKind = NoteKind.NOTE
    at: Annotated[Moment | None, Field(description="When it happened; default: now.")] = None
    by: By = None


class NoteBody(BaseModel):
    """A note: when it happened, and who wrote it down when."""

    id: int
    at: datetime
    kind: NoteKind
    text: str = Field(validation_alias="words")
    author: str
    noted_at: datetime

    model_config = ConfigDict(from_attributes=True)


class NotesBody(BaseModel):
    """Notes, what happened last first."""

    notes: list[NoteBody]


def router() -> APIRouter:
    """Return the routes of notes."""
    routes = api_router("jobs", "/api/v1/jobs/{job}/notes")

    @routes.get("", summary="Notes on a job's time axis")
    def get_notes(
        container: Here,
        job: JobName,
        since: Annotated[AwareDatetime | None, Query(alias="from")] = None,
        until: Annotated[AwareDatetime | None, Query(alias="to")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = MOST_LISTED,
    ) -> NotesBody:
        """Return what happened last first."""
        with container.reading() as tx:
            known_job(tx, job)
            found = notes_of(tx, job, since=since, until=until, limit=limit)
        return NotesBody(notes=[NoteBody.model_validate(note) for note in found])

    @routes.post(
        "",
        status_code=HTTPStatus.CREATED,
        summary="Note what happened to a job",
        responses={409: problems.described("It is to come, or the job has too many notes")},
    )
    def post_note(container: Here, job: JobName, body: NewNoteBody) -> NoteBody:
        """Mark a deployment, a change or a remark on the job's time axis."""
        note = write_note(container, job, words=body.text, kind=body.kind, at=body.at, by=body.by)
        return NoteBody.model_validate(note)

    @routes.delete("/{note}", status_code=HTTPStatus.NO_CONTENT, summary="Delete a note")
    def remove_note(
        container: Here,
        job: JobName,
        note: int,
        by: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    ) -> Response:
        """Take it off the time axis."""
        delete_note(container, job, note, by)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return routes

"""API of access: tokens, users, projects, audit log, incidents of all projects."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.access.audit import Entry, list_entries
from app.access.guard import RequestContainer, api_router
from app.access.moves import delete_project, move_job
from app.access.people import PersonView, delete_person, list_people, set_disabled, set_role
from app.access.projects import ProjectView, create_project, list_projects
from app.access.tokens import (
    MOST_PATTERNS,
    TokenView,
    create_token,
    list_tokens,
    renew_token,
    revoke_token,
)
from app.incidents.api_bodies import IncidentBody, incident_values
from app.incidents.everywhere import open_everywhere
from app.platform.identity import Right, Role

Name = Annotated[str, Field(min_length=1, max_length=100)]


class NewTokenBody(BaseModel):
    """Fields of a token to create."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    scopes: Annotated[list[Right], Field(min_length=1)]
    project: Name | None = Field(default=None, description="Null: all projects.")
    jobs: list[str] = Field(
        default_factory=list,
        max_length=MOST_PATTERNS,
        description="Jobs for which it may send, with `*` and `?`; empty: all jobs.",
        examples=[["llama-70b", "research-*"]],
    )
    expires_days: Annotated[int, Field(ge=1, le=3650)] | None = Field(
        default=90, description="Null: never."
    )
    owner: Name | None = Field(default=None, description="Default: the user who creates it.")


class MadeTokenBody(BaseModel):
    """A token that was just created; its `secret` is shown only in this answer."""

    secret: str
    token: TokenView


class TokenListBody(BaseModel):
    """Tokens, sorted by name."""

    tokens: list[TokenView]


class RenewBody(BaseModel):
    """New validity of a token from now on."""

    model_config = ConfigDict(extra="forbid")

    expires_days: Annotated[int, Field(ge=1, le=3650)] = 90


class RoleBody(BaseModel):
    """Role of a user, and the project in which it applies."""

    model_config = ConfigDict(extra="forbid")

    role: Role | None = Field(description="Null: none.")
    project: Name | None = Field(default=None, description="Null: all projects.")


class PersonListBody(BaseModel):
    """People, sorted by name."""

    people: list[PersonView]


class PersonChangeBody(BaseModel):
    """New state of a user: disabled or enabled."""

    model_config = ConfigDict(extra="forbid")

    disabled: bool


class NewProjectBody(BaseModel):
    """Fields of a project to create."""

    model_config = ConfigDict(extra="forbid")

    name: Name


class MoveBody(BaseModel):
    """Target project of a job's move."""

    model_config = ConfigDict(extra="forbid")

    project: Name


class ProjectListBody(BaseModel):
    """The projects that are visible to the caller, sorted by name."""

    projects: list[ProjectView]


class EntryListBody(BaseModel):
    """Entries of the audit log, newest first; the last id is `before` of the next request."""

    entries: list[Entry]


class JoinedIncidentBody(IncidentBody):
    """An incident, and the name of its project."""

    project: str


class JoinedIncidentListBody(BaseModel):
    """The first open incidents of all projects, or of one project; `count` is the number of all."""

    count: int
    incidents: list[JoinedIncidentBody]


DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
CREATED: Final = 201
ACCEPTED: Final = 202
NO_CONTENT: Final = 204

PersonId = Annotated[uuid.UUID, Path(description="Id of the person.")]


def router() -> APIRouter:
    """Return the router of access."""
    routes = api_router("access", "/api/v1")
    _tokens(routes)
    _people(routes)
    _projects(routes)

    @routes.get("/audit", summary="Audit entries, newest first")
    def get_audit(
        container: RequestContainer,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
        before: Annotated[
            int | None, Query(description="Only entries older than this one.")
        ] = None,
    ) -> EntryListBody:
        with container.everywhere().reading() as tx:
            entries = list_entries(tx, limit, before=before)
        return EntryListBody(entries=entries)

    @routes.get("/access/incidents", summary="Open incidents of all projects, most severe first")
    def get_incidents(
        container: RequestContainer,
        project: Annotated[str, Query(description="Only of this one.")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    ) -> JoinedIncidentListBody:
        with container.everywhere().reading() as tx:
            listed = open_everywhere(tx, limit, project=project.replace("\x00", ""))
        return JoinedIncidentListBody(
            count=listed.count,
            incidents=[
                JoinedIncidentBody(project=name, **incident_values(row))
                for name, row in listed.rows
            ],
        )

    return routes


def _tokens(routes: APIRouter) -> None:
    @routes.get("/tokens", summary="Tokens by name, without their secrets")
    def get_tokens(container: RequestContainer) -> TokenListBody:
        with container.everywhere().reading() as tx:
            tokens = list_tokens(tx)
        return TokenListBody(tokens=tokens)

    @routes.post("/tokens", status_code=CREATED, summary="Create a token")
    def post_token(container: RequestContainer, body: NewTokenBody) -> MadeTokenBody:
        """Create a token and return its secret, which is shown only once: the digest is stored."""
        made = create_token(
            container.everywhere(),
            name=body.name,
            rights=body.scopes,
            project=body.project,
            jobs=body.jobs,
            expires=None if body.expires_days is None else timedelta(days=body.expires_days),
            owner=body.owner,
        )
        return MadeTokenBody(secret=made.secret, token=made.view)

    @routes.delete("/tokens/{name}", status_code=NO_CONTENT, summary="Revoke a token")
    def delete_token(
        container: RequestContainer, name: Annotated[str, Path(description="Its name.")]
    ) -> Response:
        """Revoke a token: requests with it are refused from now on."""
        revoke_token(container.everywhere(), name)
        return Response(status_code=NO_CONTENT)

    @routes.post("/tokens/{name}/renew", summary="Renew a token")
    def post_renewal(
        container: RequestContainer,
        name: Annotated[str, Path(description="Its name.")],
        body: RenewBody,
    ) -> TokenView:
        """Extend the validity of a token; its secret stays. An expired token cannot be extended."""
        return renew_token(container.everywhere(), name, timedelta(days=body.expires_days))


def _people(routes: APIRouter) -> None:
    @routes.get("/people", summary="Users and their roles")
    def get_people(container: RequestContainer) -> PersonListBody:
        with container.everywhere().reading() as tx:
            people = list_people(tx)
        return PersonListBody(people=people)

    @routes.patch(
        "/people/{person}", status_code=NO_CONTENT, summary="Disable a user, or enable them"
    )
    def patch_person(
        container: RequestContainer, person: PersonId, body: PersonChangeBody
    ) -> Response:
        """Disable or enable a user; a disabled user is signed out and cannot sign in."""
        set_disabled(container.everywhere(), person, disabled=body.disabled)
        return Response(status_code=NO_CONTENT)

    @routes.put("/people/{person}/role", status_code=NO_CONTENT, summary="Give a user a role")
    def put_role(container: RequestContainer, person: PersonId, body: RoleBody) -> Response:
        """Set a local user's role; the groups of a provider's user determine their roles."""
        set_role(container.everywhere(), person, body.role, body.project)
        return Response(status_code=NO_CONTENT)

    @routes.delete("/people/{person}", status_code=NO_CONTENT, summary="Delete a user")
    def remove_person(container: RequestContainer, person: PersonId) -> Response:
        """Delete a user; a user of a provider is created again at the next sign-in."""
        delete_person(container.everywhere(), person)
        return Response(status_code=NO_CONTENT)


def _projects(routes: APIRouter) -> None:
    @routes.get("/projects", summary="Projects by name")
    def get_projects(container: RequestContainer) -> ProjectListBody:
        with container.everywhere().reading() as tx:
            projects = list_projects(tx, container.principal.projects)
        return ProjectListBody(projects=projects)

    @routes.post("/projects", status_code=CREATED, summary="Create a project")
    def post_project(container: RequestContainer, body: NewProjectBody) -> ProjectView:
        return create_project(container.everywhere(), body.name)

    @routes.delete(
        "/projects/{name}",
        status_code=ACCEPTED,
        summary="Delete a project",
        response_class=Response,
    )
    def remove_project(
        container: RequestContainer, name: Annotated[str, Path(description="Its name.")]
    ) -> Response:
        """Close a project at once; its contents are deleted within minutes to hours."""
        delete_project(container.everywhere(), name)
        return Response(status_code=ACCEPTED)

    @routes.post(
        "/jobs/{job}/move", status_code=NO_CONTENT, summary="Move a job to another project"
    )
    def post_move(container: RequestContainer, job: str, body: MoveBody) -> Response:
        """Move a job with its sessions, reports and incidents; deliveries about it are deleted."""
        move_job(container, job, body.project)
        return Response(status_code=NO_CONTENT)

"""What is sent and answered about tokens, projects and the audit log."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from app.access.principals import ActorKind, Right, Role
from app.api.alerts.bodies.incidents import IncidentBody
from app.api.frame.answers import ReadBody

Name = Annotated[str, Field(min_length=1, max_length=100)]


class NewTokenBody(BaseModel):
    """A token to be made."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    scopes: Annotated[list[Right], Field(min_length=1)]
    project: Name | None = Field(default=None, description="Null: all projects.")
    expires_days: Annotated[int, Field(ge=1, le=3650)] | None = Field(
        default=90, description="Null: never."
    )
    owner: Name | None = Field(default=None, description="Without it, who makes it.")


class TokenBody(ReadBody):
    """A token without its secret; `begins` is what it starts with."""

    name: str
    begins: str
    scopes: list[Right] = Field(validation_alias="rights")
    project: str | None
    owner: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    valid: bool


class MadeTokenBody(BaseModel):
    """A token that was just made: `secret` is shown this once."""

    secret: str
    token: TokenBody


class TokenListBody(BaseModel):
    """Tokens by name."""

    tokens: list[TokenBody]


class RenewBody(BaseModel):
    """For how long a token is valid from now on."""

    model_config = ConfigDict(extra="forbid")

    expires_days: Annotated[int, Field(ge=1, le=3650)] = 90


class RoleBody(BaseModel):
    """What a user or program may do, and in which project."""

    model_config = ConfigDict(extra="forbid")

    role: Role | None = Field(description="Null: none.")
    project: Name | None = Field(default=None, description="Null: all projects.")


class GivenRoleBody(BaseModel):
    """A role of a user; for all projects where `project` is null."""

    project: str | None
    role: Role


class PersonBody(BaseModel):
    """A user; with a password of this server where `issuer` is null."""

    id: uuid.UUID
    name: str
    issuer: str | None
    roles: list[GivenRoleBody]
    created_at: datetime
    last_seen_at: datetime | None
    disabled_at: datetime | None


class PersonListBody(BaseModel):
    """People by name."""

    people: list[PersonBody]


class PersonChangeBody(BaseModel):
    """Whether the user is disabled."""

    model_config = ConfigDict(extra="forbid")

    disabled: bool


class NewProjectBody(BaseModel):
    """A project to be made."""

    model_config = ConfigDict(extra="forbid")

    name: Name


class MoveBody(BaseModel):
    """Where a job is to go."""

    model_config = ConfigDict(extra="forbid")

    project: Name


class ProjectBody(ReadBody):
    """A project and how much it has."""

    name: str
    created_at: datetime
    jobs: int
    members: int
    tokens: int


class ProjectListBody(BaseModel):
    """The projects that the caller may know of, by name."""

    projects: list[ProjectBody]


class EntryBody(ReadBody):
    """An entry of the audit log."""

    id: int
    at: datetime
    actor_kind: ActorKind
    actor: str
    action: str
    subject: str
    project: str | None
    detail: str | None
    count: int


class EntryListBody(BaseModel):
    """Entries, the newest first; `before` of the next request is the last one's id."""

    entries: list[EntryBody]


class JoinedIncidentBody(IncidentBody):
    """An incident of some project."""

    project: str


class JoinedIncidentListBody(BaseModel):
    """The first open incidents of all projects, or of one; `count` is of all of them."""

    count: int
    incidents: list[JoinedIncidentBody]

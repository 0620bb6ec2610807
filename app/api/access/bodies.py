"""What is sent and answered about tokens, projects and the audit log."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from app.access.principals import Right, Role
from app.api.alerts.bodies.incidents import IncidentBody
from app.services.access.audit import Entry
from app.services.access.people import PersonView
from app.services.access.projects import ProjectView
from app.services.access.tokens import TokenView

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
    owner: Name | None = Field(default=None, description="Default: the user who creates it.")


class MadeTokenBody(BaseModel):
    """A token that was just made: `secret` is shown this once."""

    secret: str
    token: TokenView


class TokenListBody(BaseModel):
    """Tokens by name."""

    tokens: list[TokenView]


class RenewBody(BaseModel):
    """For how long a token is valid from now on."""

    model_config = ConfigDict(extra="forbid")

    expires_days: Annotated[int, Field(ge=1, le=3650)] = 90


class RoleBody(BaseModel):
    """What a user or program may do, and in which project."""

    model_config = ConfigDict(extra="forbid")

    role: Role | None = Field(description="Null: none.")
    project: Name | None = Field(default=None, description="Null: all projects.")


class PersonListBody(BaseModel):
    """People by name."""

    people: list[PersonView]


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


class ProjectListBody(BaseModel):
    """The projects that the caller may know of, by name."""

    projects: list[ProjectView]


class EntryListBody(BaseModel):
    """Entries, the newest first; `before` of the next request is the last one's id."""

    entries: list[Entry]


class JoinedIncidentBody(IncidentBody):
    """An incident of some project."""

    project: str


class JoinedIncidentListBody(BaseModel):
    """The first open incidents of all projects, or of one; `count` is of all of them."""

    count: int
    incidents: list[JoinedIncidentBody]

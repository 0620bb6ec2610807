"""What people say of incidents over the API: of one, or of many at once."""

from __future__ import annotations

import uuid
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from app.inputs.values import Moment
from app.services.alerts.triage.orders import MOST

Person = Annotated[str, Field(min_length=1, max_length=200, description="The user who acts.")]
Note = Annotated[str, Field(max_length=2000)]

# Who signed in is believed, who did not may say so.
BY: Final = "The user who acts; taken from the sign-in where there is one."


class AckBody(BaseModel):
    """Who is at it."""

    by: Person | None = Field(default=None, description=BY)
    note: Note | None = None


class SilenceBody(BaseModel):
    """A silence: its end, and its reason."""

    by: Person | None = Field(default=None, description=BY)
    reason: Annotated[str, Field(min_length=1, max_length=2000)]
    until: Moment


class SaidBody(BaseModel):
    """A comment."""

    words: Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]
    by: Person | None = Field(default=None, description=BY)


class AssigneeBody(BaseModel):
    """The new assignee; null: none."""

    to: Person | None
    by: Person | None = Field(default=None, description=BY)


class ManyBody(BaseModel):
    """Incidents that an order is for."""

    incidents: Annotated[list[uuid.UUID], Field(min_length=1, max_length=MOST)]


class AcknowledgeManyBody(ManyBody, AckBody):
    """Acknowledge them."""

    order: Literal["acknowledge"]


class SilenceManyBody(ManyBody, SilenceBody):
    """Silence them."""

    order: Literal["silence"]


class ResolveManyBody(ManyBody, AckBody):
    """Resolve them."""

    order: Literal["resolve"]


class UnacknowledgeManyBody(ManyBody):
    """Take acknowledgements back."""

    order: Literal["unacknowledge"]
    by: Person | None = Field(default=None, description=BY)


class ReopenManyBody(ManyBody, AckBody):
    """Take back that they are over."""

    order: Literal["reopen"]


class AssignManyBody(ManyBody, AssigneeBody):
    """Say whose they are."""

    order: Literal["assign"]


OrderBody = Annotated[
    AcknowledgeManyBody
    | UnacknowledgeManyBody
    | SilenceManyBody
    | ResolveManyBody
    | ReopenManyBody
    | AssignManyBody,
    Field(discriminator="order"),
]

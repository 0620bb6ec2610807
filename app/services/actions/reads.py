"""Actions as lists and pages read them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field
from sqlalchemy import func, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB

from app.actions.states import ActionState
from app.db.models.hosts import HostRepair, MachineAction
from app.errors import NotFoundError
from app.lists.columns import Column
from app.lists.listing import Listing, read

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import Reads


_REPAIRED: Final = (
    select(func.max(HostRepair.at))
    .where(HostRepair.host == MachineAction.host, HostRepair.at > MachineAction.done_at)
    .scalar_subquery()
)


@dataclass(frozen=True, slots=True)
class ActionRow:
    """An action on a machine."""

    id: uuid.UUID
    kind: Annotated[str, Column(sort="kind")]
    host: Annotated[
        str,
        Column(sort="host"),
        Field(description="The machine; empty where it tells of a job that hangs."),
    ]
    state: ActionState
    limits: Annotated[
        Sequence[str],
        Column(csv=None),
        Field(description="What kept it from being done by itself, when it was last looked at."),
    ]
    command: Annotated[str, Field(description="What is done, as a command.")]
    job: str
    hang: Annotated[
        uuid.UUID | None,
        Column(type_coerce(MachineAction.hang, JSONB)["id"].astext),
        Field(description="The hang that it tells of."),
    ]
    cause: Annotated[str, Column(sort="cause")]
    incident_id: Annotated[uuid.UUID, Column(csv=None)]
    gpus: Annotated[Sequence[str], Column(csv=None)]
    confidence: float | None
    sessions: Annotated[int, Field(description="That blame the machine.")]
    lost_each_hour: Annotated[float | None, Field(description="GPU-hours.")]
    attempt: Annotated[int, Column(csv=None)]
    created_at: Annotated[datetime, Column(sort="-created")]
    ordered_at: datetime | None
    ordered_by: Annotated[
        str | None, Field(description="The person; null where every limit let it pass.")
    ]
    done_at: datetime | None
    release_ordered_at: Annotated[datetime | None, Column(csv=None)]
    released_by: Annotated[str | None, Field(description="The person; null where a repair helped.")]
    released_at: datetime | None
    repaired_at: Annotated[
        datetime | None,
        Column(_REPAIRED),
        Field(description="When a repair of the machine was last noted since it was done."),
    ]
    # error_code, error, answer: of the last attempt
    error_code: str | None
    error: str | None
    answer: Annotated[str | None, Column(csv=None)]


ACTIONS: Final = Listing(
    ActionRow,
    ties=(MachineAction.created_at.desc(), MachineAction.id.expression),
    model=MachineAction,
)


def list_actions(
    tx: Reads,
    limit: int,
    *,
    state: ActionState | None = None,
    host: str | None = None,
    incident: uuid.UUID | None = None,
) -> list[ActionRow]:
    """Return actions, the newest first."""
    where: list[ColumnElement[bool]] = []
    if state is not None:
        where.append(MachineAction.state == state)
    if host is not None:
        where.append(MachineAction.host == host)
    if incident is not None:
        where.append(MachineAction.incident_id == incident)
    return read(tx, ACTIONS, *where, limit=limit)


def get_action(tx: Reads, action_id: uuid.UUID) -> ActionRow:
    """Return an action.

    Raises
    ------
    NotFoundError
    """
    found = read(tx, ACTIONS, MachineAction.id == action_id, limit=1)
    if not found:
        raise NotFoundError(f"There is no action {action_id}.")
    return found[0]

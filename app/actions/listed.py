"""Reads of actions on machines: lists, the actions on one machine, and pending approvals."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field
from sqlalchemy import ARRAY, ColumnElement, Text, any_, func, literal, or_, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB

from app.actions.kinds.registry import KINDS, title_of
from app.actions.models import ActionMode, ActionPolicy, ActionState, ActionSwitch, MachineAction
from app.actions.policies import PolicyView, SwitchView, get_switch, list_policies
from app.actions.store import no_action
from app.analysis.diagnosis.causes.registry import KINDS as CAUSES
from app.hosts.models import HostRepair
from app.incidents.message import PendingAction
from app.platform.database.columns import as_json
from app.platform.database.unit_of_work import Reads
from app.platform.settings import Settings
from app.web.lists import Column, Listing, Page, PageRequest, read, read_page


def pending_actions(tx: Reads, hosts: Collection[str]) -> Mapping[str, list[PendingAction]]:
    """Return the actions that wait for approval on the hosts, by host; empty names are ignored."""
    named = sorted(filter(None, hosts))
    if not named:
        return {}
    rows = tx.session.execute(
        select(MachineAction.id, MachineAction.kind, MachineAction.host, MachineAction.command)
        .where(
            MachineAction.host == any_(literal(named, ARRAY(Text))),
            MachineAction.state == ActionState.ASKED,
        )
        .order_by(MachineAction.kind)
    )
    by_host: dict[str, list[PendingAction]] = {}
    for row in rows:
        action = PendingAction(row.id, title_of(row.kind), row.host, row.command)
        by_host.setdefault(row.host, []).append(action)
    return by_host


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
        Field(description="The machine; empty in a report of a job that hangs."),
    ]
    state: ActionState
    limits: Annotated[
        Sequence[str],
        Column(csv=None),
        Field(description="Limits that forbade an automatic action at the last decision."),
    ]
    command: Annotated[str, Field(description="Equivalent command of the action.")]
    job: str
    hang: Annotated[
        uuid.UUID | None,
        Column(type_coerce(MachineAction.hang, JSONB)["id"].astext),
        Field(description="The hang that it reports."),
    ]
    cause: Annotated[str, Column(sort="cause")]
    incident_id: Annotated[uuid.UUID, Column(csv=None)]
    gpus: Annotated[Sequence[str], Column(csv=None)]
    confidence: float | None
    sessions: Annotated[int, Field(description="Sessions that blame the machine.")]
    lost_each_hour: Annotated[float | None, Field(description="GPU-hours that the job loses.")]
    attempt: Annotated[int, Column(csv=None)]
    created_at: Annotated[datetime, Column(sort="-created")]
    ordered_at: datetime | None
    ordered_by: Annotated[
        str | None, Field(description="The person; null for an automatic action.")
    ]
    done_at: datetime | None
    release_ordered_at: Annotated[datetime | None, Column(csv=None)]
    released_by: Annotated[str | None, Field(description="The person; null after a repair.")]
    released_at: datetime | None
    repaired_at: Annotated[
        datetime | None,
        Column(_REPAIRED),
        Field(description="Time of the machine's last repair after the action."),
    ]
    # error_code, error, answer: outcome of the last attempt
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
    """Return actions, sorted from newest to oldest."""
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
    actions = read(tx, ACTIONS, MachineAction.id == action_id, limit=1)
    if not actions:
        raise no_action(action_id)
    return actions[0]


# Number of actions on a page.
PAGE: Final = 50
# Maximum of a machine's latest actions that other pages show.
OF_MACHINE: Final = 6
# Maximum of rows in a CSV file.
EXPORTED: Final = 100_000


class Show(StrEnum):
    """Groups of states that the list of actions can show."""

    ALL = "all"
    PERSON = "person"  # actions that a user may approve
    OUT = "out"  # actions that took a machine out of service, or are about to
    DRY_RUN = "dry_run"
    OVER = "over"


STATES_SHOWN: Final[Mapping[Show, tuple[str, ...]]] = {
    Show.ALL: tuple(ActionState),
    Show.PERSON: ActionState.ALLOWABLE,
    Show.OUT: ActionState.OUT,
    Show.DRY_RUN: (ActionState.DRY_RUN,),
    Show.OVER: (ActionState.DECLINED, ActionState.WITHDRAWN, ActionState.RELEASED),
}


@dataclass(frozen=True, slots=True)
class ActionsQuery:
    """The filters of the list of actions."""

    show: Show = Show.ALL
    kind: str = ""  # kind of the actions; empty: all kinds
    host: str = ""  # machine of the actions; empty: all machines
    words: str = ""  # words that must all occur in machine, job, cause or command


@dataclass(frozen=True, slots=True)
class ActionsFound:
    """A page of the list, with totals, policies and the kill switch."""

    now: datetime
    page: Page[ActionRow]
    counts: Mapping[str, int]  # number of matching actions by state
    policies: Sequence[PolicyView]
    switch: SwitchView


@dataclass(frozen=True, slots=True)
class MachineActions:
    """The latest actions on a machine, and the policies that are configured."""

    rows: Sequence[ActionRow]
    modes: Mapping[str, ActionMode]  # modes of the configured policies, by kind of action
    stopped: bool


def actions_found(
    tx: Reads, settings: Settings, query: ActionsQuery, request: PageRequest
) -> ActionsFound:
    """Return a page of actions with the policies and the kill switch."""
    where = _filters(query)
    states = tx.session.execute(
        select(MachineAction.state, func.count().label("number"))
        .where(*where)
        .group_by(MachineAction.state)
    )
    counts = {row.state: row.number for row in states}
    wanted = STATES_SHOWN[query.show]
    page = read_page(
        tx,
        ACTIONS,
        request,
        *where,
        MachineAction.state.in_(wanted),
        total=sum(number for state, number in counts.items() if state in wanted),
    )
    return ActionsFound(
        now=tx.now,
        page=page,
        counts=counts,
        policies=list_policies(tx),
        switch=get_switch(settings, tx),
    )


def exported_actions(tx: Reads, query: ActionsQuery, sort: str) -> list[ActionRow]:
    """Return all matching actions without pagination."""
    wanted = MachineAction.state.in_(STATES_SHOWN[query.show])
    return read(tx, ACTIONS, *_filters(query), wanted, sort=sort, limit=EXPORTED)


def _filters(query: ActionsQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.kind in KINDS:
        conditions.append(MachineAction.kind == query.kind)
    if query.host:
        conditions.append(MachineAction.host == query.host)
    for word in query.words.split():
        causes = [name for name, kind in CAUSES.items() if word.lower() in kind.title.lower()]
        conditions.append(
            or_(
                *(
                    column.icontains(word, autoescape=True)
                    for column in (MachineAction.host, MachineAction.job, MachineAction.command)
                ),
                MachineAction.cause.in_(causes),
            )
        )
    return conditions


def machine_actions(
    tx: Reads, settings: Settings, host: str, hang: uuid.UUID | None = None
) -> MachineActions:
    """Return the latest actions on a machine and the policies, read with one statement.

    Parameters
    ----------
    hang : UUID, optional
        Id of an incident about a hang, whose reports are returned instead.
    """
    about = MachineAction.host == host if hang is None else MachineAction.incident_id == hang
    latest = ACTIONS.query().where(about).order_by(*ACTIONS.order("")).limit(OF_MACHINE)
    policies = select(ActionPolicy.kind, ActionPolicy.mode)
    stopped = select(ActionSwitch.project_id).where(ActionSwitch.stopped_at.is_not(None))
    rows, modes, off = tx.session.execute(
        select(as_json(latest), as_json(policies), stopped.exists())
    ).one()
    return MachineActions(
        rows=ACTIONS.rows(rows or ()),
        modes={policy["kind"]: ActionMode(policy["mode"]) for policy in modes or ()},
        stopped=settings.actions_off or off,
    )

"""What the page of actions reads: the list that is asked for, the policies and the switch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, or_, select

from app.actions.kinds.registry import KINDS
from app.actions.states import ActionMode, ActionState
from app.analysis.diagnosis.causes.registry import KINDS as CAUSES
from app.db.json_values import as_json
from app.db.models.hosts import ActionPolicy, ActionSwitch, MachineAction
from app.lists.listing import read, read_page
from app.services.actions.policies import get_switch, list_policies
from app.services.actions.reads import ACTIONS, ActionRow

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import Reads
    from app.lists.listing import PageRequest
    from app.lists.pages import Page
    from app.services.actions.policies import PolicyView, SwitchView
    from app.settings import Settings

# Actions on a page.
PAGE: Final = 50
# Actions of a machine that other pages show.
OF_MACHINE: Final = 6
# Rows of a file at most.
EXPORTED: Final = 100_000


class Show(StrEnum):
    """Which actions are listed."""

    ALL = "all"
    PERSON = "person"  # a person may say yes
    OUT = "out"  # what was done, or is under way
    DRY_RUN = "dry_run"
    OVER = "over"


SHOWN: Final[Mapping[Show, tuple[str, ...]]] = {
    Show.ALL: tuple(ActionState),
    Show.PERSON: ActionState.ALLOWABLE,
    Show.OUT: ActionState.OUT,
    Show.DRY_RUN: (ActionState.DRY_RUN,),
    Show.OVER: (ActionState.DECLINED, ActionState.WITHDRAWN, ActionState.RELEASED),
}


@dataclass(frozen=True, slots=True)
class ActionsQuery:
    """What is asked for."""

    show: Show = Show.ALL
    kind: str = ""  # only of this kind
    host: str = ""  # only on this machine
    words: str = ""  # all of them in the machine, the job, the cause or the command


@dataclass(frozen=True, slots=True)
class ActionsFound:
    """What the page shows."""

    now: datetime
    page: Page[ActionRow]
    counts: Mapping[str, int]  # of those that match, whichever states are shown
    policies: Sequence[PolicyView]
    switch: SwitchView


@dataclass(frozen=True, slots=True)
class MachineActions:
    """What was done to a machine, the newest first, and what may be."""

    rows: Sequence[ActionRow]
    modes: Mapping[str, ActionMode]  # by kind, those that are configured
    stopped: bool


def actions_found(
    tx: Reads, settings: Settings, asked: ActionsQuery, request: PageRequest
) -> ActionsFound:
    """Return a page of actions with the policies and the switch."""
    where = _where(asked)
    states = tx.session.execute(
        select(MachineAction.state, func.count().label("number"))
        .where(*where)
        .group_by(MachineAction.state)
    )
    counts = {row.state: row.number for row in states}
    wanted = SHOWN[asked.show]
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


def exported_actions(tx: Reads, asked: ActionsQuery, sort: str) -> list[ActionRow]:
    """Return the actions that are asked for, on no pages."""
    wanted = MachineAction.state.in_(SHOWN[asked.show])
    return read(tx, ACTIONS, *_where(asked), wanted, sort=sort, limit=EXPORTED)


def _where(asked: ActionsQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if asked.kind in KINDS:
        found.append(MachineAction.kind == asked.kind)
    if asked.host:
        found.append(MachineAction.host == asked.host)
    for word in asked.words.split():
        causes = [name for name, kind in CAUSES.items() if word.lower() in kind.title.lower()]
        found.append(
            or_(
                *(
                    column.icontains(word, autoescape=True)
                    for column in (MachineAction.host, MachineAction.job, MachineAction.command)
                ),
                MachineAction.cause.in_(causes),
            )
        )
    return found


def machine_actions(
    tx: Reads, settings: Settings, host: str, hang: uuid.UUID | None = None
) -> MachineActions:
    """Return the latest actions on a machine and what is configured, with one statement.

    Parameters
    ----------
    hang : UUID, optional
        Instead of those on a machine, what is said about the hang that this incident is about.
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
        modes={one["kind"]: ActionMode(one["mode"]) for one in modes or ()},
        stopped=settings.actions_off or off,
    )

"""Actions as pages show them: where each stands and why, what is run, and what a person may say."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from app.actions.kinds.registry import title_of
from app.actions.limits import SENTENCES, Limit
from app.actions.states import ActionMode, ActionState
from app.alerts.message import cause_name
from app.analysis.wording import hours
from app.dashboard.ui import html
from app.dashboard.ui.format import percent, plural
from app.dashboard.ui.parts import StateLabel
from app.dashboard.ui.places import host_url

if TYPE_CHECKING:
    from markupsafe import Markup

    from app.services.actions.listed import MachineActions
    from app.services.actions.reads import ActionRow

STATES: Final[Mapping[ActionState, StateLabel]] = {
    ActionState.ASKED: StateLabel("pending", "Asks you", 0),
    ActionState.FAILED: StateLabel("fail", "Failed", 1),
    ActionState.HELD: StateLabel("wait", "Held", 2),
    ActionState.WAITING: StateLabel("run", "Under way", 3),
    ActionState.RELEASING: StateLabel("run", "Being undone", 4),
    ActionState.DONE: StateLabel("done", "Done", 5),
    ActionState.DRY_RUN: StateLabel("none", "Dry run", 6, quiet=True),
    ActionState.RELEASED: StateLabel("resolved", "Undone", 7, quiet=True),
    ActionState.DECLINED: StateLabel("none", "Declined", 8, quiet=True),
    ActionState.WITHDRAWN: StateLabel("none", "Withdrawn", 9, quiet=True),
}

REPAIRED: Final = (
    "A repair is noted since: where nothing runs no session can show that it helped, so probe the "
    "machine, or undo it once it is ready"
)


@dataclass(frozen=True, slots=True)
class ActionLine:
    """An action; equal lines show the same."""

    id: uuid.UUID
    host: str
    host_url: str
    kind: str
    state: StateLabel
    cause: str
    # how sure, and by how many sessions
    sure: str
    job: str
    incident_url: str
    why: str
    command: str
    at: datetime
    can_approve: bool
    can_decline: bool
    can_undo: bool
    # what the button that approves says
    approve: str

    @property
    def buttons(self) -> Markup:
        """Return what a person may say to it."""
        offered = (
            (self.can_approve, "allow", self.approve, "primary operates"),
            (self.can_decline, "decline", "Decline", "operates"),
            (self.can_undo, "release", "Undo", "operates"),
        )
        made = (
            html.element(
                "button",
                word,
                type="button",
                class_=classes,
                data_order=order,
                data_action=str(self.id),
                aria_label=f"{word}: {self.kind} on {self.host}",
                disabled=True,
            )
            for can, order, word, classes in offered
            if can
        )
        return html.element("span", *made, class_="actions")


def action_line(
    row: ActionRow, modes: Mapping[str, ActionMode], *, stopped: bool, rows: Sequence[ActionRow]
) -> ActionLine:
    """Return an action.

    Parameters
    ----------
    modes : mapping of str to ActionMode
        Policies by kind.
    stopped : bool
        Whether the kill switch is on.
    rows : sequence of ActionRow
        Those that are shown with it: of a machine one of a kind is open.
    """
    acting = modes.get(row.kind, ActionMode.OFF) in ActionMode.ACTING and not stopped
    hard = any(limit in Limit.HARD for limit in row.limits)
    taken = any(
        one.id != row.id and (one.kind, one.host) == (row.kind, row.host)
        for one in rows
        if one.state in ActionState.OPEN and row.hang is None
    )
    allowable = row.state in ActionState.ALLOWABLE and acting and not hard and not taken
    return ActionLine(
        id=row.id,
        host=row.host or row.job,
        host_url=host_url(row.host) if row.hang is None else f"/hangs/{row.hang}",
        kind=title_of(row.kind),
        state=STATES[row.state],
        cause=cause_name(row.cause),
        sure=_sure(row),
        job=row.job,
        incident_url=f"/incidents/{row.incident_id}",
        why=_why(row),
        command=row.command,
        at=row.released_at
        or row.release_ordered_at
        or row.done_at
        or row.ordered_at
        # of what is not ordered
        or row.created_at,
        can_approve=allowable,
        can_decline=row.state in ActionState.DECLINABLE,
        can_undo=row.state is ActionState.DONE and row.hang is None and not stopped,
        approve="Try again" if row.state is ActionState.FAILED else "Approve",
    )


def machine_lines(found: MachineActions) -> list[ActionLine]:
    """Return the actions on a machine."""
    return [
        action_line(row, found.modes, stopped=found.stopped, rows=found.rows) for row in found.rows
    ]


def limit_sentence(limit: str) -> str:
    """Return what a limit says, without its period."""
    known = limit in tuple(Limit)
    return SENTENCES[Limit(limit)].removesuffix(".") if known else limit


def _sure(row: ActionRow) -> str:
    parts = [] if row.confidence is None else [percent(row.confidence, 0)]
    parts += [plural(row.sessions, "session")] if row.hang is None else []
    if row.lost_each_hour is not None:
        parts.append(f"{hours(row.lost_each_hour)} GPU-hours each hour")
    return ", ".join(parts)


def _why(row: ActionRow) -> str:  # noqa: PLR0911 - a sentence for each state
    limits = _listed(row.limits)
    match row.state:
        case ActionState.ASKED:
            return f"By itself it would be held. {limits}" if limits else "Every limit is kept"
        case ActionState.HELD:
            return limits or "Its policy changed while it was ordered"
        case ActionState.DRY_RUN:
            return f"Would be held. {limits}" if limits else "Would be done: every limit is kept"
        case ActionState.FAILED:
            return _fault(row)
        case ActionState.WAITING | ActionState.RELEASING:
            by = _undone(row) if row.state is ActionState.RELEASING else _by(row.ordered_by)
            return f"{by}; {_fault(row)}, tried again" if row.error else by
        case ActionState.DONE:
            return _done(row)
        case ActionState.RELEASED:
            return _undone(row)
        case ActionState.DECLINED:
            return "A person said no"
        case ActionState.WITHDRAWN:
            return "Its incident ended, or its policy was turned off"


def _done(row: ActionRow) -> str:
    by = _by(row.ordered_by)
    if row.error:
        return f"{by}; could not be undone: {_fault(row)}"
    return f"{by}. {REPAIRED}" if row.repaired_at is not None else by


def _by(person: str | None) -> str:
    return "Every limit was kept" if person is None else f"Approved by {person}"


def _listed(limits: Sequence[str]) -> str:
    """Return what holds an action, as one sentence."""
    first, *rest = [limit_sentence(limit) for limit in limits] or [""]
    return "; ".join([first, *(f"{one[:1].lower()}{one[1:]}" for one in rest)])


def _undone(row: ActionRow) -> str:
    return "A repair helped" if row.released_by is None else f"Undone by {row.released_by}"


def _fault(row: ActionRow) -> str:
    said = " ".join((row.answer or "").split())
    error = (row.error or "").removesuffix(".")
    return f"{error}: {said}" if said and said not in error else error

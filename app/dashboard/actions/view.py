"""What the page of actions shows: what was done to machines, what asks, and what may be done."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from app.actions.kinds.registry import KINDS
from app.actions.states import ActionMode, ActionState
from app.dashboard.actions.lines import ActionLine, action_line
from app.dashboard.ui import html, moments
from app.dashboard.ui.choosing import Choice
from app.dashboard.ui.format import count, plural
from app.dashboard.ui.forms import Field, Option, fields_of
from app.dashboard.ui.parts import StateLabel
from app.dashboard.ui.tables import Drawn, Shown, drawn, pager, sorted_by
from app.services.actions.listed import SHOWN, Show
from app.services.actions.policies import NO_SCONTROL
from app.services.actions.reads import ACTIONS

if TYPE_CHECKING:
    from markupsafe import Markup

    from app.dashboard.ui.address import Address
    from app.lists.pages import Page
    from app.services.actions.listed import ActionsFound, ActionsQuery
    from app.services.actions.policies import PolicyView, SwitchView
    from app.services.actions.reads import ActionRow

PATH: Final = "/actions"
LABELS: Final = {
    Show.ALL: "All",
    Show.PERSON: "For a person",
    Show.OUT: "Out",
    Show.DRY_RUN: "Dry runs",
    Show.OVER: "Over",
}
MODES: Final = {
    ActionMode.OFF: Option("off", "Off", "Nothing is done"),
    ActionMode.DRY_RUN: Option("dry_run", "Dry run", "Says what would be done, with the command"),
    ActionMode.ASK: Option("ask", "Ask", "A person approves each action"),
    ActionMode.AUTOMATIC: Option("automatic", "Automatic", "Acts by itself within every limit"),
}
STOPPED: Final = StateLabel("warn", "Stopped", 0)


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """A kind of action, and what it may do; `fields` and `modes` are its form's."""

    kind: str
    title: str
    mode: str
    hint: str
    # when and by whom it was set; None where it never was
    changed_at: datetime | None
    changed_by: str
    fields: Sequence[Field]
    modes: Sequence[Option]
    chosen: ActionMode
    # why it cannot be configured; else empty
    unavailable: str


@dataclass(frozen=True, slots=True)
class ActionsPage:
    """The page; `version` changes when anything on it does that is not a mere age."""

    now: datetime
    title: str
    heading: str
    states: Sequence[tuple[StateLabel, str]]
    words: str
    parameters: Sequence[tuple[str, str]]
    choices: Sequence[Choice]
    # The machine that is asked for alone, and the page without it.
    host: str
    all_url: str
    list_title: str
    list_note: str
    table: Drawn
    nothing: str
    configured: bool
    switch: SwitchView
    policies: Sequence[PolicyLine]
    administers: bool
    version: str


def actions_page(
    found: ActionsFound,
    asked: ActionsQuery,
    address: Address,
    *,
    scontrol: bool,
    administers: bool,
) -> ActionsPage:
    """Return the page of actions.

    Parameters
    ----------
    scontrol : bool
        Whether the operator names scontrol.
    administers : bool
        Whether whoever asks may change the policies of the project.
    """
    modes = {one.kind: one.mode for one in found.policies}
    configured = any(one.changed_at is not None for one in found.policies)
    rows = found.page.rows
    lines = [action_line(row, modes, stopped=found.switch.stopped, rows=rows) for row in rows]
    shown = _columns(found.now)
    return ActionsPage(
        now=found.now,
        title=f"Actions: {_short(found)}",
        heading=_heading(found, configured=configured),
        states=[(STOPPED, "stopped")] if found.switch.stopped else [],
        words=asked.words,
        parameters=[
            (name, value)
            for name, value in address.parameters.items()
            if value and name not in {"q", "page"}
        ],
        choices=_choices(found, asked, address),
        host=asked.host,
        all_url=address.but(host=None, page=None),
        list_title=_list_title(found, asked),
        list_note=_list_note(found.page),
        table=drawn(
            shown,
            lines,
            csv=replace(address, path=f"{PATH}.csv").but(page=None),
            classes="inc acts",
            headings=sorted_by(ACTIONS, shown, address),
            pager=pager(found.page, address),
        ),
        nothing=_nothing(asked, configured=configured),
        configured=configured,
        switch=found.switch,
        policies=[_policy(one, scontrol=scontrol) for one in found.policies],
        administers=administers,
        version=_version(found, lines),
    )


_ORDERS: Final = html.element("span", "Approve, decline or undo", class_="vh")


def _columns(now: datetime) -> tuple[Shown[ActionLine], ...]:
    return (
        Shown("State", lambda line: html.state(line.state)),
        Shown("Machine", _machine, "host", of_cells="grow"),
        Shown("What and why", _what, of_cells="grow"),
        Shown("Since", lambda line: moments.ago(line.at, now), "created_at", "num opt"),
        Shown(_ORDERS, lambda line: line.buttons, of_cells="do"),
    )


def _machine(line: ActionLine) -> Markup:
    return html.link(line.host_url, line.host) + html.note(f"{line.kind} · {line.job}")


def _what(line: ActionLine) -> Markup:
    cause = html.link(line.incident_url, line.cause)
    return html.join(
        (
            html.element("span", cause, " ", html.muted(line.sure)),
            html.note(line.why),
            html.element("code", line.command, class_="cmd") if line.command else html.NOTHING,
        )
    )


def _short(found: ActionsFound) -> str:
    asked = found.counts.get(ActionState.ASKED, 0)
    return f"{count(asked)} ask" if asked else f"{count(sum(found.counts.values()))}"


def _heading(found: ActionsFound, *, configured: bool) -> str:
    if found.switch.stopped:
        return "All actions on machines are stopped"
    if not configured:
        return "Nothing is done to machines: no kind of action is configured"
    counts = found.counts
    parts = []
    if asked := counts.get(ActionState.ASKED, 0):
        parts.append(f"{plural(asked, 'action')} {'waits' if asked == 1 else 'wait'} for a person")
    if done := sum(counts.get(state, 0) for state in ActionState.OUT):
        parts.append(f"{plural(done, 'action')} in force")
    if failed := counts.get(ActionState.FAILED, 0):
        parts.append(f"{count(failed)} failed")
    if held := counts.get(ActionState.HELD, 0):
        parts.append(f"{count(held)} held by limits")
    if parts:
        return "; ".join(parts)
    dry = counts.get(ActionState.DRY_RUN, 0)
    return f"{plural(dry, 'action')} in a dry run: nothing is done" if dry else "Nothing to be done"


def _choices(found: ActionsFound, asked: ActionsQuery, address: Address) -> list[Choice]:
    return [
        Choice(
            one.value,
            f"{label} {count(sum(found.counts.get(state, 0) for state in SHOWN[one]))}",
            one is asked.show,
            address.but(show=None if one is Show.ALL else one, page=None),
        )
        for one, label in LABELS.items()
    ]


def _list_title(found: ActionsFound, asked: ActionsQuery) -> str:
    total = plural(found.page.total, "action")
    on = f" on {asked.host}" if asked.host else ""
    return f"{total}{on}" if found.page.total else f"No action{on}"


def _list_note(page: Page[ActionRow]) -> str:
    text = "A machine has at most one open action of a kind; the newest first"
    return text if page.pages == 1 else f"{text}; {count(page.first)} to {count(page.last)}"


def _nothing(asked: ActionsQuery, *, configured: bool) -> str:
    if asked.words or asked.host or asked.kind or asked.show is not Show.ALL:
        return "No action matches."
    if configured:
        return "No incident blames a machine since a policy was set."
    return (
        "Once a kind of action is configured, each incident that blames a machine gets a line here "
        "with the command: at first in a dry run, which does nothing."
    )


def _policy(one: PolicyView, *, scontrol: bool) -> PolicyLine:
    kind = KINDS[one.kind]
    known = one.changed_at is not None
    chosen = one.mode if known else ActionMode.DRY_RUN
    hosts = ", ".join(host for host in one.secrets.values() if host)
    hint = MODES[one.mode].hint
    return PolicyLine(
        kind=one.kind,
        title=kind.title,
        mode=MODES[one.mode].word if known else "Not configured",
        hint=f"{hint}; to {hosts}" if known and hosts else hint if known else "",
        changed_at=one.changed_at,
        changed_by=one.changed_by or "",
        fields=fields_of(
            kind.config,
            "config",
            values=one.config if known else None,
            secrets=kind.secrets,
            stored=one.secrets if known else None,
            prefix=f"{one.kind}-",
        ),
        modes=list(MODES.values()),
        chosen=chosen,
        unavailable=NO_SCONTROL if kind.needs_scontrol and not scontrol else "",
    )


def _version(found: ActionsFound, lines: Sequence[ActionLine]) -> str:
    parts: list[object] = [*lines]
    parts += [sorted(found.counts.items()), found.switch]
    parts += [(one.kind, one.mode, one.changed_at) for one in found.policies]
    return uuid.uuid5(uuid.NAMESPACE_OID, repr(parts)).hex

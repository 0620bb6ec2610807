"""The page of actions on machines: the list, the policies and the kill switch."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response
from markupsafe import Markup

from app.access.guard import RequestContainer
from app.actions.kinds.kind import SENTENCES, Limit
from app.actions.kinds.registry import KINDS, title_of
from app.actions.listed import (
    ACTIONS,
    PAGE,
    STATES_SHOWN,
    ActionRow,
    ActionsFound,
    ActionsQuery,
    MachineActions,
    Show,
    actions_found,
    exported_actions,
)
from app.actions.models import ActionMode, ActionState
from app.actions.policies import (
    NO_SCONTROL,
    PolicyView,
    SchedulerView,
    SwitchView,
    list_policies,
)
from app.analysis.wording import hours
from app.incidents.message import cause_name
from app.platform.identity import Right
from app.web import html, moments
from app.web.format import count, percent, plural
from app.web.forms import Choice, Field, Option, fields_of
from app.web.links import Address, QueryText, host_url, page_number
from app.web.lists import PageRequest
from app.web.pages import Pages
from app.web.parts import StateLabel
from app.web.tables import Drawn, Shown, Table, csv_file, drawn, pager, sorted_by

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
    """A row of the list of actions."""

    id: uuid.UUID
    host: str
    host_url: str
    kind: str
    state: StateLabel
    cause: str
    # confidence, number of sessions and cost, as text
    sure: str
    job: str
    incident_url: str
    why: str
    command: str
    at: datetime
    can_approve: bool
    can_decline: bool
    can_undo: bool
    # Label of the button that approves the action
    approve: str

    @property
    def buttons(self) -> Markup:
        """Return the buttons of the orders that are possible for the action."""
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
    """Return the row of an action.

    Parameters
    ----------
    modes : mapping of str to ActionMode
        Policies by kind.
    stopped : bool
        Whether the kill switch is on.
    rows : sequence of ActionRow
        The other rows shown: only one action of a kind may be open on a machine.
    """
    acting = modes.get(row.kind, ActionMode.OFF) in ActionMode.ACTING and not stopped
    hard = any(limit in Limit.HARD for limit in row.limits)
    taken = any(
        other.id != row.id and (other.kind, other.host) == (row.kind, row.host)
        for other in rows
        if other.state in ActionState.OPEN and row.hang is None
    )
    allowable = row.state in ActionState.ALLOWABLE and acting and not hard and not taken
    evidence = [] if row.confidence is None else [percent(row.confidence, 0)]
    evidence += [plural(row.sessions, "session")] if row.hang is None else []
    if row.lost_each_hour is not None:
        evidence.append(f"{hours(row.lost_each_hour)} GPU-hours each hour")
    return ActionLine(
        id=row.id,
        host=row.host or row.job,
        host_url=host_url(row.host) if row.hang is None else f"/hangs/{row.hang}",
        kind=title_of(row.kind),
        state=STATES[row.state],
        cause=cause_name(row.cause),
        sure=", ".join(evidence),
        job=row.job,
        incident_url=f"/incidents/{row.incident_id}",
        why=_why(row),
        command=row.command,
        at=row.released_at
        or row.release_ordered_at
        or row.done_at
        or row.ordered_at
        # The action has not been ordered yet
        or row.created_at,
        can_approve=allowable,
        can_decline=row.state in ActionState.DECLINABLE,
        can_undo=row.state is ActionState.DONE and row.hang is None and not stopped,
        approve="Try again" if row.state is ActionState.FAILED else "Approve",
    )


def machine_lines(actions: MachineActions) -> list[ActionLine]:
    """Return the rows of the actions on a machine."""
    return [
        action_line(row, actions.modes, stopped=actions.stopped, rows=actions.rows)
        for row in actions.rows
    ]


def limit_sentence(limit: str) -> str:
    """Return a limit as a sentence without its period."""
    is_known = limit in tuple(Limit)
    return SENTENCES[Limit(limit)].removesuffix(".") if is_known else limit


def _why(row: ActionRow) -> str:  # noqa: PLR0911 - a sentence for each state
    first, *rest = [limit_sentence(limit) for limit in row.limits] or [""]
    limits = "; ".join([first, *(f"{limit[:1].lower()}{limit[1:]}" for limit in rest)])
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


def _undone(row: ActionRow) -> str:
    return "A repair helped" if row.released_by is None else f"Undone by {row.released_by}"


def _fault(row: ActionRow) -> str:
    answer = " ".join((row.answer or "").split())
    error = (row.error or "").removesuffix(".")
    return f"{error}: {answer}" if answer and answer not in error else error


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
    """The policy of a kind of action, with the fields and modes of its form."""

    kind: str
    title: str
    mode: str
    hint: str
    # changed_at, changed_by: time of the last change, and the user; None if it was never set
    changed_at: datetime | None
    changed_by: str
    fields: Sequence[Field]
    modes: Sequence[Option]
    chosen: ActionMode
    # Reason why the kind cannot be configured; empty if it can be configured
    unavailable: str


@dataclass(frozen=True, slots=True)
class ActionsPage:
    """The content of the page; `version` changes with all content except ages."""

    now: datetime
    title: str
    heading: str
    states: Sequence[tuple[StateLabel, str]]
    words: str
    parameters: Sequence[tuple[str, str]]
    choices: Sequence[Choice]
    # host, all_url: the machine in the filter, and the page's address without the filter
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
    listed: ActionsFound,
    query: ActionsQuery,
    address: Address,
    *,
    scontrol: bool,
    administers: bool,
) -> ActionsPage:
    """Return the page of actions.

    Parameters
    ----------
    scontrol : bool
        Whether the operator set the path of scontrol.
    administers : bool
        Whether the user may change the policies of the project.
    """
    modes = {policy.kind: policy.mode for policy in listed.policies}
    configured = any(policy.changed_at is not None for policy in listed.policies)
    rows = listed.page.rows
    lines = [action_line(row, modes, stopped=listed.switch.stopped, rows=rows) for row in rows]
    shown: tuple[Shown[ActionLine], ...] = (
        Shown("State", lambda line: html.state(line.state)),
        Shown(
            "Machine",
            lambda line: (
                html.link(line.host_url, line.host) + html.note(f"{line.kind} · {line.job}")
            ),
            "host",
            of_cells="grow",
        ),
        Shown("What and why", _what, of_cells="grow"),
        Shown("Since", lambda line: moments.ago(line.at, listed.now), "created_at", "num opt"),
        Shown(_ORDERS, lambda line: line.buttons, of_cells="do"),
    )
    total = plural(listed.page.total, "action") if listed.page.total else "No action"
    note = "A machine has at most one open action of a kind; the newest first"
    if listed.page.pages != 1:
        note += f"; {count(listed.page.first)} to {count(listed.page.last)}"
    waiting = listed.counts.get(ActionState.ASKED, 0)
    content: list[object] = [*lines, sorted(listed.counts.items()), listed.switch]
    content += [
        (policy.kind, policy.mode, policy.changed_at, _scheduler_said(policy.scheduler))
        for policy in listed.policies
    ]
    return ActionsPage(
        now=listed.now,
        title=f"Actions: {count(waiting)} ask"
        if waiting
        else f"Actions: {count(sum(listed.counts.values()))}",
        heading=_heading(listed, configured=configured),
        states=[(STOPPED, "stopped")] if listed.switch.stopped else [],
        words=query.words,
        parameters=[
            (name, value)
            for name, value in address.parameters.items()
            if value and name not in {"q", "page"}
        ],
        choices=_choices(listed, query, address),
        host=query.host,
        all_url=address.but(host=None, page=None),
        list_title=f"{total} on {query.host}" if query.host else total,
        list_note=note,
        table=drawn(
            shown,
            lines,
            csv=replace(address, path=f"{PATH}.csv").but(page=None),
            classes="inc acts",
            headings=sorted_by(ACTIONS, shown, address),
            pager=pager(listed.page, address),
        ),
        nothing=_nothing(query, configured=configured),
        configured=configured,
        switch=listed.switch,
        policies=[_policy(policy, scontrol=scontrol) for policy in listed.policies],
        administers=administers,
        version=uuid.uuid5(uuid.NAMESPACE_OID, repr(content)).hex,
    )


_ORDERS: Final = html.element("span", "Approve, decline or undo", class_="vh")


def _what(line: ActionLine) -> Markup:
    cause = html.link(line.incident_url, line.cause)
    return html.join(
        (
            html.element("span", cause, " ", html.muted(line.sure)),
            html.note(line.why),
            html.element("code", line.command, class_="cmd") if line.command else html.NOTHING,
        )
    )


def _heading(listed: ActionsFound, *, configured: bool) -> str:
    if listed.switch.stopped:
        return "All actions on machines are stopped"
    if not configured:
        return "Nothing is done to machines: no kind of action is configured"
    counts = listed.counts
    parts = []
    if waiting := counts.get(ActionState.ASKED, 0):
        parts.append(
            f"{plural(waiting, 'action')} {'waits' if waiting == 1 else 'wait'} for a person"
        )
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


def _choices(listed: ActionsFound, query: ActionsQuery, address: Address) -> list[Choice]:
    return [
        Choice(
            choice.value,
            f"{label} {count(sum(listed.counts.get(state, 0) for state in STATES_SHOWN[choice]))}",
            choice is query.show,
            address.but(show=None if choice is Show.ALL else choice, page=None),
        )
        for choice, label in LABELS.items()
    ]


def _nothing(query: ActionsQuery, *, configured: bool) -> str:
    if query.words or query.host or query.kind or query.show is not Show.ALL:
        return "No action matches."
    if configured:
        return "No incident blames a machine since a policy was set."
    return (
        "Once a kind of action is configured, each incident that blames a machine gets a line here "
        "with the command: at first in a dry run, which does nothing."
    )


def _policy(policy: PolicyView, *, scontrol: bool) -> PolicyLine:
    kind = KINDS[policy.kind]
    is_set = policy.changed_at is not None
    chosen = policy.mode if is_set else ActionMode.DRY_RUN
    hosts = ", ".join(host for host in policy.secrets.values() if host)
    parts = [MODES[policy.mode].hint]
    parts += [f"to {hosts}"] if hosts else []
    if kind.scheduler is not None and policy.mode is not ActionMode.OFF:
        parts.append(_scheduler_said(policy.scheduler))
    return PolicyLine(
        kind=policy.kind,
        title=kind.title,
        mode=MODES[policy.mode].word if is_set else "Not configured",
        hint="; ".join(parts) if is_set else "",
        changed_at=policy.changed_at,
        changed_by=policy.changed_by or "",
        fields=fields_of(
            kind.config,
            "config",
            values=policy.config if is_set else None,
            secrets=kind.secrets,
            stored=policy.secrets if is_set else None,
            prefix=f"{policy.kind}-",
        ),
        modes=list(MODES.values()),
        chosen=chosen,
        unavailable=NO_SCONTROL if kind.needs_scontrol and not scontrol else "",
    )


def _scheduler_said(scheduler: SchedulerView | None) -> str:
    """Return what the scheduler said last about the project's nodes, as a part of a sentence."""
    if scheduler is None or (scheduler.answered_at is None and scheduler.error is None):
        return "the scheduler has not been asked yet"
    known = f"the scheduler ran jobs of this project on {plural(scheduler.nodes, 'node')}"
    return known if scheduler.error is None else f"{known}; {scheduler.error.removesuffix('.')}"


# Maximum length in characters of a filter; no host name is longer.
MAX_WORDS: Final = 300


def add_action_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the page of actions to the dashboard."""

    @routes.get(PATH)
    def actions_route(  # noqa: PLR0913 - what an address may ask for
        container: RequestContainer,
        *,
        q: QueryText = "",
        show: QueryText = "",
        kind: QueryText = "",
        host: QueryText = "",
        sort: QueryText = "",
        page: QueryText = "",
    ) -> Response:
        query = _asked(q, show, kind, host)
        request = PageRequest(sort, page_number(page), PAGE)
        with pages.reading(container) as (tx, nav):
            listed = actions_found(tx, container.settings, query, request)
        given = {"show": show, "kind": kind, "host": query.host, "q": query.words}
        shown = actions_page(
            listed,
            query,
            Address(PATH, {**given, "sort": sort, "page": page}),
            scontrol=container.settings.slurm_scontrol is not None,
            administers=Right.ADMIN in container.principal.rights_in(container.project_id),
        )
        return pages.render("actions/page.html", nav, page=shown, now=listed.now)

    @routes.get(f"{PATH}.csv")
    def actions_file_route(  # noqa: PLR0913 - what an address may ask for
        container: RequestContainer,
        *,
        q: QueryText = "",
        show: QueryText = "",
        kind: QueryText = "",
        host: QueryText = "",
        sort: QueryText = "",
    ) -> Response:
        with container.reading() as tx:
            rows = exported_actions(tx, _asked(q, show, kind, host), sort)
        return csv_file("paceline-actions.csv", Table.of(ActionRow, rows))

    @routes.get("/actions-policies.csv")
    def policies_file_route(container: RequestContainer) -> Response:
        with container.reading() as tx:
            policies = list_policies(tx)
        names = ("kind", "title", "mode", "changed_at", "changed_by")
        return csv_file("paceline-action-policies.csv", Table.of(PolicyView, policies, *names))


def _asked(words: str, show: str, kind: str, host: str) -> ActionsQuery:
    # PostgreSQL cannot store NUL characters in text.
    texts = (text.replace("\x00", "")[:MAX_WORDS] for text in (kind, host, words.strip()))
    return ActionsQuery(Show(show) if show in tuple(Show) else Show.ALL, *texts)

"""The selected incident: facts, history, messages, comments and actions on its machine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from markupsafe import Markup

from app.actions.listed import MachineActions
from app.actions.models import ActionState
from app.actions.pages import ActionLine, machine_lines
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.wording import NBSP, gpu_time, hours, percent
from app.incidents.channel_reads import ChannelView
from app.incidents.everywhere import Onset
from app.incidents.held_machines import cordon_commands_of, machine_of, place_of
from app.incidents.message import cause_name
from app.incidents.models.facts import NO_DATA_CAUSE, Facts, signed_percent
from app.incidents.models.tables import DeliveryState
from app.incidents.pages.channels import (
    MessageText,
    deliveries_table,
    deliveries_title,
    latest_message,
)
from app.incidents.pages.parts import (
    STATES,
    Actions,
    actions,
    failure_text,
    gain_text,
    job_count,
    labels,
    lost_each_hour,
    member_rows,
    session_url,
    since_when,
    title_of,
)
from app.incidents.reads import COMMENTS_LISTED, EventRow, IncidentRow, InsideRow
from app.incidents.views import IncidentLife
from app.web import html
from app.web.format import age, count, interval, listing, plural, times
from app.web.links import actions_url
from app.web.moments import when
from app.web.parts import Fact
from app.web.tables import Drawn, Shown, drawn

EVENT_WORDS: Final = {
    "opened": "Pending",
    "fired": "Firing",
    "acknowledged": "Acknowledged",
    "unacknowledged": "Acknowledgement taken back",
    "reopened": "Reopened",
    "silenced": "Silenced",
    "unsilenced": "Silence ended",
    "assigned": "Assigned",
    "escalated": "Escalated: critical from now on",
    "resolved": "Resolved",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """An entry in the history of an incident."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class CommentLine:
    """A comment on an incident."""

    at: datetime
    author: str
    words: str


@dataclass(frozen=True, slots=True)
class ChosenIncident:
    """The selected incident, shown next to the list of incidents."""

    actions: Actions
    severity: str
    assignee: str
    job: str
    job_url: str
    title: str
    subtitle: str
    # place, cost and best fix
    facts: Sequence[Fact]
    # onset of the slowdown, such as ``since 02:35 UTC, session 4, was 1.01×``; empty if the job is
    # not slow
    since: str
    session_url: str
    rules: str
    labels: str
    events: Sequence[Moment]
    message: MessageText | None
    deliveries: Drawn
    failing: str
    comments: Sequence[CommentLine]
    comments_title: str
    # name of the host at fault; empty if unknown
    host: str = ""
    # inside: members of this incident; lead_url: address of the incident of which this is a member
    inside: Drawn | None = None
    inside_title: str = ""
    lead_url: str = ""
    # the best fix, and commands that take a machine at fault out of service
    remedy: Sequence[str] = ()
    evidence_url: str = ""
    # doing, doing_url: actions on the incident's machine, and the page of these actions
    doing: Sequence[ActionLine] = ()
    doing_title: str = ""
    doing_url: str = ""


def chosen_incident(
    life: IncidentLife,
    channels: Sequence[ChannelView],
    onset: Onset | None = None,
    doing: MachineActions | None = None,
) -> ChosenIncident:
    """Return the content of the selected incident."""
    row, incident = life.view.row, life.view.row.incident
    facts = incident.facts
    job_url = f"/jobs/{quote(row.job, safe='')}"
    message = latest_message(life)
    fix = incident.facts.fix if incident.facts and incident.cause != NO_DATA_CAUSE else None
    words = [] if fix is None else [fix.title]
    words += [] if incident.hang is None else [incident.hang.remedy]
    members, number = member_rows(row), len(life.view.comments)
    comments_title = plural(number, "comment") if number else "No comments yet"
    if number == COMMENTS_LISTED:
        comments_title = f"The latest {number} comments"
    commands = cordon_commands_of(incident)
    return ChosenIncident(
        actions=actions(row, life.view.now),
        severity=incident.severity,
        assignee=row.assignee or "",
        job=row.job,
        job_url=job_url,
        title=title_of(row),
        subtitle=_subtitle(row, life.view.now),
        facts=_facts(row),
        since="" if onset is None else since_when(onset, life.view.now),
        session_url=session_url(incident, job_url),
        rules=listing(list(row.rules.values())) or "a deleted rule",
        labels=labels(facts),
        events=_events(life),
        message=message,
        deliveries=deliveries_table(
            life.deliveries, life.view.now, csv=f"/incidents/{incident.id}/deliveries.csv"
        ),
        failing=deliveries_title(life.deliveries, channels),
        comments=[
            CommentLine(comment.at, comment.author, comment.words) for comment in life.view.comments
        ],
        comments_title=comments_title,
        host=machine_of(incident),
        inside=drawn(_INSIDE, members, csv=f"/incidents/{incident.id}/inside.csv")
        if members
        else None,
        inside_title=_inside_title(row),
        lead_url=f"/incidents/{row.lead}" if row.lead else "",
        remedy=[*words, *(f"{scheduler}: {command}" for scheduler, command in commands)],
        evidence_url=f"/incidents/{incident.id}/evidence",
        doing=[] if doing is None else machine_lines(doing),
        doing_title=_doing_title(doing),
        doing_url=actions_url(machine_of(incident)) if machine_of(incident) else "/actions",
    )


_INSIDE: Final[tuple[Shown[InsideRow], ...]] = (
    Shown(
        "Job",
        lambda member: html.join(
            (
                html.link(f"/incidents/{member.id}", member.job, plain=True),
                " ",
                html.note(cause_name(member.cause)),
            )
        ),
        of_cells="grow",
    ),
    Shown("State", lambda member: html.state(STATES[member.state]), of_cells="nowrap"),
    Shown(
        "Slowdown",
        lambda member: "none" if member.slowdown is None else times(member.slowdown),
        classes="num",
    ),
    Shown(
        "Lost each hour",
        lambda member: "" if member.lost is None else hours(member.lost),
        classes="num",
    ),
)


def _doing_title(doing: MachineActions | None) -> str:
    rows = () if doing is None else doing.rows
    waiting = sum(row.state is ActionState.ASKED for row in rows)
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        return f"{plural(waiting, 'action')} on its machine {verb} for you"
    return "Actions on its machine"


def _facts(row: IncidentRow) -> list[Fact]:
    """Return the place, the cost and the best fix, which the first screen shows."""
    hang = row.incident.hang
    if hang is not None:
        costs = f"{count(hang.ranks)}{NBSP}GPU-hours each hour"
        return [Fact("Culprits", hang.culprits), Fact("Costs", costs)]
    facts = row.incident.facts
    shown = _notice_facts(row)
    if facts is None or row.incident.cause == NO_DATA_CAUSE:
        return shown
    cause = next(
        (
            candidate
            for candidate in facts.causes
            if candidate.cause == row.incident.diagnosed_cause
        ),
        None,
    )
    if cause is not None and cause.gpus:
        more = len(cause.gpus) - 1
        shown.append(Fact("Where", cause.gpus[0].words, f"and {count(more)} more" if more else ""))
    rate = lost_each_hour(row)
    if rate is not None and row.incident.notice is None:
        shown.append(Fact("Costs", f"{hours(rate)}{NBSP}GPU-hours each hour"))
    if facts.fix is not None:
        note = f"{gain_text(facts.fix.gain)} a step{', at most' if facts.fix.at_most else ''}"
        shown.append(Fact("Best fix", facts.fix.title, note))
    return shown


def _notice_facts(row: IncidentRow) -> list[Fact]:
    """Return the outcome, the cost and the measured gain of a notice of the pulse."""
    notice = row.incident.notice
    if notice is None:
        return []
    shown = [Fact("Checked", notice.checked[0].upper() + notice.checked[1:])]
    rate = lost_each_hour(row)
    so_far = f"{gpu_time(notice.gpu_hours)} {'so far' if notice.cleared_at is None else 'in all'}"
    if rate is not None and notice.cleared_at is None:
        shown.append(Fact("Costs", f"{hours(rate)}{NBSP}GPU-hours each hour", so_far))
    elif notice.gpu_hours:
        shown.append(Fact("Costs", so_far))
    if notice.realized is not None and notice.cleared_at is not None:
        fix = None if row.incident.facts is None else row.incident.facts.fix
        predicted = "" if fix is None else f"predicted {signed_percent(-fix.gain)}"
        brought = f"{signed_percent(-notice.realized)} a step"
        shown.append(Fact("Since it is over", brought, predicted))
    return shown


def _inside_title(row: IncidentRow) -> str:
    if not job_count(row):
        return ""
    if row.incident.cause == NO_DATA_CAUSE:
        return f"{job_count(row)} went silent at the same time: one incident"
    machine = place_of(row.incident.where, row.incident.facts)
    return f"{job_count(row)} on {machine}: one machine, one incident"


def _subtitle(row: IncidentRow, now: datetime) -> str:
    incident, facts = row.incident, row.incident.facts
    if incident.hang is not None:
        return incident.hang.sentence
    if incident.notice is not None:
        measured = "" if facts is None else f"; {_measured(facts)}"
        return f"{incident.notice.sentence}{measured}"
    if incident.cause == NO_DATA_CAUSE:
        if facts is None:
            return "It has never sent a session"
        ago = age((now - facts.received_at).total_seconds())
        return f"No session since session {facts.number}, {ago} ago"
    return _measured(facts)


def _measured(facts: Facts | None) -> str:
    shown = None if facts is None else facts.headline
    if facts is not None and facts.withheld is not None:
        lost = hours(facts.withheld.gpu_hours_lost)
        share = percent(facts.withheld.waste, 0)
        return (
            f"Its causes take {share} of each step, {lost} GPU-hours lost in session "
            f"{facts.number}; S is withheld"
        )
    if facts is None or shown is None:
        return "No session with a verdict belongs to it"
    published = shown.kind is HeadlineKind.PUBLISHED
    measured = f"{'S' if published else 'Slowdown'} {times(shown.slowdown, 3)}"
    if shown.ci95:
        measured += f" (95\N{NO-BREAK SPACE}%: {interval(*shown.ci95)})"
    against = "" if published else " against the job without its causes"
    lost = f"{hours(shown.gpu_hours_lost)} GPU-hours lost in session {facts.number}"
    return f"{measured}{against}, {lost}"


def _events(life: IncidentLife) -> list[Moment]:
    """Return transitions and delivered and failed messages, sorted from oldest to newest."""
    moments = [(event.at, _event_text(event, life)) for event in life.view.events]
    delivered = sorted(
        (
            sent
            for sent in life.deliveries
            if sent.state == DeliveryState.DELIVERED and sent.finished_at
        ),
        key=lambda sent: sent.number,
    )
    for _, group in itertools.groupby(delivered, key=lambda sent: sent.number):
        sents = list(group)
        names = listing(
            [
                sent.channel + ("" if sent.answer_status is None else f" ({sent.answer_status})")
                for sent in sents
            ]
        )
        moments.append((max(s.finished_at or s.created_at for s in sents), f"Sent to {names}"))
    for sent in life.deliveries:
        if sent.state == DeliveryState.FAILED:
            why = failure_text(sent.error, sent.answer)
            moments.append(
                (sent.finished_at or sent.created_at, f"Not sent to {sent.channel}: {why}")
            )
    moments.sort(key=lambda moment: moment[0])
    return [Moment(at, text) for at, text in moments]


def _event_text(event: EventRow, life: IncidentLife) -> str:
    word = EVENT_WORDS.get(event.event, event.event)
    session = life.sessions.get(event.session) if event.session else None
    if event.event in ("opened", "fired") and session is not None:
        if life.view.row.incident.cause == NO_DATA_CAUSE:
            return f"{word}: no session since session {session.number}"
        measured = "" if session.slowdown is None else f" measured {times(session.slowdown)}"
        return f"{word}: session {session.number}{measured}"
    by = f" by {event.actor}" if event.actor else ""
    if event.event == "assigned":
        return f"{word} to {event.note or 'no one'}{by}"
    silence = life.view.row.incident.silence
    note = f": {event.note}" if event.note else ""
    if event.event == "silenced" and silence is not None:
        return Markup("{} until {}{}{}").format(word, when(silence.until, life.view.now), by, note)
    return f"{word}{by}{note}"

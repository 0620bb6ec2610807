"""The page of incidents with its lists, and the printable evidence of an incident."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from app.actions.listed import MachineActions
from app.actions.pages import machine_lines
from app.analysis.diagnosis.causes.registry import blames_machine
from app.analysis.wording import hours
from app.fixes.applied import Realized, realized_fixes
from app.fixes.pages import AppliedFixes, applied_fixes
from app.incidents.channel_reads import ChannelView, Tally
from app.incidents.everywhere import Onset
from app.incidents.grouping import Status
from app.incidents.message import Alert
from app.incidents.models.tables import IncidentState
from app.incidents.pages.channels import channels_title, health_table
from app.incidents.pages.life import ChosenIncident, chosen_incident
from app.incidents.pages.list import (
    PATH,
    FilterBar,
    IncidentsQuery,
    filter_bar,
    open_table,
    over_table,
    page_url,
)
from app.incidents.pages.parts import STATES, dead_channels, member_rows, title_of
from app.incidents.reads import IncidentRow, InsideRow
from app.incidents.text import lines_of
from app.incidents.triage import Evidence
from app.incidents.views import IncidentLife, Incidents
from app.plans.of_session import Remedies, remedies
from app.platform.database.unit_of_work import Reads
from app.web.format import count, percent, plural, times
from app.web.moments import plain
from app.web.parts import StateLabel
from app.web.tables import Drawn

WARNING: Final = StateLabel("warn", "", 0)

# The title names the job if it causes at least this share of the total loss.
NAMED_SHARE: Final = 0.3
SORTED: Final = {
    "severity": "severity",
    "state": "state",
    "job": "job",
    "slowdown": "slowdown",
    "lost": "GPU-hours that the job loses each hour",
    "since": "when it fired",
    "assignee": "assignee",
}


@dataclass(frozen=True, slots=True)
class IncidentsPage:
    """The content of the page; `version` changes with all content except ages."""

    now: datetime
    title: str
    heading: str
    states: Sequence[tuple[StateLabel, str]]
    filters: FilterBar
    list_title: str
    list_note: str
    previous_url: str
    next_url: str
    over_title: str
    # Whether the page lists only resolved incidents
    over_alone: bool
    chosen: ChosenIncident | None
    selected: bool
    channels_title: str
    channels: Drawn
    version: str
    table: Drawn
    over_table: Drawn


def incidents_page(  # noqa: PLR0913 - all data of the page
    listed: Incidents,
    life: IncidentLife | None,
    channels: Sequence[ChannelView],
    tallies: Mapping[uuid.UUID, Tally],
    query: IncidentsQuery,
    *,
    onset: Onset | None = None,
    doing: MachineActions | None = None,
    chosen: bool = False,
) -> IncidentsPage:
    """Return the page of incidents.

    Parameters
    ----------
    onset : Onset, optional
        Onset of the slowdown of the selected incident's job.
    doing : MachineActions, optional
        Actions on the selected incident's machine.
    chosen : bool
        Whether the address names the selected incident.
    """
    chosen_id = life.view.row.incident.id if life else None
    fire = listed.counts.get(IncidentState.FIRING, 0)
    short = f"{count(fire)} firing" if fire else "none firing"
    if query.narrowed or listed.filtered.over:
        short = f"{count(listed.total)} found"
    number, files = listed.number, query.address("/incidents.csv")
    title = f"Incidents: {short}"
    if life is not None and chosen:
        word = STATES[life.view.row.incident.state].word.lower()
        title = f"{title_of(life.view.row)}, {word} ({short})"
    return IncidentsPage(
        now=listed.now,
        title=title,
        heading=_heading(listed, narrowed=query.narrowed),
        states=_states(listed, channels),
        filters=filter_bar(query, listed),
        list_title=_list_title(listed),
        list_note=_list_note(listed, query),
        previous_url=page_url(PATH, query, number - 1) if number > 1 else "",
        next_url=page_url(PATH, query, number + 1) if number < listed.pages else "",
        over_title=_over_title(listed),
        over_alone=listed.filtered.over,
        chosen=None if life is None else chosen_incident(life, channels, onset, doing),
        selected=chosen and life is not None,
        channels_title=channels_title(channels),
        channels=health_table(channels, tallies, listed.now),
        version=_version(listed, life, channels, doing),
        table=open_table(listed, query, chosen_id, csv=files.but()),
        over_table=over_table(
            listed, query, chosen_id, csv=files.but(state=IncidentState.RESOLVED.value)
        ),
    )


def first_of(listed: Incidents) -> uuid.UUID | None:
    """Return the list's first incident, shown if the address names none; None if it is empty."""
    rows = [item.row for item in listed.over] if listed.filtered.over else listed.present
    return rows[0].incident.id if rows else None


def _heading(listed: Incidents, *, narrowed: bool) -> str:
    fire, total = listed.counts.get(IncidentState.FIRING, 0), sum(listed.counts.values())
    matching = "matching " if narrowed else ""
    if listed.filtered.over:
        return f"{plural(total, f'{matching}incident')} {'is' if total == 1 else 'are'} over"
    if not total:
        return "No open incident matches" if narrowed else "No incident is open"
    if not fire:
        return f"Nothing {matching}fires; {plural(total, f'{matching}incident')} open"
    verb, costs = ("fires", "costs") if fire == 1 else ("fire", "cost")
    subject = plural(fire, f"{matching}incident")
    lost = listed.lost.get(IncidentState.FIRING)
    if lost is None:
        return f"{subject} {verb}"
    return f"{subject} {verb} and {costs} {hours(lost.hourly)} GPU-hours each hour"


def _list_title(listed: Incidents) -> str:
    if not listed.present:
        return "Nothing to list"
    total = sum(listed.counts.values())
    if listed.filtered.state is not None:
        return (
            f"{count(listed.total)} {STATES[listed.filtered.state].word.lower()} of {count(total)}"
        )
    text = f"{count(listed.counts.get(IncidentState.FIRING, 0))} firing of {count(total)} open"
    lost = listed.lost.get(IncidentState.FIRING)
    if lost and lost.jobs > 1 and lost.hourly > 0 and lost.most / lost.hourly >= NAMED_SHARE:
        text += f"; {lost.job} loses {percent(lost.most / lost.hourly, 0)} of the hours"
    return text


def _list_note(listed: Incidents, query: IncidentsQuery) -> str:
    """Return a sentence on the list's order, and on the part of the list that is shown."""
    if not listed.present and query.narrowed:
        return "Try other words or fewer conditions"
    if not listed.present:
        return "An incident opens when the condition of an alert rule holds for a job"
    text = "Severity first, then firing ones, then GPU-hours that the job loses each hour"
    if query.sort:
        text = f"By {SORTED[query.sort.removeprefix('-')]}"
    shown = len(listed.present)
    if shown < listed.total:
        first = listed.size * (listed.number - 1) + 1
        text += f"; {count(first)} to {count(first + shown - 1)} of {count(listed.total)}"
    if any(row.inside for row in listed.present):
        text += "; jobs on one slow machine, or silent together, are one incident"
    return text


def _over_title(listed: Incidents) -> str:
    shown = len(listed.over)
    if listed.filtered.over:
        text = f"{plural(listed.total, 'incident')} over"
        first = listed.size * (listed.number - 1) + 1
        of = f"; {count(first)} to {count(first + shown - 1)}"
        return f"{text}{of}" if shown < listed.total else text
    text = f"{plural(listed.over_count, 'incident')} ended in the last 7 days"
    return text if shown >= listed.over_count else f"{text}; the latest {shown}"


def _states(listed: Incidents, channels: Sequence[ChannelView]) -> list[tuple[StateLabel, str]]:
    states = [
        (label, f"{count(listed.counts[state])} {label.word.lower()}")
        for state, label in STATES.items()
        if listed.counts.get(state)
    ]
    dead_count = len(dead_channels(channels))
    if dead_count:
        verb = "channel is dead" if dead_count == 1 else "channels are dead"
        states.append((WARNING, f"{dead_count} {verb}"))
    if not any(channel.enabled for channel in channels):
        states.append((WARNING, "no channel: no messages are sent"))
    return states


def _version(
    listed: Incidents,
    life: IncidentLife | None,
    channels: Sequence[ChannelView],
    doing: MachineActions | None,
) -> str:
    """Return a short text that changes only if the content of the page changes."""
    parts: list[object] = [
        (
            row.incident.id,
            row.incident.state,
            row.incident.severity,
            row.assignee,
            [(member.id, member.state) for member in row.inside],
        )
        for row in listed.present
    ]
    parts += [sorted(listed.counts.items()), listed.over_count]
    parts += [(channel.id, channel.enabled, channel.failures) for channel in channels]
    if life is not None:
        parts += [len(life.view.events), len(life.view.comments)]
        parts += [*((s.id, s.state, s.attempt) for s in life.deliveries)]
    if doing is not None:
        parts += machine_lines(doing)
    return uuid.uuid5(uuid.NAMESPACE_OID, repr(parts)).hex


def remedies_of(tx: Reads, row: IncidentRow) -> Remedies:
    """Return the fixes applied while an incident was open, and the plan of its session's job."""
    facts = row.incident.facts
    return remedies(
        tx,
        job=row.job,
        since=row.incident.opened_at,
        until=row.incident.resolved_at,
        planned_by=None if facts is None else facts.session,
    )


def fixes_of(job_remedies: Remedies, url: str, now: datetime) -> AppliedFixes:
    """Return the table of applied fixes, with the accuracy of their predictions if not empty."""
    shown = job_remedies if job_remedies.applied else replace(job_remedies, calibrations={})
    return applied_fixes(shown, f"{url}/fixes.csv", now)


def realized_of(tx: Reads, row: IncidentRow) -> Sequence[Realized]:
    """Return the applied fixes with their measured gains."""
    return realized_fixes(
        tx, job=row.job, since=row.incident.opened_at, until=row.incident.resolved_at
    )


@dataclass(frozen=True, slots=True)
class EvidencePage:
    """The content of the printable page; `picture` is a data URL of the heatmap."""

    id: uuid.UUID
    now: datetime
    title: str
    chosen: ChosenIncident
    members: Sequence[InsideRow]
    summary: str
    fields: Sequence[tuple[str, str]]
    evidence: Sequence[str]
    host: str
    commands: Sequence[tuple[str, str]]
    no_commands: str
    picture: str
    zip_url: str
    incident_url: str


def evidence_page(evidence: Evidence) -> EvidencePage:
    """Return an incident's printable page for people who repair the machine."""
    view = evidence.life.view
    incident, chosen = view.row.incident, chosen_incident(evidence.life, [])
    over = incident.state is IncidentState.RESOLVED
    lines = lines_of(
        Alert(
            incident=incident.id,
            fingerprint=incident.fingerprint,
            # The status is always firing, so that resolved incidents show their measurements too.
            status=Status.FIRING,
            severity=incident.severity,
            cause=incident.cause,
            where=incident.where,
            rules=tuple(view.row.rules.values()),
            since=incident.fired_at or incident.opened_at,
            resolved_at=incident.resolved_at,
            why_resolved=incident.why_resolved,
            value=incident.value,
            facts=incident.facts,
            hang=incident.hang,
            notice=incident.notice,
            view_url="",
            incident_url="",
        ),
        incident.resolved_at or view.now,
    )
    return EvidencePage(
        id=incident.id,
        now=view.now,
        title=f"Evidence: {chosen.title}",
        chosen=chosen,
        members=member_rows(view.row),
        summary=lines.summary if not over else f"Over: {lines.summary}",
        fields=lines.fields,
        evidence=lines.evidence,
        host=evidence.host,
        commands=evidence.commands,
        no_commands=_no_commands(evidence),
        picture=""
        if evidence.picture is None
        else f"data:image/png;base64,{base64.b64encode(evidence.picture).decode()}",
        zip_url=f"/incidents/{incident.id}/evidence.zip",
        incident_url=f"/incidents/{incident.id}",
    )


def evidence_text(page: EvidencePage) -> str:
    """Return the printable page as plain text."""
    parts = [page.title, "", page.summary]
    parts += [f"{name}: {value}" for name, value in page.fields]
    parts += [f"- {sentence}" for sentence in page.evidence]
    if page.members:
        parts += ["", page.chosen.inside_title]
        slowdowns = ((each.job, each.slowdown) for each in page.members)
        parts += [f"- {job}: {'none' if s is None else times(s)}" for job, s in slowdowns]
    if page.commands:
        parts += ["", *(f"{scheduler}: {command}" for scheduler, command in page.commands)]
    parts += ["", "Times are UTC"]
    parts += [f"{moment.at:%Y-%m-%d %H:%M} {plain(moment.text)}" for moment in page.chosen.events]
    parts += [
        f"{said.at:%Y-%m-%d %H:%M} {said.author}: {said.words}" for said in page.chosen.comments
    ]
    return "\n".join(parts) + "\n"


def _no_commands(evidence: Evidence) -> str:
    if evidence.commands:
        return ""
    if evidence.guessed:
        return (
            "The host's name is a guess, as it is that of a container: there is no command. "
            "Let the job say its node"
        )
    if evidence.host:
        return "The host's name is not a valid name of one node: there is no command"
    if not blames_machine(evidence.life.view.row.incident.diagnosed_cause):
        return "No host is at fault: there is no command"
    return "Its sessions name no host: there is no command"

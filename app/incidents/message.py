"""The content of messages to channels; `app.incidents.text` formats it as text.

A message is made at the first attempt of its delivery and stored: each later attempt sends the same
content under the same id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, urlencode
from uuid import UUID

from pydantic import TypeAdapter

from app.analysis.diagnosis.causes.registry import KINDS, title_of
from app.analysis.diagnosis.finding import UNKNOWN
from app.incidents.grouping import Content, IncidentItem, Status
from app.incidents.held_machines import MemberIncident, machine_of, place_of, silent_since
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import (
    ALL_SLOW_CAUSE,
    BETWEEN_STEPS_CAUSE,
    HANG_CAUSE,
    LOW_QUALITY_CAUSE,
    NO_DATA_CAUSE,
    REGRESSION_CAUSE,
    TITLES,
    Facts,
    HangFacts,
    NoticeFacts,
)
from app.incidents.models.rules import Severity
from app.platform.database.projects import DEFAULT_PROJECT

# From this number of silent jobs, the message suggests that they have one common reason.
MANY_SILENT: Final = 3

# Titles of causes that only alert rules have; all other titles are in the diagnosis's registry.
_TITLES: Final[Mapping[str, str]] = {
    **{str(kind): title for kind, title in TITLES.items()},
    NO_DATA_CAUSE: "No data",
    HANG_CAUSE: "Hang",
    LOW_QUALITY_CAUSE: "Trace quality too low for a verdict",
    REGRESSION_CAUSE: "Slower than the job's own baseline",
    BETWEEN_STEPS_CAUSE: "Time is lost between steps",
    ALL_SLOW_CAUSE: "All workers compute slower in some steps",
}


@dataclass(frozen=True, slots=True)
class MemberJob:
    """A job whose incident blames the same machine, and its slowdown if known."""

    job: str
    slowdown: float | None


@dataclass(frozen=True, slots=True)
class PendingAction:
    """An action on a machine that waits for a user's approval."""

    action: UUID
    kind: str  # title of the kind of action, such as ``Slurm``
    host: str
    command: str  # command that is executed once the action is approved


@dataclass(frozen=True, slots=True)
class Alert:
    """An incident in a message."""

    incident: UUID
    fingerprint: str  # see `app.incidents.lifecycle.fingerprint_of`
    status: Status
    severity: Severity
    cause: str
    where: str
    rules: tuple[str, ...]  # names of the rules whose conditions hold
    since: datetime  # when the incident fired
    resolved_at: datetime | None
    why_resolved: str | None
    value: float | None  # value that the rule compared with its threshold
    facts: Facts | None  # facts of the incident's latest session
    view_url: str  # address of the page of the session, hang or job
    incident_url: str  # address of the incident's page, where users give orders
    news: bool = True  # whether the channel was not sent this state before
    jobs: tuple[MemberJob, ...] = ()  # other jobs on the same machine, the slowest first
    job: str = ""  # name of the job, only in a digest; else the message has it
    hang: HangFacts | None = None  # only of an incident about a hang
    silent_since: datetime | None = None  # time of the last data of a job without sessions
    notice: NoticeFacts | None = None  # only of an incident about a notice of the pulse
    asks: tuple[PendingAction, ...] = ()  # actions on the machine that wait for approval

    @property
    def diagnosed_cause(self) -> str:
        """Return the cause; for a notice of the pulse, the cause that a session diagnosed."""
        return self.cause if self.notice is None else self.notice.cause or self.cause

    @property
    def incident_link(self) -> str:
        """Return the text of the link to the incident."""
        return "Acknowledge" if self.status is Status.FIRING else "Incident"

    @property
    def of_many(self) -> bool:
        """Return whether the alert is about several jobs that went silent at the same time."""
        return self.cause == NO_DATA_CAUSE and bool(self.jobs)

    @property
    def subject(self) -> str:
        """Return cause and place in one line, without the job."""
        if self.of_many:
            return silent_together(1 + len(self.jobs), self.silent_since or self.since)
        place = f": {place_of(self.where, self.facts)}" if self.where else ""
        of = f"{self.job}: " if self.job else ""
        return f"{of}{cause_name(self.cause)}{place}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message about the incidents of a group to one channel."""

    id: UUID
    """Id of the message, the same in every attempt to send it."""
    number: int
    """Sequence number within the group."""
    at: datetime
    """Time at which the message was made."""
    job: str
    receiver: str
    """Name of the channel that receives the message."""
    alerts: tuple[Alert, ...]
    """Open incidents first, then resolved ones."""
    base_url: str
    """Address of the project's pages; ends with a slash."""
    repeat: timedelta
    """Interval after which the same content is sent again."""
    test: bool = False
    """Whether the message is an example, which its text says."""
    digest: bool = False
    """Whether the message has alerts of several jobs; `job` is then the most affected one."""
    channel: UUID | None = None
    """Id of the channel that receives the message; None in an example."""
    project: str = DEFAULT_PROJECT
    """Name of the project of the job."""

    def key_of(self, alert: Alert) -> str:
        """Return the identity of an alert's incident among those of all projects.

        Projects may have jobs of the same name, whose incidents have the same fingerprint.
        """
        of = "" if self.project == DEFAULT_PROJECT else f"{self.project}-"
        return f"{of}{alert.fingerprint}"

    @property
    def present(self) -> list[Alert]:
        """Return the alerts whose incidents are open."""
        return [alert for alert in self.alerts if alert.status is not Status.RESOLVED]

    @property
    def resolved(self) -> list[Alert]:
        """Return the alerts whose incidents ended."""
        return [alert for alert in self.alerts if alert.status is Status.RESOLVED]

    @property
    def firing(self) -> bool:
        """Return whether any incident in the message is open."""
        return bool(self.present)

    @property
    def main(self) -> Alert:
        """Return the first alert, which the title names."""
        return self.alerts[0]

    @property
    def group_key(self) -> str:
        """Return the group's identity as receivers see it."""
        if self.digest:
            return f'{{}}:{{digest="{self.id}"}}'
        of = "" if self.project == DEFAULT_PROJECT else f'project="{self.project}", '
        return f'{{}}:{{{of}job="{self.job}"}}'

    @property
    def job_url(self) -> str:
        """Return the address of the job's page; for a digest, of the list of incidents."""
        if self.digest:
            return f"{self.base_url}incidents"
        return job_url(self.base_url, self.job)

    @property
    def _counted(self) -> str:
        """Return the numbers of incidents and jobs as text."""
        jobs = {alert.job for alert in self.alerts}
        jobs |= {member.job for alert in self.alerts for member in alert.jobs}
        over = len(self.resolved)
        ended = f" and {over} over" if over and self.firing else ""
        opened = len(self.present) if self.firing else over
        return f"{opened} incidents{ended} in {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}"

    def with_alerts(self, alerts: Sequence[Alert]) -> Message:
        """Return a digest of the alerts of many jobs, the worst first."""
        ordered = tuple(sorted(alerts, key=_severity_order))
        return replace(self, job=ordered[0].job, alerts=ordered)

    @property
    def title(self) -> str:
        """Return a title of one line with state, job and cause."""
        mark = "TEST · " if self.test else ""
        if not self.firing:
            state = "RESOLVED"
        elif any(alert.severity == "critical" for alert in self.present):
            state = "CRITICAL"
        else:
            state = "FIRING"
        if self.digest:
            return f"{mark}[{state}] {self._counted}; worst {self.main.subject}"
        more = len(self.alerts) - 1
        rest = f" (and {more} more)" if more else ""
        if self.main.of_many:
            return f"{mark}[{state}] {self.main.subject}{rest}"
        others = len({member.job for member in self.main.jobs} - {self.job})
        jobs = f" and {others} {'job' if others == 1 else 'jobs'} more" if others else ""
        return f"{mark}[{state}] {self.job}{jobs}: {self.main.subject}{rest}"


def _severity_order(alert: Alert) -> tuple[bool, bool, bool, float]:
    shown = alert.facts.known if alert.facts else None
    return (
        alert.status is Status.RESOLVED,
        alert.severity != "critical",
        alert.severity == "info",
        -(shown.slowdown if shown else 0.0),
    )


MESSAGE: Final = TypeAdapter(Message)


def make_message(  # noqa: PLR0913 - all parts of a message
    *,
    id: UUID,  # noqa: A002 - the message's field
    number: int,
    at: datetime,
    job: str,
    receiver: str,
    content: Content,
    sent_before: set[IncidentItem],
    incidents: Mapping[UUID, Incident],
    rule_names: Mapping[UUID, str],
    base_url: str,
    repeat: timedelta,
    inside: Mapping[UUID, Sequence[MemberIncident]] = MappingProxyType({}),
    asks: Mapping[str, Sequence[PendingAction]] = MappingProxyType({}),
    channel: UUID | None = None,
    project: str = DEFAULT_PROJECT,
) -> Message:
    """Return the message for a content.

    Parameters
    ----------
    at : datetime
    incidents : mapping of UUID to Incident
        All incidents in `content`, by id.
    asks : mapping of str to sequence of PendingAction
        Actions that wait for approval, by machine.
    """
    alerts = [
        replace(
            _alert(
                incidents[item.incident],
                item,
                rule_names,
                base_url,
                job=job,
                news=item not in sent_before,
            ),
            jobs=_member_jobs(inside.get(item.incident, ())),
            asks=()
            if item.status is Status.RESOLVED
            else tuple(asks.get(machine_of(incidents[item.incident]), ())),
        )
        for item in (*content.present, *content.resolved)
    ]
    # Sort open alerts first; among open alerts critical ones first; among these new ones first.
    alerts.sort(
        key=lambda alert: (
            alert.status is Status.RESOLVED,
            alert.severity != "critical",
            not alert.news,
            alert.since,
        )
    )
    return Message(
        *(id, number, at, job, receiver, tuple(alerts), base_url, repeat),
        channel=channel,
        project=project,
    )


def _member_jobs(members: Sequence[MemberIncident]) -> tuple[MemberJob, ...]:
    jobs = [
        MemberJob(
            member.job,
            facts.headline.slowdown
            if (facts := member.incident.facts) and facts.headline
            else None,
        )
        for member in members
    ]
    return tuple(sorted(jobs, key=lambda job: (-(job.slowdown or 0.0), job.job)))


def _alert(  # noqa: PLR0913 - all parts of an alert
    incident: Incident,
    item: IncidentItem,
    rule_names: Mapping[UUID, str],
    base_url: str,
    *,
    job: str,
    news: bool,
) -> Alert:
    of_job = incident.notice is not None and incident.facts is None and incident.hang is None
    return Alert(
        incident=incident.id,
        fingerprint=incident.fingerprint,
        status=item.status,
        severity=incident.severity,
        cause=incident.cause,
        where=incident.where,
        rules=tuple(rule_names[id_] for id_ in incident.rules if id_ in rule_names),
        since=incident.fired_at or incident.opened_at,
        resolved_at=incident.resolved_at,
        why_resolved=incident.why_resolved,
        value=incident.value,
        facts=incident.facts,
        view_url=job_url(base_url, job)
        if of_job
        else view_url(base_url, incident.facts, incident.hang),
        notice=incident.notice,
        hang=incident.hang,
        incident_url=f"{base_url}incidents/{incident.id}",
        news=news,
        silent_since=silent_since(incident) if incident.cause == NO_DATA_CAUSE else None,
    )


def silent_together(jobs: int, since: datetime | None = None) -> str:
    """Return a sentence about several jobs that stopped sending data at the same time."""
    text = f"{jobs} jobs silent" + (f" since {since:%H:%M} UTC" if since else " at the same time")
    return f"{text}: the network or the collector?" if jobs >= MANY_SILENT else text


def cause_name(cause: str) -> str:
    """Return the title of a cause."""
    return _TITLES.get(cause) or title_of(cause)


def known_causes() -> tuple[str, ...]:
    """Return all causes that incidents of this version may have."""
    return (*_TITLES, *KINDS, UNKNOWN)


def view_url(base_url: str, facts: Facts | None, hang: HangFacts | None = None) -> str:
    """Return the address of a hang, or of the worst worker in the worst step of a session."""
    if hang is not None:
        return f"{base_url}hangs/{hang.id}"
    if facts is None:
        return base_url
    query: dict[str, int] = {}
    if facts.worst_step is not None:
        query["step"] = facts.worst_step
    if facts.worst:
        query |= {"dp": facts.worst[0].dp, "pp": facts.worst[0].pp}
    address = f"{base_url}sessions/{facts.session}"
    return f"{address}?{urlencode(query)}" if query else address


def job_url(base_url: str, job: str) -> str:
    """Return the address of a job's page."""
    return f"{base_url}jobs/{quote(job, safe='')}"

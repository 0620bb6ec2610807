"""The content of a message, before it is put into words.

A message is made once, when its delivery is first tried, and stored: every later try says the
same under the same id.
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
from app.incidents.held_machines import Inside, machine_of, place_of, silent_since
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

# From this number of jobs that went silent together, one reason is likelier than many.
MANY_SILENT: Final = 3

# Causes of alerts that the diagnosis does not have.
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
class JobInside:
    """A job that stands inside of an incident, and how slow it is where that is known."""

    job: str
    slowdown: float | None


@dataclass(frozen=True, slots=True)
class PendingAction:
    """An action on the machine of an incident that waits for a person."""

    action: UUID
    kind: str  # as people call it
    host: str
    command: str  # what is run when they say yes


@dataclass(frozen=True, slots=True)
class Alert:
    """An incident in a message."""

    incident: UUID
    fingerprint: str  # the same for the same thing, also when it comes back
    status: Status
    severity: Severity
    cause: str
    where: str
    rules: tuple[str, ...]  # names of the rules that hold it
    since: datetime  # when it fired
    resolved_at: datetime | None
    why_resolved: str | None
    value: float | None  # what the rule compared
    facts: Facts | None  # of its latest session
    view_url: str  # the view of the dashboard that shows it
    incident_url: str  # where to acknowledge, silence and resolve it
    news: bool = True  # whether the channel has not been told this before
    jobs: tuple[JobInside, ...] = ()  # others that blame the same machine, the slowest first
    job: str = ""  # in a digest, else empty: the message's
    hang: HangFacts | None = None  # that it is about
    silent_since: datetime | None = None  # of a job that sends nothing
    notice: NoticeFacts | None = None  # of the pulse, that it is about
    asks: tuple[PendingAction, ...] = ()  # what a person may have done to its machine

    @property
    def diagnosed_cause(self) -> str:
        """Return its cause; of a notice of the pulse that which a session names, if it does."""
        return self.cause if self.notice is None else self.notice.cause or self.cause

    @property
    def incident_link(self) -> str:
        """Return the text of the link to the incident: the action that it offers."""
        return "Acknowledge" if self.status is Status.FIRING else "Incident"

    @property
    def of_many(self) -> bool:
        """Return whether it is about many jobs that went silent together, and about none alone."""
        return self.cause == NO_DATA_CAUSE and bool(self.jobs)

    @property
    def subject(self) -> str:
        """Return what is wrong and where, without the job."""
        if self.of_many:
            return silent_together(1 + len(self.jobs), self.silent_since or self.since)
        place = f": {place_of(self.where, self.facts)}" if self.where else ""
        of = f"{self.job}: " if self.job else ""
        return f"{of}{cause_name(self.cause)}{place}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a group to one channel."""

    id: UUID
    """The same on every try."""
    number: int
    """Rises within the group."""
    at: datetime
    """When it was made."""
    job: str
    receiver: str
    """Name of the channel."""
    alerts: tuple[Alert, ...]
    """What is going on first, then what is over."""
    base_url: str
    """Of the dashboard; ends with a slash."""
    repeat: timedelta
    """After this time the same is told again."""
    test: bool = False
    """A test message: it only has to arrive."""
    digest: bool = False
    """Whether it is of many jobs; `job` is the worst one's then."""
    channel: UUID | None = None
    """To which it goes; None of an example."""

    @property
    def present(self) -> list[Alert]:
        """Return the alerts whose incidents are open."""
        return [alert for alert in self.alerts if alert.status is not Status.RESOLVED]

    @property
    def resolved(self) -> list[Alert]:
        """Return the alerts whose incidents are over."""
        return [alert for alert in self.alerts if alert.status is Status.RESOLVED]

    @property
    def firing(self) -> bool:
        """Return whether an incident is open."""
        return bool(self.present)

    @property
    def main(self) -> Alert:
        """Return the alert that leads the message."""
        return self.alerts[0]

    @property
    def group_key(self) -> str:
        """Return the identity of the group, as receivers see it."""
        return f'{{}}:{{digest="{self.id}"}}' if self.digest else f'{{}}:{{job="{self.job}"}}'

    @property
    def job_url(self) -> str:
        """Return the page of the job; of a digest the incidents."""
        if self.digest:
            return f"{self.base_url}incidents"
        return job_url(self.base_url, self.job)

    @property
    def _counted(self) -> str:
        """Return of how many incidents and jobs it is."""
        jobs = {alert.job for alert in self.alerts}
        jobs |= {one.job for alert in self.alerts for one in alert.jobs}
        over = len(self.resolved)
        ended = f" and {over} over" if over and self.firing else ""
        opened = len(self.present) if self.firing else over
        return f"{opened} incidents{ended} in {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}"

    def with_alerts(self, alerts: Sequence[Alert]) -> Message:
        """Return a digest of alerts of many jobs, the worst first."""
        ordered = tuple(sorted(alerts, key=_badness))
        return replace(self, job=ordered[0].job, alerts=ordered)

    @property
    def title(self) -> str:
        """Return one line: state, job, what."""
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
        others = len({one.job for one in self.main.jobs} - {self.job})
        jobs = f" and {others} {'job' if others == 1 else 'jobs'} more" if others else ""
        return f"{mark}[{state}] {self.job}{jobs}: {self.main.subject}{rest}"


def _badness(alert: Alert) -> tuple[bool, bool, bool, float]:
    shown = alert.facts.known if alert.facts else None
    return (
        alert.status is Status.RESOLVED,
        alert.severity != "critical",
        alert.severity == "info",
        -(shown.slowdown if shown else 0.0),
    )


MESSAGE: Final = TypeAdapter(Message)


def make_message(  # noqa: PLR0913 - everything that is fixed at this moment
    *,
    id: UUID,  # noqa: A002 - what it is
    number: int,
    at: datetime,
    job: str,
    receiver: str,
    content: Content,
    told_before: set[IncidentItem],
    incidents: Mapping[UUID, Incident],
    rule_names: Mapping[UUID, str],
    base_url: str,
    repeat: timedelta,
    inside: Mapping[UUID, Sequence[Inside]] = MappingProxyType({}),
    asks: Mapping[str, Sequence[PendingAction]] = MappingProxyType({}),
    channel: UUID | None = None,
) -> Message:
    """Return the message that says `content`.

    Parameters
    ----------
    at : datetime
    incidents : mapping of UUID to Incident
        All those in `content`.
    repeat : timedelta
    asks : mapping of str to sequence of PendingAction
        Actions that wait for a person, by machine.
    """
    alerts = [
        replace(
            _alert(
                incidents[item.incident],
                item,
                rule_names,
                base_url,
                job=job,
                news=item not in told_before,
            ),
            jobs=_jobs(inside.get(item.incident, ())),
            asks=_asks(incidents[item.incident], item, asks),
        )
        for item in (*content.present, *content.resolved)
    ]
    # Open alerts first, among them critical ones, among them new ones.
    alerts.sort(
        key=lambda alert: (
            alert.status is Status.RESOLVED,
            alert.severity != "critical",
            not alert.news,
            alert.since,
        )
    )
    return Message(id, number, at, job, receiver, tuple(alerts), base_url, repeat, channel=channel)


def _asks(
    incident: Incident, item: IncidentItem, asks: Mapping[str, Sequence[PendingAction]]
) -> tuple[PendingAction, ...]:
    over = item.status is Status.RESOLVED
    return () if over else tuple(asks.get(machine_of(incident), ()))


def _jobs(inside: Sequence[Inside]) -> tuple[JobInside, ...]:
    found = [
        JobInside(
            one.job,
            facts.headline.slowdown if (facts := one.incident.facts) and facts.headline else None,
        )
        for one in inside
    ]
    return tuple(sorted(found, key=lambda one: (-(one.slowdown or 0.0), one.job)))


def _alert(  # noqa: PLR0913 - what it is made of
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
    """Return what is wrong where several jobs stopped sending at the same time, and since when."""
    text = f"{jobs} jobs silent" + (f" since {since:%H:%M} UTC" if since else " at the same time")
    return f"{text}: the network or the collector?" if jobs >= MANY_SILENT else text


def cause_name(cause: str) -> str:
    """Return a cause as people call it."""
    return _TITLES.get(cause) or title_of(cause)


def known_causes() -> tuple[str, ...]:
    """Return every cause that an incident of this version may have."""
    return (*_TITLES, *KINDS, UNKNOWN)


def view_url(base_url: str, facts: Facts | None, hang: HangFacts | None = None) -> str:
    """Return the address of the view that shows it: the worst worker of the worst step, a hang."""
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

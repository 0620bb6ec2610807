"""What a message says, before any channel gives it a form.

A message is made once, when its delivery is first tried, and stored: every later try sends the
same words under the same id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote, urlencode
from uuid import UUID

from pydantic import TypeAdapter

from app.alerts.facts import UNKNOWN_CAUSE, Facts, WorkerFact
from app.alerts.grouping import Content, Item, Status
from app.alerts.incidents import Incident
from app.alerts.readings import LOW_QUALITY_CAUSE, NO_DATA_CAUSE, REGRESSION_CAUSE
from app.alerts.rules import Severity
from app.analysis.wording import NBSP, hours, percent

# Who gets more is told how many more there are; the page has them all.
MAX_ALERTS: Final = 10

# Of the workers after the worst, those that slow the job down by so much.
WORTH_NAMING: Final = 1.01

_CAUSES: Final[Mapping[str, str]] = {
    UNKNOWN_CAUSE: "Cause unknown",
    NO_DATA_CAUSE: "No data",
    LOW_QUALITY_CAUSE: "Trace quality too low for a verdict",
    REGRESSION_CAUSE: "Slower than the job's own baseline",
}


@dataclass(frozen=True, slots=True)
class Alert:
    """An incident in a message.

    Parameters
    ----------
    incident : UUID
    fingerprint : str
        The same for the same thing, also when it comes back.
    status : Status
    severity : str
    cause, where : str
    rules : tuple of str
        Names of the rules that hold it.
    since : datetime
        When it fired.
    resolved_at : datetime or None
    why_resolved : str or None
    value : float or None
        What the rule compared.
    facts : Facts or None
        Of its latest session.
    view_url : str
        The view of the dashboard that shows it.
    incident_url : str
        Where to acknowledge, silence and resolve it.
    news : bool
        Whether the channel has not been told this before.
    """

    incident: UUID
    fingerprint: str
    status: Status
    severity: Severity
    cause: str
    where: str
    rules: tuple[str, ...]
    since: datetime
    resolved_at: datetime | None
    why_resolved: str | None
    value: float | None
    facts: Facts | None
    view_url: str
    incident_url: str
    news: bool = True

    @property
    def incident_link(self) -> str:
        """Return what the link to the incident is called: what there is to do."""
        return "Acknowledge" if self.status is Status.FIRING else "Incident"

    @property
    def headline(self) -> str:
        """Return what is wrong and where, without the job."""
        place = f": {self.where}" if self.where else ""
        return f"{cause_name(self.cause)}{place}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a group to one channel.

    Parameters
    ----------
    id : UUID
        The same on every try.
    number : int
        Rises within the group.
    at : datetime
        When it was made.
    job : str
    receiver : str
        Name of the channel.
    alerts : tuple of Alert
        What is going on first, then what is over.
    base_url : str
        Of the dashboard; ends with a slash.
    repeat : timedelta
        After this time the same is told again.
    test : bool
        Somebody only wants to see whether it arrives.
    """

    id: UUID
    number: int
    at: datetime
    job: str
    receiver: str
    alerts: tuple[Alert, ...]
    base_url: str
    repeat: timedelta
    test: bool = False

    @property
    def present(self) -> list[Alert]:
        """Return what is going on."""
        return [alert for alert in self.alerts if alert.status is not Status.RESOLVED]

    @property
    def resolved(self) -> list[Alert]:
        """Return what is over."""
        return [alert for alert in self.alerts if alert.status is Status.RESOLVED]

    @property
    def firing(self) -> bool:
        """Return whether anything is going on."""
        return bool(self.present)

    @property
    def main(self) -> Alert:
        """Return the alert that leads the message."""
        return self.alerts[0]

    @property
    def group_key(self) -> str:
        """Return the identity of the group, as receivers see it."""
        return f'{{}}:{{job="{self.job}"}}'

    @property
    def job_url(self) -> str:
        """Return the page of the job."""
        return job_url(self.base_url, self.job)

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
        more = len(self.alerts) - 1
        rest = f" (and {more} more)" if more else ""
        return f"{mark}[{state}] {self.job}: {self.main.headline}{rest}"


MESSAGE: Final = TypeAdapter(Message)


@dataclass(frozen=True, slots=True)
class Lines:
    """An alert in words: pairs of a name and a value, and sentences of evidence."""

    summary: str
    fields: Sequence[tuple[str, str]] = field(default_factory=tuple)
    evidence: Sequence[str] = field(default_factory=tuple)


def make_message(  # noqa: PLR0913 - everything that is fixed at this moment
    *,
    id: UUID,  # noqa: A002 - what it is
    number: int,
    at: datetime,
    job: str,
    receiver: str,
    content: Content,
    told_before: set[Item],
    incidents: Mapping[UUID, Incident],
    rule_names: Mapping[UUID, str],
    base_url: str,
    repeat: timedelta,
) -> Message:
    """Return the message that says `content`.

    Parameters
    ----------
    id : UUID
    number : int
    at : datetime
    job, receiver : str
    content : Content
    told_before : set of Item
        What the channel surely knows.
    incidents : mapping of UUID to Incident
        All those in `content`.
    rule_names : mapping of UUID to str
    base_url : str
    repeat : timedelta
    """
    alerts = [
        _alert(incidents[item.incident], item, rule_names, base_url, news=item not in told_before)
        for item in (*content.present, *content.resolved)
    ]
    # What is going on first, of that the critical, of that what is new.
    alerts.sort(
        key=lambda alert: (
            alert.status is Status.RESOLVED,
            alert.severity != "critical",
            not alert.news,
            alert.since,
        )
    )
    return Message(id, number, at, job, receiver, tuple(alerts), base_url, repeat)


def _alert(
    incident: Incident,
    item: Item,
    rule_names: Mapping[UUID, str],
    base_url: str,
    *,
    news: bool,
) -> Alert:
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
        view_url=view_url(base_url, incident.facts),
        incident_url=f"{base_url}incidents/{incident.id}",
        news=news,
    )


def cause_name(cause: str) -> str:
    """Return a cause as people call it."""
    return _CAUSES.get(cause) or cause.replace("_", " ").capitalize()


def view_url(base_url: str, facts: Facts | None) -> str:
    """Return the address of the view that shows the worst worker of the worst step."""
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


def lines_of(alert: Alert, at: datetime) -> Lines:
    """Return an alert in words.

    Parameters
    ----------
    alert : Alert
    at : datetime
        When the message was made; ages count from here.
    """
    if alert.status is Status.RESOLVED:
        lasted = (alert.resolved_at or at) - alert.since
        return Lines(
            f"{alert.headline}: over after {duration(lasted)}",
            [("Because", alert.why_resolved)] if alert.why_resolved else [],
        )
    facts = alert.facts
    fields = []
    if alert.cause == NO_DATA_CAUSE:
        fields.append(("No session since", moment(facts.received_at) if facts else "it was added"))
    elif facts is not None:
        fields += _measured(alert, facts)
    fields.append(("Since", f"{moment(alert.since)} ({duration(at - alert.since)})"))
    if alert.rules:
        fields.append(("Rule", ", ".join(alert.rules)))
    return Lines(_summary(alert), fields, _evidence(alert))


def _summary(alert: Alert) -> str:
    facts = alert.facts
    slow = alert.cause not in (NO_DATA_CAUSE, LOW_QUALITY_CAUSE)
    if facts is None or facts.slowdown is None or not slow:
        return alert.headline
    return f"{alert.headline}. The job is {facts.slowdown:.2f}× slower than ideal."


def _measured(alert: Alert, facts: Facts) -> list[tuple[str, str]]:
    fields = []
    if facts.slowdown is not None:
        fields.append(("Slowdown S", _slowdown(facts.slowdown, facts.slowdown_ci95)))
    if facts.gpu_hours_lost is not None:
        fields.append(("GPU-hours lost", f"{hours(facts.gpu_hours_lost)} in this session"))
    if alert.cause == REGRESSION_CAUSE and alert.value is not None:
        fields.append(("Against baseline", f"steps take {percent(alert.value)} longer"))
    if alert.cause == LOW_QUALITY_CAUSE and facts.discrepancy is not None:
        fields.append(("Discrepancy", percent(facts.discrepancy)))
    cause = next((cause for cause in facts.causes if cause.cause == alert.cause), None)
    if cause is not None and cause.confidence is not None:
        fields.append(("Confidence", percent(cause.confidence, 0)))
    if facts.worst:
        named = [facts.worst[0], *(w for w in facts.worst[1:] if w.slowdown >= WORTH_NAMING)]
        fields.append(("Worst workers", "; ".join(_worker(worker) for worker in named)))
    if facts.fix is not None:
        gain = percent(facts.fix.gain)
        fields.append(("Best fix", f"{facts.fix.title} (predicted gain {gain})"))
    fields.append(("Session", f"{facts.number}, received {moment(facts.received_at)}"))
    return fields


def _slowdown(value: float, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return f"{value:.3f}"
    low, high = interval
    return f"{value:.3f} (95{NBSP}%: {low:.3f}–{high:.3f})"


def _worker(worker: WorkerFact) -> str:
    host = f"{worker.host} " if worker.host else ""
    return f"{host}(DP {worker.dp}, PP {worker.pp}) {worker.slowdown:.2f}×"


def _evidence(alert: Alert) -> list[str]:
    if alert.facts is None:
        return []
    return [
        sentence
        for cause in alert.facts.causes
        if cause.cause == alert.cause
        for sentence in cause.evidence
    ]


def moment(at: datetime) -> str:
    """Return a time as people on several continents read it."""
    return at.strftime("%Y-%m-%d %H:%M UTC")


def duration(span: timedelta) -> str:
    """Return a span in its two largest units."""
    minutes = max(0, int(span.total_seconds() // 60))
    days, minutes = divmod(minutes, 24 * 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{days} d"] if days else []
    parts += [f"{hours} h"] if hours else []
    parts += [f"{minutes} min"] if minutes or not parts else []
    return " ".join(parts[:2])


def clip(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters; what is cut off shows."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def plain_text(message: Message) -> str:
    """Return the whole message as plain text."""
    parts = [message.title, ""]
    for alert in message.alerts[:MAX_ALERTS]:
        lines = lines_of(alert, message.at)
        parts.append(lines.summary)
        parts += [f"  {name}: {value}" for name, value in lines.fields]
        parts += [f"  · {sentence}" for sentence in lines.evidence]
        parts += [f"  Open: {alert.view_url}", f"  {alert.incident_link}: {alert.incident_url}", ""]
    more = len(message.alerts) - MAX_ALERTS
    if more > 0:
        parts.append(f"And {more} more: {message.job_url}")
    return "\n".join(parts).rstrip() + "\n"

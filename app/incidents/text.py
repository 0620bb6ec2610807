"""The text of messages to channels, as lines that each kind of channel formats itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from app.analysis.budget.split import WORTH_SAYING
from app.analysis.diagnosis.causes.registry import blames_machine
from app.analysis.diagnosis.headline import differs
from app.analysis.report.session_verdict import VerdictWorker
from app.analysis.trace.rank_metadata import node_label
from app.analysis.wording import NBSP, gpu_time, hours, percent, sure
from app.incidents.grouping import Status
from app.incidents.message import Alert, MemberJob, Message
from app.incidents.models.facts import (
    ALL_SLOW_CAUSE,
    BETWEEN_STEPS_CAUSE,
    LOW_QUALITY_CAUSE,
    NO_DATA_CAUSE,
    REGRESSION_CAUSE,
    Facts,
    NoticeFacts,
)

# Maximum of alerts in a message; further alerts are counted, and listed on the page.
MAX_ALERTS: Final = 10

# Maximum of GPUs that a message names.
MAX_GPUS: Final = 4
# Workers after the worst are named if their slowdown reaches this value.
WORTH_NAMING: Final = 1.01
_OF_ALL: Final = (BETWEEN_STEPS_CAUSE, ALL_SLOW_CAUSE)


@dataclass(frozen=True, slots=True)
class MessageLines:
    """The text of an alert: a summary, pairs of name and value, and evidence sentences."""

    summary: str
    fields: Sequence[tuple[str, str]] = field(default_factory=tuple)
    evidence: Sequence[str] = field(default_factory=tuple)


def lines_of(alert: Alert, at: datetime) -> MessageLines:
    """Return the text of an alert.

    Parameters
    ----------
    at : datetime
        Time at which the message was made; ages are relative to it.
    """
    if alert.status is Status.RESOLVED:
        lasted = (alert.resolved_at or at) - alert.since
        return MessageLines(
            f"{alert.subject}: over after {duration(lasted)}",
            [("Because", alert.why_resolved)] if alert.why_resolved else [],
        )
    facts = alert.facts
    fields = []
    if alert.cause == NO_DATA_CAUSE:
        fields.append(("No session since", moment(facts.received_at) if facts else "it was added"))
    elif alert.hang is not None:
        hang = alert.hang
        fields += [
            ("Culprits", hang.culprits),
            ("Waiting", f"{hang.waiting:,} of {hang.ranks:,} ranks, {duration(hang.lasted(at))}"),
            ("Confidence", sure(hang.confidence)),
            ("Costs", f"{hang.ranks:,} GPU-hours each hour"),
            ("What to do", hang.remedy),
        ]
    else:
        if alert.notice is not None:
            fields += _of_notice(alert.notice, measured=facts is not None)
        if facts is not None:
            fields += _measured(alert, facts)
    if alert.jobs:
        also = "Also silent" if alert.cause == NO_DATA_CAUSE else "Also slowed by this machine"
        fields.append((also, _jobs(alert.jobs)))
    fields.append(("Since", f"{moment(alert.since)} ({duration(at - alert.since)})"))
    if alert.asks:
        fields.append(("Waits for a person", "; ".join(action.command for action in alert.asks)))
    if alert.rules:
        fields.append(("Rule", ", ".join(alert.rules)))
    blamed = (
        (cause for cause in facts.causes if cause.cause == alert.diagnosed_cause) if facts else ()
    )
    evidence = [sentence for cause in blamed for sentence in cause.evidence]
    return MessageLines(_summary(alert), fields, evidence)


def _of_notice(notice: NoticeFacts, *, measured: bool) -> list[tuple[str, str]]:
    rate = None if measured else notice.lost_each_hour
    costs = [f"{hours(rate)} GPU-hours each hour"] if rate is not None else []
    costs += [f"{gpu_time(notice.gpu_hours)} so far"] if notice.gpu_hours else []
    fields = [("Noticed", f"{moment(notice.noticed_at)}, from step {notice.from_step:,} on")]
    if not notice.stands_still:
        fields.append(("Checked", notice.checked))
    return [
        *fields,
        *([("Costs so far" if measured else "Costs", ", ".join(costs))] if costs else []),
    ]


def _summary(alert: Alert) -> str:
    facts = alert.facts
    if alert.hang is not None:
        return f"{alert.subject}. {alert.hang.sentence}"
    if alert.notice is not None:
        return f"{alert.subject}. {alert.notice.sentence}"
    slow = alert.cause not in (NO_DATA_CAUSE, LOW_QUALITY_CAUSE)
    shown = None if facts is None else facts.headline
    if facts is not None and facts.withheld is not None and slow:
        return f"{alert.subject}. It takes {percent(facts.withheld.waste, 0)} of each step."
    if alert.cause in _OF_ALL and alert.value is not None:
        return f"{alert.subject}: {percent(alert.value, 0)} of the time."
    if shown is None or not slow:
        return alert.subject
    against = "without its causes" if shown.kind.without_causes else "ideal"
    return f"{alert.subject}. The job is {shown.slowdown:.2f}× slower than {against}."


def _measured(alert: Alert, facts: Facts) -> list[tuple[str, str]]:
    fields = _slowdowns(facts)
    if alert.cause == REGRESSION_CAUSE and alert.value is not None:
        fields.append(("Against baseline", f"steps take {percent(alert.value)} longer"))
    if facts.shares is not None and alert.cause not in _OF_ALL:
        lost = facts.shares.between_steps_above
        if lost >= WORTH_SAYING:
            fields.append(("Between steps", f"{percent(lost, 0)} of the time is lost"))
    if alert.cause == LOW_QUALITY_CAUSE and facts.discrepancy is not None:
        fields.append(("Discrepancy", percent(facts.discrepancy)))
    cause = next((cause for cause in facts.causes if cause.cause == alert.diagnosed_cause), None)
    if cause is not None and cause.confidence is not None:
        fields.append(("Confidence", sure(cause.confidence)))
    if cause is not None and cause.gpus:
        at = [gpu.words for gpu in cause.gpus[:MAX_GPUS]]
        more = len(cause.gpus) - len(at)
        fields.append(("At", "; ".join([*at, f"{more} more"] if more else at)))
    # If no worker is at fault, the slowest worker is slow by chance.
    if facts.worst and blames_machine(alert.diagnosed_cause):
        named = [facts.worst[0], *(w for w in facts.worst[1:] if w.slowdown >= WORTH_NAMING)]
        fields.append(("Worst workers", "; ".join(_worker(worker) for worker in named)))
    if facts.fix is not None:
        gain = ("up to " if facts.fix.at_most else "") + percent(facts.fix.gain)
        fields.append(("Best fix", f"{facts.fix.title} (predicted gain {gain})"))
    fields.append(("Session", f"{facts.number}, received {moment(facts.received_at)}"))
    return fields


def _slowdowns(facts: Facts) -> list[tuple[str, str]]:
    """Return slowdown and cost of the job, and the published S if it differs."""
    shown, published = facts.headline, facts.slowdown
    if facts.withheld is not None and facts.lost_each_hour is not None:
        return [("Costs", f"{hours(facts.lost_each_hour)} GPU-hours each hour, at least")]
    if shown is None:
        return []
    measured = _slowdown(shown.slowdown, shown.ci95)
    if shown.kind.without_causes:
        fields = [("Slowdown", f"{measured} against the job without its causes")]
        if published is None:
            fields.append(("Published S", "withheld"))
        elif differs(shown.slowdown, published):
            fields.append(("Published S", _slowdown(published, facts.slowdown_ci95)))
    else:
        fields = [("Slowdown S", measured)]
    lost = facts.lost_each_hour
    if lost is None:
        return [*fields, ("GPU-hours lost", f"{hours(shown.gpu_hours_lost)} in this session")]
    return [*fields, ("Costs", f"{hours(lost)} GPU-hours each hour")]


def _slowdown(value: float, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return f"{value:.3f}"
    low, high = interval
    return f"{value:.3f} (95{NBSP}%: {low:.3f}–{high:.3f})"


def _worker(worker: VerdictWorker) -> str:
    host = f"{node_label(worker.host, guessed=worker.guessed)} " if worker.host else ""
    return f"{host}(DP {worker.dp}, PP {worker.pp}) {worker.slowdown:.2f}×"


def _jobs(inside: Sequence[MemberJob]) -> str:
    named = [
        member.job if member.slowdown is None else f"{member.job} {member.slowdown:.2f}×"
        for member in inside[:MAX_ALERTS]
    ]
    more = len(inside) - len(named)
    return ", ".join([*named, f"{more} more"] if more else named)


def moment(at: datetime) -> str:
    """Return a time in UTC, rounded down to the minute."""
    return at.strftime("%Y-%m-%d %H:%M UTC")


def duration(span: timedelta) -> str:
    """Return a time span in its two largest units."""
    minutes = max(0, int(span.total_seconds() // 60))
    days, minutes = divmod(minutes, 24 * 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{days} d"] if days else []
    parts += [f"{hours} h"] if hours else []
    parts += [f"{minutes} min"] if minutes or not parts else []
    return " ".join(parts[:2])


def clip(text: str, limit: int) -> str:
    """Return a text cut to at most `limit` characters, with an ellipsis at a cut."""
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

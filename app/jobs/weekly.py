"""Weekly summaries of the fleet's report: creation, text, and delivery to channels.

A summary is one row for each rule, channel and week; the unique key ensures that it is created
once, whichever process sweeps. It goes ``waiting → sending → delivered | failed``, each step one
conditional UPDATE, and back to ``waiting`` after a temporary fault. Creation and start are separate
transactions: if a process dies between them, the next pass starts the summary.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

import structlog
from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.wording import hours, percent
from app.incidents.channels.kind import NOTE, Note, Section
from app.incidents.channels.registry import KINDS
from app.incidents.deliver import (
    DISABLED,
    DeliveryTarget,
    attempt_note,
    base_url,
    disable,
    target_of,
)
from app.incidents.models.rules import Rule, Weekly
from app.incidents.models.tables import AlertChannel, AlertRule, DeliveryState
from app.incidents.store import rule_of
from app.jobs.fleet_costs import LabelCost
from app.jobs.fleet_report import FixLine, FleetReport, fleet_report
from app.jobs.models import WeeklySummary
from app.platform.container import Claim, Container
from app.platform.database.projects import is_there
from app.platform.database.task_runs import SEND_SUMMARY
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.outbound import DeliveryError, wait_before
from app.platform.settings import Settings
from app.platform.tasks.runs import finish
from app.web.time_ranges import utc_minutes

WEEK: Final = timedelta(days=7)
# Number of jobs, causes, hosts and fixes each that a summary names; its link leads to the report.
NAMED: Final = 5


def compose(
    report: FleetReport, *, note_id: uuid.UUID, at: datetime, base_url: str, receiver: str
) -> Note:
    """Return the summary of a fleet's report as a note for channels.

    Parameters
    ----------
    at : datetime
        Time at which the summary is created.
    base_url : str
        Address of the dashboard; ends with a slash.
    """
    times = {"from": utc_minutes(report.since), "to": utc_minutes(report.until)}
    coverage = report.coverage
    lines = [
        (
            f"{coverage.counted} of {coverage.received} sessions and {coverage.counted_jobs} of "
            f"{coverage.jobs} jobs have a verdict and count"
        )
    ]
    if coverage.silent:
        jobs = "1 job was" if coverage.silent == 1 else f"{coverage.silent} jobs were"
        lines.append(f"{jobs} silent all week")
    sections = (
        Section("Cost", tuple(_cost(report))),
        Section(
            "Jobs that lost most",
            tuple(
                f"{job.job}: {hours(job.lost)} GPU-hours, {percent(job.lost / job.used)} of its own"
                for job in report.spent.jobs[:NAMED]
                if job.lost > 0 and job.used
            ),
        ),
        Section("Causes", tuple(_causes(report))),
        Section("Teams", tuple(_labels(report.spent.teams))),
        Section("Owners", tuple(_labels(report.spent.owners))),
        Section(
            "Hosts slow more than once",
            tuple(
                f"{host.called}: {hours(host.lost)} GPU-hours, {host.sessions} sessions"
                for host in report.spent.hosts[:NAMED]
            ),
        ),
        Section("Incidents", (f"{report.opened} opened, {report.resolved} resolved",)),
        Section("Fixes: promised and realized", tuple(map(fix_sentence, report.fixes[:NAMED]))),
        Section("Coverage", tuple(lines)),
    )
    return Note(
        id=note_id,
        at=at,
        title=_title(report),
        sections=tuple(section for section in sections if section.lines),
        link=f"{base_url}report?{urlencode(times)}",
        receiver=receiver,
    )


def _title(report: FleetReport) -> str:
    days = f"{_day(report.since)} to {_day(report.until)}"
    if not report.costs.sessions:
        return f"Paceline, {days}: no session has a verdict"
    return (
        f"Paceline, {days}: stragglers cost {hours(report.costs.lost)} GPU-hours, "
        f"{percent(report.costs.share)} of the fleet"
    )


def _cost(report: FleetReport) -> list[str]:
    costs, before = report.costs, report.before
    if not costs.sessions:
        return []
    lines = [
        f"{hours(costs.lost)} of {hours(costs.used)} GPU-hours lost, {percent(costs.share)}",
    ]
    if before.sessions:
        word = "up" if costs.share > before.share else "down"
        trend = (
            f"{word} from {percent(before.share)}"
            if percent(costs.share) != percent(before.share)
            else "as in"
        )
        lines.append(f"{trend} the week before ({hours(before.lost)} GPU-hours)")
    lines.append(
        f"{report.spent.straggling} of {report.spent.measured} jobs straggle "
        f"(S from {STRAGGLING} on)"
    )
    return lines


def _causes(report: FleetReport) -> list[str]:
    lost = report.costs.lost
    if not lost:
        return []
    lines = [
        f"{title_of(cause.cause)}: {hours(cause.lost)} GPU-hours, {percent(cause.lost / lost, 0)}"
        f" of it, {cause.jobs} {'job' if cause.jobs == 1 else 'jobs'}"
        for cause in report.spent.causes[:NAMED]
    ]
    if report.unexplained > 0:
        lines.append(f"Unexplained: {hours(report.unexplained)} GPU-hours")
    return lines


def _labels(costs: Sequence[LabelCost]) -> list[str]:
    """Return the losses of the most expensive teams or owners; empty if no job has the label."""
    named = [cost for cost in costs if cost.name is not None]
    return [
        f"{cost.name}: {hours(cost.lost)} GPU-hours, {percent(cost.lost / cost.used)} of its own"
        for cost in named[:NAMED]
        if cost.lost > 0 and cost.used
    ]


def fix_sentence(fix: FixLine) -> str:
    """Return the promised and the realized gain of a fix in words; a bound is not judged."""
    most = "at most " if fix.at_most else ""
    text = f"{fix.job}, {fix.title}: promised {most}{percent(fix.predicted)} less time a step, "
    if fix.unlike is not None:
        return f"{text}not comparable: {fix.unlike}"
    text += f"realized {percent(fix.realized)}"
    if fix.met is None:
        return text
    return f"{text}: {'as promised' if fix.met else 'not as promised'}"


def _day(at: datetime) -> str:
    at = at.astimezone(UTC)
    return f"{at.day} {at:%b}"


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Started:
    note: Note
    target: DeliveryTarget


def preview_note(tx: Reads, settings: Settings) -> Note:
    """Return the summary of the last seven days, as a preview."""
    return compose(
        fleet_report(tx, tx.now - WEEK, tx.now),
        note_id=uuid.UUID(int=0),
        at=tx.now,
        base_url=base_url(settings, tx),
        receiver="",
    )


def deliver_summary(container: Container, claim: Claim) -> None:
    """Try once to send a summary, and store the outcome.

    The receiver gets the summary at least once, with the same id and text on every attempt: a
    worker may die between the receiver's answer and the end of `_settle`.

    Raises
    ------
    LostClaimError
        Another worker has taken over the claim; nothing is stored.
    """
    started = _start(container, claim)
    if started is None:
        with container.uow() as tx:
            finish(tx, claim)
        return
    try:
        attempt_note(container, started.target, started.note)
    except DeliveryError as error:
        _log.info("summary not taken", code=error.code, error=error.sentence)
        _settle(container, claim, error)
    else:
        _settle(container, claim, None)


def _start(container: Container, claim: Claim) -> _Started | None:
    """Return the summary of a claim and its channel; None if it need not be sent any more."""
    with container.uow() as tx:
        row = tx.session.get(WeeklySummary, claim.subject_id, with_for_update=True)
        if row is None or row.state is not DeliveryState.SENDING:
            return None
        channel = tx.session.get_one(AlertChannel, row.channel_id)
        if not channel.enabled:
            _end(tx, row.id, DeliveryState.FAILED, DISABLED)
            return None
        if row.note is None:
            note = compose(
                fleet_report(tx, row.since, row.until),
                note_id=row.id,
                at=tx.now,
                base_url=base_url(container.settings, tx),
                receiver=channel.name,
            )
            row.note = NOTE.dump_python(note, mode="json")
        row.attempt += 1
        return _Started(NOTE.validate_python(row.note), target_of(channel))


def _settle(container: Container, claim: Claim, error: DeliveryError | None) -> None:
    with container.uow() as tx:
        finish(tx, claim)
        row = tx.session.get(WeeklySummary, claim.subject_id)
        if row is None:
            return
        channel = tx.session.get_one(
            AlertChannel, row.channel_id, with_for_update={"key_share": True}
        )
        if error is None:
            channel.last_success_at = tx.now
            _end(tx, row.id, DeliveryState.DELIVERED)
            return
        channel.last_failure_at = tx.now
        channel.last_error = error.sentence
        if error.disable:
            disable(tx, channel, error.sentence)
        wait = (
            None
            if error.permanent
            else wait_before(
                row.attempt + 1,
                random.random(),  # noqa: S311 - spreads load
                tx.now - row.created_at,
                error.retry_after_s,
            )
        )
        if wait is None:
            _end(tx, row.id, DeliveryState.FAILED, error)
        else:
            _end(tx, row.id, DeliveryState.WAITING, error, next_attempt_at=tx.now + wait)


def _end(
    tx: UnitOfWork,
    summary_id: uuid.UUID,
    state: DeliveryState,
    error: DeliveryError | None = None,
    **more: Any,  # noqa: ANN401 - columns
) -> None:
    """End a delivery attempt if it is still under way."""
    tx.session.execute(
        update(WeeklySummary)
        .where(WeeklySummary.id == summary_id, WeeklySummary.state == DeliveryState.SENDING)
        .values(
            state=state,
            finished_at=None if state is DeliveryState.WAITING else tx.now,
            error_code=error.code if error else None,
            error=error.sentence if error else None,
            **more,
        )
    )


# Largest number of summaries that one pass starts in a project.
BATCH: Final = 100


def send_due(container: Container) -> int:
    """Create and start the due summaries of all projects; return how many were started."""
    with container.everywhere().reading() as tx:
        weekly = AlertRule.document["condition"]["kind"].astext == "weekly"
        ruled = set(
            tx.session.execute(
                select(AlertRule.project_id).where(weekly, is_there(AlertRule.project_id))
            ).scalars()
        )
        waiting = set(
            tx.session.execute(
                select(WeeklySummary.project_id).where(
                    WeeklySummary.state == DeliveryState.WAITING,
                    WeeklySummary.next_attempt_at <= tx.now,
                    is_there(WeeklySummary.project_id),
                )
            ).scalars()
        )
    for project_id in sorted(ruled):
        _make(container.within(project_id))
    return sum(
        _start_summary(container.within(project_id)) for project_id in sorted(ruled | waiting)
    )


def audience(tx: Reads, rule: Rule) -> list[AlertChannel]:
    """Return the channels that get a rule's summaries: the channels that can show a note."""
    channels = tx.session.execute(
        select(AlertChannel).where(AlertChannel.enabled).order_by(AlertChannel.name)
    ).scalars()
    return [
        channel
        for channel in channels
        if KINDS[channel.kind].tell is not None
        and (channel.id in rule.channels if rule.channels else channel.audience == rule.audience)
    ]


def monday_of(moment: datetime) -> datetime:
    """Return the Monday of the week of a time, at the same time of day."""
    return moment - timedelta(days=moment.weekday())


def _make(container: Container) -> None:
    """Create the due summary of each weekly rule and channel.

    A week before the rule or the channel was added has no summary.
    """
    with container.uow() as tx:
        for row in tx.session.execute(select(AlertRule).order_by(AlertRule.name)).scalars():
            rule = rule_of(row)
            if not rule.enabled or not isinstance(rule.condition, Weekly):
                continue
            due = rule.condition.due(tx.now)
            if row.created_at > due:
                continue
            for channel in audience(tx, rule):
                if channel.created_at > due:
                    continue
                tx.session.execute(
                    insert(WeeklySummary)
                    .values(
                        id=uuid.uuid4(),
                        rule_id=rule.id,
                        channel_id=channel.id,
                        week=monday_of(due).date(),
                        since=due - WEEK,
                        until=due,
                        state=DeliveryState.WAITING,
                        attempt=0,
                        next_attempt_at=tx.now,
                    )
                    .on_conflict_do_nothing(index_elements=["rule_id", "channel_id", "week"])
                )


def _start_summary(container: Container) -> int:
    with container.uow() as tx:
        due = (
            select(WeeklySummary.id)
            .where(
                WeeklySummary.state == DeliveryState.WAITING,
                WeeklySummary.next_attempt_at <= tx.now,
            )
            .order_by(WeeklySummary.next_attempt_at)
            .limit(BATCH)
            .with_for_update(skip_locked=True)
        )
        ids = list(tx.session.execute(due).scalars())
        started = list(
            tx.session.execute(
                update(WeeklySummary)
                .where(WeeklySummary.id.in_(ids), WeeklySummary.state == DeliveryState.WAITING)
                .values(state=DeliveryState.SENDING)
                .returning(WeeklySummary.id)
            ).scalars()
        )
        for summary_id in started:
            tx.enqueue(SEND_SUMMARY, summary_id)
    return len(started)

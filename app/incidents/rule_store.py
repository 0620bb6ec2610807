"""Stored rules: create, edit and delete rules, preview them, and add default rules to projects.

No migration adds the default rules of new kinds: during an upgrade servers of the previous version
run next to new servers; they refuse a rule of an unknown kind, and every analysis with it.
"""

from __future__ import annotations

import itertools
import uuid
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from app.access.audit import Action, record
from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.pulse.notices import NoticeKind
from app.errors import ConflictError, Fault, InvalidRuleError, NotFoundError
from app.hangs.models import StoredHang
from app.incidents.conditions import evaluate, next_look
from app.incidents.grouping import JobState
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import STANDING_STILL, Facts
from app.incidents.models.rules import HANG_RULE, NOTICE_RULE, CauseFound, Rule, Selector, Weekly
from app.incidents.models.tables import AlertGroup, AlertRule, IncidentState
from app.incidents.store import (
    RECEIVED_READ,
    load_rules,
    read_facts,
    rule_document,
    rule_of,
    sessions_with_facts,
)
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.pulse.models import PulseNotice
from app.sessions.models.tables import Session

PREVIEW: Final = timedelta(days=30)
# Maximum of sessions, the latest, that a preview reads while the user waits.
PREVIEW_SESSIONS: Final = 20_000


@dataclass(frozen=True, slots=True)
class WouldHave:
    """An incident that a previewed rule would have opened."""

    job: str
    incident: Incident  # the incident in its final state


@dataclass(frozen=True, slots=True)
class Preview:
    """The incidents that a rule would have opened."""

    since: datetime
    """Start of the previewed time: 30 days ago, or the earliest session that was read."""
    jobs: int
    """Number of jobs whose sessions were evaluated."""
    sessions: int
    """Number of sessions that were evaluated."""
    complete: bool
    """Whether all sessions of that time were read; a preview reads a limited number."""
    incidents: Sequence[WouldHave]
    """The incidents, the newest first."""


def get_rule(tx: Reads, rule_id: uuid.UUID) -> Rule:
    """Return a rule.

    Raises
    ------
    NotFoundError
    """
    return rule_of(_row(tx, rule_id))


def save_rule(container: Container, rule: Rule, *, new: bool) -> Rule:
    """Add or replace a rule, and schedule an evaluation of all jobs.

    Raises
    ------
    NotFoundError
        If the rule to replace does not exist.
    ConflictError
        If another rule has this name.
    InvalidRuleError
        If it names a cause that no report has: ``rule.unknown_cause``.
    """
    _require_meaning(rule)
    try:
        with container.uow() as tx:
            if new:
                row = AlertRule(id=rule.id, name=rule.name, document=rule_document(rule))
                tx.session.add(row)
            else:
                row = _row(tx, rule.id)
                added = set(rule.channels) - set(rule_of(row).channels)
                kept = {str(id_) for id_ in rule.channels}
                row.attached = {
                    **{id_: at for id_, at in row.attached.items() if id_ in kept},
                    **{str(id_): tx.now.isoformat() for id_ in added},
                }
                row.name, row.document = rule.name, rule_document(rule)
                row.updated_at = tx.now
            action = Action.CREATED if new else Action.CHANGED
            record(tx, container.principal, action, f"rule {rule.name}")
    except IntegrityError as error:
        raise ConflictError(
            f"There is a rule {rule.name} already.",
            code="rule.name_taken",
            faults=(Fault("taken", "Another rule has this name.", column="name"),),
        ) from error
    _look_at_all(container)
    return rule


def delete_rule(container: Container, rule_id: uuid.UUID) -> None:
    """Delete a rule; incidents that no other rule holds open end.

    Raises
    ------
    NotFoundError
    """
    with container.uow() as tx:
        row = _row(tx, rule_id)
        tx.session.delete(row)
        record(tx, container.principal, Action.DELETED, f"rule {row.name}")
    _look_at_all(container)


def preview(container: Container, rule: Rule) -> Preview:
    """Return the incidents that a rule would have opened alone in the last 30 days.

    Raises
    ------
    InvalidRuleError
        As `save_rule` does.
    """
    _require_meaning(rule)
    with container.reading() as tx:
        now = tx.now
        since = now - PREVIEW
        if not rule.evaluated:
            return Preview(since, 0, 0, complete=True, incidents=())
        latest = sessions_with_facts().where(Session.received_at >= since)
        facts = read_facts(
            tx, latest.order_by(Session.received_at.desc()).limit(PREVIEW_SESSIONS + 1)
        )
        received = tx.session.execute(
            select(Job.name, Session.received_at)
            .join(Session, Session.job_id == Job.id)
            .where(Session.received_at >= since)
            .order_by(Job.name, Session.received_at)
        ).all()
    complete = len(facts) <= PREVIEW_SESSIONS
    if not complete:
        since = facts[PREVIEW_SESSIONS - 1].received_at
    facts = sorted(facts[:PREVIEW_SESSIONS], key=lambda item: (item.job, item.order))
    came = {
        job: [at for _, at in rows] for job, rows in itertools.groupby(received, lambda row: row[0])
    }
    would_have: list[WouldHave] = []
    jobs = 0
    for job, sessions in itertools.groupby(facts, key=lambda item: item.job):
        jobs += 1
        replayed = _replay(job, list(sessions), came.get(job, []), rule, now)
        would_have += [WouldHave(job, incident) for incident in replayed]
    would_have.sort(key=lambda item: item.incident.opened_at, reverse=True)
    return Preview(since, jobs, len(facts), complete, would_have)


def _replay(
    job: str, sessions: list[Facts], received: list[datetime], rule: Rule, now: datetime
) -> list[Incident]:
    """Replay a job's sessions against a rule, with evaluations between the sessions."""
    incidents: dict[uuid.UUID, Incident] = {}

    def at(moment: datetime, history: list[Facts]) -> JobState:
        come = bisect_right(received, moment)
        return JobState(
            job=job,
            labels=history[-1].labels,
            history=history,
            received=received[max(0, come - RECEIVED_READ) : come],
            finished_at=None,
            incidents=[i for i in incidents.values() if i.state is not IncidentState.RESOLVED],
            silences={},
            since={},
        )

    def look(moment: datetime, history: list[Facts]) -> None:
        for change in evaluate(at(moment, history), [rule], moment, uuid.uuid4):
            incidents[change.incident.id] = change.incident

    for count, facts in enumerate(sessions, start=1):
        history = sessions[max(0, count - _HISTORY) : count]
        look(facts.received_at, history)
        until = sessions[count].received_at if count < len(sessions) else now
        alone = next_look(at(facts.received_at, history), [rule], facts.received_at)
        if alone is not None and alone < until:
            look(alone, history)
    return [incident for incident in incidents.values() if incident.was_notified]


# Number of sessions that each evaluation of a preview reads: enough for baselines, and less than
# usual because a preview evaluates each session of a month.
_HISTORY: Final = 40


def _require_meaning(rule: Rule) -> None:
    """Refuse a weekly rule that selects jobs, and a rule about an unknown cause."""
    condition = rule.condition
    if isinstance(condition, Weekly) and rule.selector != Selector():
        raise InvalidRuleError(
            "A weekly summary is of the whole project: it selects no jobs.",
            faults=(Fault("not_empty", "Leave it out.", column="selector"),),
        )
    if not isinstance(condition, CauseFound):
        return
    faults = tuple(
        Fault("unknown_cause", f"There is no cause {cause}.", column=f"condition.causes[{index}]")
        for index, cause in enumerate(condition.causes)
        if cause not in KINDS
    )
    if faults:
        raise InvalidRuleError(
            f"{faults[0].message} Causes are: {', '.join(KINDS)}.",
            code="rule.unknown_cause",
            faults=faults,
        )


def _look_at_all(container: Container) -> None:
    """Schedule an evaluation of every job, in a transaction of its own."""
    with container.uow() as tx:
        ids = select(AlertGroup.id).order_by(AlertGroup.id).with_for_update(key_share=True)
        groups = list(tx.session.execute(ids).scalars())
        tx.session.execute(
            update(AlertGroup).where(AlertGroup.id.in_(groups)).values(look_at=func.now())
        )


def _row(tx: Reads, rule_id: uuid.UUID) -> AlertRule:
    row = tx.session.get(AlertRule, rule_id)
    if row is None:
        raise NotFoundError(f"There is no rule {rule_id}.")
    return row


def with_new_id(rule: Rule) -> Rule:
    """Return a rule with a new id that no other rule has."""
    return replace(rule, id=uuid.uuid4())


def give_rules(tx: UnitOfWork, kinds: Sequence[NoticeKind]) -> None:
    """Add rules about notices to a project with its first notices, whose `fires_at` is not set."""
    if any(kind in STANDING_STILL for kind in kinds):
        give_hang_rule(tx)
    if all(kind in STANDING_STILL for kind in kinds):
        return
    before = PulseNotice.fires_at.is_not(None) & PulseNotice.kind.not_in(STANDING_STILL)
    if tx.session.execute(select(PulseNotice.number).where(before).limit(1)).first() is None:
        _give(tx, NOTICE_RULE)


def give_hang_rule(tx: UnitOfWork) -> None:
    """Add the rule about hangs to a project with its first hang, unless it has such a rule."""
    before = PulseNotice.fires_at.is_not(None) & PulseNotice.kind.in_(STANDING_STILL)
    if (
        tx.session.execute(select(StoredHang.id).limit(1)).first() is None
        and tx.session.execute(select(PulseNotice.number).where(before).limit(1)).first() is None
    ):
        _give(tx, HANG_RULE)


def _give(tx: UnitOfWork, rule: Rule) -> None:
    """Add a rule, unless the project has a rule of the same kind."""
    if any(type(stored.condition) is type(rule.condition) for stored in load_rules(tx)):
        return
    tx.session.execute(
        insert(AlertRule)
        .values(id=uuid.uuid4(), name=rule.name, document=rule_document(rule))
        .on_conflict_do_nothing(index_elements=["project_id", "name"])
    )

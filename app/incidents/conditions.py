"""Evaluation of alert rules: a pure function of history, rules and time to incident transitions.

No counters are kept between sessions. Each evaluation reads the job's latest sessions in their own
order: the result is the same in whatever order they were analyzed, whichever rule was edited in
between, and however often the process restarted. Only the baseline of a regression is kept with
its incident: the regression may have begun before those sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.report.session_verdict import SuspectedCause
from app.analysis.wording import gpu_time
from app.incidents.grouping import Board, IncidentChange, JobState, is_finished
from app.incidents.lifecycle import (
    Baseline,
    Incident,
    Trigger,
    can,
    clear,
    confirm,
    end_silence,
    escalate,
    fingerprint_of,
)
from app.incidents.models.facts import (
    HANG_CAUSE,
    HANG_LOST_AFTER,
    NO_DATA_CAUSE,
    Facts,
    Level,
    NoticeFacts,
    Outcome,
    Reading,
    read_history,
    silent_for,
)
from app.incidents.models.rules import Hanging, NoData, Noticed, Rule
from app.incidents.models.tables import IncidentState

HANG_UNHEARD: Final = "nothing was heard of the hang for a day"
HANG_GONE: Final = "the hang was deleted"


def apply_hang(board: Board, rule: Rule, condition: Hanging) -> None:
    """Open and confirm the incident of a hang at once; a later hang joins the open incident."""
    hang = board.job.hang
    if hang is None or hang.confidence < condition.confidence or not hang.is_going_on(board.now):
        return
    settled = board.job.since.get(rule.id)
    if settled is not None and settled >= hang.created_at:
        return
    fingerprint = fingerprint_of(board.job.job, HANG_CAUSE, "")
    incident = board.get(fingerprint) or board.open(rule, HANG_CAUSE, "")
    board.join(incident, rule, None, hang.confidence)
    joined = replace(board.get(fingerprint) or incident, hang=hang)
    board.put(joined, "held")
    if can(joined.state, Trigger.CONFIRM):
        board.put(confirm(joined, board.now), "fired")


def settle_hang(board: Board, incident: Incident) -> None:
    """End the incident of a hang that ended or was deleted."""
    hang = board.job.hang
    if hang is None:
        board.put(clear(incident, board.now, HANG_GONE), "resolved")
    elif not hang.is_going_on(board.now):
        why = HANG_UNHEARD
        if hang.over_at is not None:
            minutes = hang.lasted(board.now) / timedelta(minutes=1)
            cost = gpu_time(hang.gpu_hours(board.now))
            why = f"the job went on or ended, after {minutes:,.0f} min and {cost}"
        board.put(clear(replace(incident, hang=hang), board.now, why), "resolved")


PART_OF_ANOTHER: Final = "it turned out to be part of another notice"
JOB_FINISHED: Final = "the job said that it ended"
UNHEARD: Final = "nothing more was heard of the pulse"


def apply_notices(board: Board, rule: Rule, condition: Noticed | Hanging) -> None:
    """Open, hold and confirm incidents for the ongoing notices that a rule selects."""
    settled = board.job.since.get(rule.id)
    if board.job.is_finished:
        return
    for notice in board.job.notices:
        if not notice.is_going_on(board.now) or notice.outcome is Outcome.CLEARED:
            continue
        if not _selects(condition, notice):
            continue
        incident = _incident_of_notice(board, notice)
        if incident is None:
            if settled is not None and settled >= notice.noticed_at:
                continue  # a user resolved the incident of this notice
            incident = board.open(rule, _cause(notice), notice.place)
        if incident.notice is not None and incident.notice.key != notice.key:
            other = _latest(board, incident.notice)
            if other is not None and other.is_going_on(board.now):
                continue  # the incident belongs to another notice of the same place
        facts = next((f for f in board.job.history if f.session == notice.session_id), None)
        board.join(incident, rule, facts, notice.factor)
        joined = replace(board.get(incident.fingerprint) or incident, notice=notice)
        board.put(joined, "held")
        fires = notice.stands_still or notice.outcome is not None
        fires |= isinstance(condition, Noticed) and condition.at_once
        if fires and can(joined.state, Trigger.CONFIRM):
            board.put(confirm(joined, board.now), "fired")


def settle_notice(board: Board, incident: Incident) -> None:
    """End the incident of a notice that ended, that a session cleared, or that was deleted."""
    if incident.notice is None:
        return
    notice = _latest(board, incident.notice)
    if notice is None:
        board.put(clear(incident, board.now, PART_OF_ANOTHER), "resolved")
        return
    last = replace(incident, notice=notice)
    if notice.cleared_at is not None:
        measured_at = None if board.job.is_finished else notice.measured_at
        if incident.was_notified and measured_at is not None and board.now < measured_at:
            return  # the message about the end waits for the measured gain
        fix = None if incident.facts is None else incident.facts.fix
        why = notice.ended(None if fix is None else fix.gain)
        board.put(clear(last, board.now, why), "resolved")
    elif notice.outcome is Outcome.CLEARED:
        board.put(clear(last, board.now, notice.checked), "resolved")
    elif board.job.is_finished:
        board.put(clear(last, board.now, JOB_FINISHED), "resolved")
    elif not notice.is_going_on(board.now):
        board.put(clear(last, board.now, UNHEARD), "resolved")


def next_notice_times(job: JobState) -> list[datetime]:
    """Return when notices fire without a session, or end because the pulse stopped."""
    going_on = [notice for notice in job.notices if notice.cleared_at is None]
    return [
        *(notice.fires_at for notice in going_on if notice.outcome is None),
        *(notice.unheard_at for notice in going_on),
        *(notice.measured_at for notice in job.notices if notice.measured_at is not None),
    ]


def _selects(condition: Noticed | Hanging, notice: NoticeFacts) -> bool:
    if isinstance(condition, Hanging):
        return notice.stands_still
    return not notice.stands_still and (not condition.kinds or notice.kind in condition.kinds)


def _cause(notice: NoticeFacts) -> str:
    """Return the cause of a notice's incident; a pulse without progress is a hang."""
    return HANG_CAUSE if notice.stands_still else notice.kind


def _incident_of_notice(board: Board, notice: NoticeFacts) -> Incident | None:
    """Return the open incident of a notice, else that of the same cause and place."""
    for incident in board.present():
        if incident.notice is not None and incident.notice.key == notice.key:
            return incident
    return board.get(fingerprint_of(board.job.job, _cause(notice), notice.place))


def _latest(board: Board, of: NoticeFacts) -> NoticeFacts | None:
    return next((notice for notice in board.job.notices if notice.key == of.key), None)


# Number of sessions that an evaluation reads, enough for baselines and the longest `consecutive`.
HISTORY_SESSIONS: Final = 100

# Interval between evaluations of a silent job while its incident is open.
SILENT_JOB_EVERY: Final = timedelta(minutes=10)

RULE_GONE: Final = "its rule was deleted, disabled or no longer selects the job"
SESSIONS_CLEAR: Final = "its condition no longer holds"
DATA_CAME: Final = "a session came"


@dataclass(frozen=True, slots=True)
class _RuleReadings:
    """A rule with its readings of the sessions that count for the rule."""

    rule: Rule
    history: Sequence[Facts]
    readings: Sequence[Reading]

    @property
    def streak(self) -> int:
        """Return the number of latest sessions in a row for which the condition held."""
        count = 0
        for reading in reversed(self.readings):
            if reading.level is Level.UNKNOWN:
                continue
            if reading.level is not Level.BREACH:
                break
            count += 1
        return count

    @property
    def latest(self) -> tuple[Facts, Reading] | None:
        """Return the latest session with a known reading."""
        for facts, reading in zip(reversed(self.history), reversed(self.readings), strict=True):
            if reading.level is not Level.UNKNOWN:
                return facts, reading
        return None


def evaluate(
    job: JobState, rules: Sequence[Rule], now: datetime, new_id: Callable[[], UUID]
) -> list[IncidentChange]:
    """Return the changes of a job's incidents, from its sessions and the time since the latest.

    Parameters
    ----------
    rules : sequence of Rule
        All rules; those that do not select the job are skipped.
    now : datetime
        The database's time.
    """
    job = replace(job, history=sorted(job.history, key=lambda facts: facts.order))
    selected = [
        rule
        for rule in rules
        if rule.enabled and rule.evaluated and rule.selector.selects(job.job, job.labels)
    ]
    by_id = {rule.id: rule for rule in selected}
    board = Board(job, by_id, now, new_id)
    reads = {
        rule.id: _read_rule(rule, job)
        for rule in selected
        if not isinstance(rule.condition, NoData | Hanging | Noticed)
    }
    # Notices come first, so that sessions with the same finding join the notice's incident.
    for rule in selected:
        if isinstance(rule.condition, Noticed | Hanging):
            apply_notices(board, rule, rule.condition)
    for read in reads.values():
        _apply(board, read)
    for rule in selected:
        if isinstance(rule.condition, NoData):
            _apply_no_data(board, rule)
        elif isinstance(rule.condition, Hanging):
            apply_hang(board, rule, rule.condition)
    for incident in board.present():
        _settle(board, incident, by_id, reads)
    for incident in board.present():
        _apply_time(board, incident, by_id)
    return board.changes()


def next_look(job: JobState, rules: Sequence[Rule], now: datetime) -> datetime | None:
    """Return the next time at which an evaluation without new data may change incidents, or None.

    Parameters
    ----------
    job : JobState
        With its incidents as they are after `evaluate`.
    now : datetime
    """
    by_id = {rule.id: rule for rule in rules}
    times = [] if is_finished(job.finished_at, job.received) else _silence_times(job, rules)
    times += next_notice_times(job)
    for incident in job.incidents:
        if incident.state is IncidentState.SILENCED and incident.silence is not None:
            times.append(incident.silence.until)
        if incident.hang is not None:
            times.append(incident.hang.changed_at + HANG_LOST_AFTER + timedelta(seconds=1))
        if incident.cause == NO_DATA_CAUSE:
            # Sessions whose analysis fails trigger no evaluation, so evaluate again after an
            # interval.
            times.append(now + SILENT_JOB_EVERY)
        if (
            incident.state is IncidentState.FIRING
            and incident.escalated_at is None
            and incident.fired_at
        ):
            plans = [by_id[id_].escalation for id_ in incident.rules if id_ in by_id]
            times += [
                incident.fired_at + timedelta(minutes=plan.after_minutes)
                for plan in plans
                if plan is not None and plan.after_minutes is not None
            ]
    coming = [at for at in times if at > now]
    return min(coming, default=None)


def _silence_times(job: JobState, rules: Sequence[Rule]) -> list[datetime]:
    """Return the times at which rules declare the job silent if no session arrives before."""
    times = []
    for rule in rules:
        if isinstance(rule.condition, NoData) and rule.enabled and job.received:
            limit = silent_for(rule.condition, job.received)
            settled = job.since.get(rule.id)
            if limit is not None and (settled is None or settled < job.received[-1]):
                times.append(job.received[-1] + limit)
    return times


def _read_rule(rule: Rule, job: JobState) -> _RuleReadings:
    ends = [at for at in (job.since.get(rule.id), job.heard.get(rule.id)) if at is not None]
    since = max(ends, default=None)
    history = [facts for facts in job.history if since is None or facts.received_at > since]
    lasting = {
        incident.baseline.layout: incident.baseline.step_time_s
        for incident in job.incidents
        if incident.baseline is not None
        and rule.id in incident.rules
        and (since is None or incident.opened_at > since)
    }
    return _RuleReadings(rule, history, read_history(rule, history, lasting))


def _apply(board: Board, read: _RuleReadings) -> None:
    """Open, hold and confirm the incidents of a rule's latest session."""
    if read.latest is None:
        return
    facts, reading = read.latest
    if reading.level is not Level.BREACH:
        return
    confirmed = read.streak >= read.rule.consecutive
    step_s = reading.baseline_s
    baseline = None if step_s is None else Baseline(facts.layout, step_s)
    for blamed in reading.blamed:
        for incident in _incidents_about(board, read.rule, blamed):
            board.join(incident, read.rule, facts, reading.value, baseline)
            joined = board.get(incident.fingerprint)
            if joined is not None and confirmed and can(joined.state, Trigger.CONFIRM):
                board.put(confirm(joined, board.now), "fired")
                joined = board.get(incident.fingerprint)
            if joined is not None:
                _escalate_by_value(board, read.rule, joined, reading.value, facts.lost_each_hour)


def _incidents_about(board: Board, rule: Rule, blamed: SuspectedCause) -> list[Incident]:
    """Return the open incidents of a cause; a new incident if none is open."""
    present = board.present()
    same = [incident for incident in present if _matches(incident, blamed)]
    if same:
        return same
    if blamed.cause == UNKNOWN:
        # A session with an unknown cause does not prove that the incident's known cause is gone.
        held = [incident for incident in present if rule.id in incident.rules]
        if held:
            return held
    return [board.open(rule, blamed.cause, blamed.where[0] if blamed.where else "")]


def _matches(incident: Incident, blamed: SuspectedCause) -> bool:
    """Return whether an incident's place is among the blamed places.

    All of them are compared, because the worst place changes by chance.
    """
    if incident.notice is not None:
        # A session that was recorded for this notice has diagnosed the cause: the place need not
        # match.
        return incident.notice.cause == blamed.cause
    if incident.cause != blamed.cause:
        return False
    return incident.where in blamed.where if blamed.where else not incident.where


def _escalate_by_value(
    board: Board, rule: Rule, incident: Incident, value: float | None, lost: float | None
) -> None:
    """Escalate an incident by its rule's value, or by the job's GPU-hours lost each hour."""
    plan = rule.escalation
    if plan is None or incident.escalated_at or not can(incident.state, Trigger.ESCALATE):
        return
    limits = ((value, plan.at_least), (lost, plan.gpu_hours_per_hour))
    if any(x is not None and limit is not None and x >= limit for x, limit in limits):
        board.put(escalate(incident, board.now), "escalated")


def _apply_no_data(board: Board, rule: Rule) -> None:
    job = board.job
    settled = job.since.get(rule.id)
    if not _is_silent(board, rule) or (settled is not None and settled >= job.received[-1]):
        return
    fingerprint = fingerprint_of(job.job, NO_DATA_CAUSE, "")
    incident = board.get(fingerprint) or board.open(rule, NO_DATA_CAUSE, "")
    silent_min = (board.now - job.received[-1]) / timedelta(minutes=1)
    # The value is kept as first stored, so that evaluations without news change nothing.
    value = incident.value if incident.value is not None else round(silent_min, 1)
    if rule.id not in incident.rules or incident.value is None:
        last = job.history[-1].without_verdict if job.history else None
        board.join(incident, rule, last, value)
        incident = board.get(fingerprint) or incident
    if can(incident.state, Trigger.CONFIRM):
        board.put(confirm(incident, board.now), "fired")


def _is_silent(board: Board, rule: Rule) -> bool:
    received = board.job.received
    if is_finished(board.job.finished_at, received):
        return False
    if not isinstance(rule.condition, NoData) or not received:
        return False
    limit = silent_for(rule.condition, received)
    return limit is not None and board.now - received[-1] >= limit


def _settle(
    board: Board,
    incident: Incident,
    rules: Mapping[UUID, Rule],
    reads: Mapping[UUID, _RuleReadings],
) -> None:
    """End an incident if its conditions no longer hold."""
    holders = [rules[id_] for id_ in incident.rules if id_ in rules]
    if not holders:
        board.put(clear(incident, board.now, RULE_GONE), "resolved")
        return
    if incident.cause == NO_DATA_CAUSE:
        if not any(_is_silent(board, rule) for rule in holders):
            ended = is_finished(board.job.finished_at, board.job.received)
            why = JOB_FINISHED if ended else DATA_CAME
            board.put(clear(incident, board.now, why), "resolved")
        return
    if incident.notice is not None:
        settle_notice(board, incident)
        return
    if incident.cause == HANG_CAUSE:
        settle_hang(board, incident)
        return
    rules_with_readings = [rule for rule in holders if rule.id in reads]
    if not rules_with_readings:
        return
    if incident.state is IncidentState.PENDING:
        over = all(_clear_sessions(incident, reads[rule.id]) >= 1 for rule in rules_with_readings)
    else:
        over = all(
            _clear_sessions(incident, reads[rule.id]) >= rule.clear_sessions
            for rule in rules_with_readings
        )
    if over:
        board.put(clear(incident, board.now, SESSIONS_CLEAR), "resolved")


def _clear_sessions(incident: Incident, read: _RuleReadings) -> int:
    """Return the number of latest sessions in a row that are clear for an incident's rule."""
    count = 0
    for reading in reversed(read.readings):
        if reading.level is Level.UNKNOWN:
            continue
        pending = incident.state is IncidentState.PENDING
        holds = reading.level is not Level.CLEAR and any(
            blamed.cause == UNKNOWN or _matches(incident, blamed) for blamed in reading.blamed
        )
        if holds and not (pending and reading.level is Level.BETWEEN):
            break
        count += 1
    return count


def _apply_time(board: Board, incident: Incident, rules: Mapping[UUID, Rule]) -> None:
    """End expired silences, and escalate incidents that were not acknowledged in time."""
    if (
        incident.state is IncidentState.SILENCED
        and incident.silence is not None
        and incident.silence.until <= board.now
    ):
        board.put(end_silence(incident), "unsilenced")
        return
    if (
        incident.state is not IncidentState.FIRING
        or incident.escalated_at
        or incident.fired_at is None
    ):
        return
    for id_ in incident.rules:
        plan = rules[id_].escalation if id_ in rules else None
        if plan is None or plan.after_minutes is None:
            continue
        if board.now - incident.fired_at >= timedelta(minutes=plan.after_minutes):
            board.put(escalate(incident, board.now), "escalated")
            return


# A session that loses less than this share of its time is healthy.
_HEALTHY_BELOW: Final = 0.02
# Share of the step time's growth in the pulse from which a session's steps count as slow.
_OF_GROWTH: Final = 0.5


def judge_notice(notice: NoticeFacts, facts: Facts) -> tuple[Outcome, str] | None:
    """Return the outcome of a notice from a session recorded for it, and the diagnosed cause.

    A cause at the notice's ranks or hosts confirms it, as any cause does for a notice without
    ranks. A cause elsewhere explains it. Without a cause the length of the steps decides.

    Returns
    -------
    tuple of Outcome and str, or None
        None for a session with neither a verdict nor a known loss.
    """
    if facts.known is None:
        return None
    lost = facts.known.waste if facts.lost is None else facts.lost
    causes = [] if lost < _HEALTHY_BELOW else [c for c in facts.causes if c.cause != UNKNOWN]
    at_place = next(
        (
            cause
            for cause in causes
            if any(gpu.rank in notice.ranks for gpu in cause.gpus)
            or any(host in cause.where for host in notice.hosts)
        ),
        None,
    )
    if at_place is not None:
        return Outcome.CONFIRMED, at_place.cause
    if causes:
        outcome = Outcome.EXPLAINED if notice.ranks else Outcome.CONFIRMED
        return outcome, causes[0].cause
    if _is_as_slow(notice, facts) or any(
        worker.host in notice.hosts and worker.slowdown >= 1 + _HEALTHY_BELOW
        for worker in facts.worst
    ):
        return Outcome.CONFIRMED, ""
    return Outcome.CLEARED, ""


def _is_as_slow(notice: NoticeFacts, facts: Facts) -> bool:
    """Return whether a session's steps are about as long as in the notice; True if unknown."""
    if facts.step_time_s is None or notice.baseline_s is None or notice.step_s is None:
        return True
    grew = max(notice.step_s / notice.baseline_s - 1, _HEALTHY_BELOW)
    return facts.step_time_s / notice.baseline_s - 1 >= _OF_GROWTH * grew

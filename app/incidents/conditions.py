"""What a job's history and its rules make of its incidents: (history, rules, now) to transitions.

Nothing is counted from session to session. Every evaluation reads the job's latest sessions in
their own order, so that it comes to the same end whatever order they were analyzed in, whichever
rule was edited in between, and however often the process was restarted. Only what a regression is
measured against is kept with its incident: it may have begun before those sessions.
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
    LONGEST,
    NO_DATA_CAUSE,
    Facts,
    HangFacts,
    Level,
    NoticeFacts,
    Outcome,
    Reading,
    read_history,
    silent_for,
)
from app.incidents.models.rules import Hanging, NoData, Noticed, Rule
from app.incidents.models.tables import IncidentState

# ---- What files of a hang, and a pulse that stands still, make of incidents --------------------


HANG_UNHEARD: Final = "nothing was heard of the hang for a day"
HANG_GONE: Final = "the hang was deleted"


def apply_hang(board: Board, rule: Rule, condition: Hanging) -> None:
    """Open and confirm at once the incident of a hang; a later one of it is the same incident."""
    hang = board.job.hang
    if hang is None or hang.confidence < condition.confidence or not hang.is_going_on(board.now):
        return
    settled = board.job.since.get(rule.id)
    if settled is not None and settled >= hang.created_at:
        return
    fingerprint = fingerprint_of(board.job.job, HANG_CAUSE, "")
    found = board.get(fingerprint) or board.open(rule, HANG_CAUSE, "")
    board.join(found, rule, None, hang.confidence)
    joined = replace(board.get(fingerprint) or found, hang=hang)
    board.put(joined, "held")
    if can(joined.state, Trigger.CONFIRM):
        board.put(confirm(joined, board.now), "fired")


def _end_of(hang: HangFacts, now: datetime) -> str:
    """Return why the incident of a hang is over, how long that lasted and what it cost."""
    if hang.over_at is None:
        return HANG_UNHEARD
    minutes = hang.lasted(now) / timedelta(minutes=1)
    return f"the job went on or ended, after {minutes:,.0f} min and {gpu_time(hang.gpu_hours(now))}"


def settle_hang(board: Board, incident: Incident) -> None:
    """End the incident of files of a hang that is over, or gone."""
    hang = board.job.hang
    if hang is None:
        board.put(clear(incident, board.now, HANG_GONE), "resolved")
    elif not hang.is_going_on(board.now):
        last = replace(incident, hang=hang)
        board.put(clear(last, board.now, _end_of(hang, board.now)), "resolved")


# ---- What notices of the pulse make of incidents -----------------------------------------------


PART_OF_ANOTHER: Final = "it turned out to be part of another notice"
ENDED: Final = "the job said that it ended"
UNHEARD: Final = "nothing more was heard of the pulse"


def apply_notices(board: Board, rule: Rule, condition: Noticed | Hanging) -> None:
    """Open, hold and confirm the incidents of what a rule means of the notices that go on."""
    settled = board.job.since.get(rule.id)
    if board.job.is_finished:
        return
    for notice in board.job.notices:
        if not notice.is_going_on(board.now) or notice.outcome is Outcome.CLEARED:
            continue
        if not _selects(condition, notice):
            continue
        incident = _about_notice(board, notice)
        if incident is None:
            if settled is not None and settled >= notice.noticed_at:
                continue  # a person said that it is over
            incident = board.open(rule, _cause(notice), notice.place)
        if incident.notice is not None and incident.notice.key != notice.key:
            other = _latest(board, incident.notice)
            if other is not None and other.is_going_on(board.now):
                continue  # another notice of the same place has the incident
        facts = next((f for f in board.job.history if f.session == notice.session_id), None)
        board.join(incident, rule, facts, notice.factor)
        joined = replace(board.get(incident.fingerprint) or incident, notice=notice)
        board.put(joined, "held")
        fires = notice.stands_still or notice.outcome is not None
        fires |= isinstance(condition, Noticed) and condition.at_once
        if fires and can(joined.state, Trigger.CONFIRM):
            board.put(confirm(joined, board.now), "fired")


def settle_notice(board: Board, incident: Incident) -> None:
    """End the incident of a notice that is over, was cleared by a session, or is gone."""
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
            return  # whoever was told is told what the fix brought as well
        fix = None if incident.facts is None else incident.facts.fix
        why = notice.ended(None if fix is None else fix.gain)
        board.put(clear(last, board.now, why), "resolved")
    elif notice.outcome is Outcome.CLEARED:
        board.put(clear(last, board.now, notice.checked), "resolved")
    elif board.job.is_finished:
        board.put(clear(last, board.now, ENDED), "resolved")
    elif not notice.is_going_on(board.now):
        board.put(clear(last, board.now, UNHEARD), "resolved")


def next_fires(job: JobState) -> list[datetime]:
    """Return when notices fire without a session, or are over without anything more of them."""
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
    """Return what an incident is called: whatever stands still is a hang, as its files are."""
    return HANG_CAUSE if notice.stands_still else notice.kind


def _about_notice(board: Board, notice: NoticeFacts) -> Incident | None:
    """Return the incident of a notice, whose place may have changed, or that of its place."""
    for incident in board.present():
        if incident.notice is not None and incident.notice.key == notice.key:
            return incident
    return board.get(fingerprint_of(board.job.job, _cause(notice), notice.place))


def _latest(board: Board, of: NoticeFacts) -> NoticeFacts | None:
    return next((notice for notice in board.job.notices if notice.key == of.key), None)


# What an evaluation looks at: enough for baselines and for the longest `consecutive`.
HISTORY_SESSIONS: Final = 100

# How often a job that sends nothing is looked at while that is an incident.
SILENT_JOB_EVERY: Final = timedelta(minutes=10)

RULE_GONE: Final = "its rule was deleted, disabled or no longer selects the job"
SESSIONS_CLEAR: Final = "its condition no longer holds"
DATA_CAME: Final = "a session came"
JOB_FINISHED: Final = "the job said that it ended"


@dataclass(frozen=True, slots=True)
class _Read:
    """A rule and what it says of the sessions that count for it."""

    rule: Rule
    history: Sequence[Facts]
    readings: Sequence[Reading]

    @property
    def streak(self) -> int:
        """Return for how many of the latest sessions in a row the condition held."""
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
        """Return the latest session of which it says something."""
        for facts, reading in zip(reversed(self.history), reversed(self.readings), strict=True):
            if reading.level is not Level.UNKNOWN:
                return facts, reading
        return None


def evaluate(
    job: JobState, rules: Sequence[Rule], now: datetime, new_id: Callable[[], UUID]
) -> list[IncidentChange]:
    """Return what the sessions, and the time since the last one, change.

    Parameters
    ----------
    rules : sequence of Rule
        All of them; those that do not select the job are left out here.
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
        rule.id: _read(rule, job)
        for rule in selected
        if not isinstance(rule.condition, NoData | Hanging | Noticed)
    }
    # First: what sessions find of the same is no second incident.
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
        _tick(board, incident, by_id)
    return board.changes()


def next_look(job: JobState, rules: Sequence[Rule], now: datetime) -> datetime | None:
    """Return when time alone may change something; None: never.

    Parameters
    ----------
    job : JobState
        With its incidents as they are after `evaluate`.
    now : datetime
    """
    by_id = {rule.id: rule for rule in rules}
    times = [] if is_finished(job.finished_at, job.received) else _silences(job, rules)
    times += next_fires(job)
    for incident in job.incidents:
        if incident.state is IncidentState.SILENCED and incident.silence is not None:
            times.append(incident.silence.until)
        if incident.hang is not None:
            times.append(incident.hang.changed_at + LONGEST + timedelta(seconds=1))
        if incident.cause == NO_DATA_CAUSE:
            # Data that came and could not be analyzed sends no message.
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


def _silences(job: JobState, rules: Sequence[Rule]) -> list[datetime]:
    """Return when rules call the job silent, if nothing comes until then."""
    times = []
    for rule in rules:
        if isinstance(rule.condition, NoData) and rule.enabled and job.received:
            limit = silent_for(rule.condition, job.received)
            settled = job.since.get(rule.id)
            if limit is not None and (settled is None or settled < job.received[-1]):
                times.append(job.received[-1] + limit)
    return times


def _read(rule: Rule, job: JobState) -> _Read:
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
    return _Read(rule, history, read_history(rule, history, lasting))


def _apply(board: Board, read: _Read) -> None:
    """Open, confirm and hold the incidents that a rule's latest session is about."""
    if read.latest is None:
        return
    facts, reading = read.latest
    if reading.level is not Level.BREACH:
        return
    confirmed = read.streak >= read.rule.consecutive
    step_s = reading.baseline_s
    baseline = None if step_s is None else Baseline(facts.layout, step_s)
    for blamed in reading.blamed:
        for found in _about(board, read.rule, blamed):
            board.join(found, read.rule, facts, reading.value, baseline)
            joined = board.get(found.fingerprint)
            if joined is not None and confirmed and can(joined.state, Trigger.CONFIRM):
                board.put(confirm(joined, board.now), "fired")
                joined = board.get(found.fingerprint)
            if joined is not None:
                _escalate_by_value(board, read.rule, joined, reading.value, facts.lost_each_hour)


def _about(board: Board, rule: Rule, blamed: SuspectedCause) -> list[Incident]:
    """Return the incidents that a cause is about; a new one where there is none."""
    present = board.present()
    same = [incident for incident in present if _matches(incident, blamed)]
    if same:
        return same
    if blamed.cause == UNKNOWN:
        # A session that cannot tell the cause does not say that the known one is gone.
        held = [incident for incident in present if rule.id in incident.rules]
        if held:
            return held
    return [board.open(rule, blamed.cause, blamed.where[0] if blamed.where else "")]


def _matches(incident: Incident, blamed: SuspectedCause) -> bool:
    """Compare with every place that is blamed: which of them is worst changes by chance."""
    if incident.notice is not None:
        # The session that was asked for names it, wherever that is.
        return incident.notice.cause == blamed.cause
    if incident.cause != blamed.cause:
        return False
    return incident.where in blamed.where if blamed.where else not incident.where


def _escalate_by_value(
    board: Board, rule: Rule, incident: Incident, value: float | None, lost: float | None
) -> None:
    """Escalate an incident by its rule's number, or by the GPU-hours lost each hour."""
    plan = rule.escalation
    if plan is None or incident.escalated_at or not can(incident.state, Trigger.ESCALATE):
        return
    limits = ((value, plan.at_least), (lost, plan.gpu_hours_per_hour))
    if any(found is not None and most is not None and found >= most for found, most in limits):
        board.put(escalate(incident, board.now), "escalated")


def _apply_no_data(board: Board, rule: Rule) -> None:
    job = board.job
    settled = job.since.get(rule.id)
    if not _is_silent(board, rule) or (settled is not None and settled >= job.received[-1]):
        return
    fingerprint = fingerprint_of(job.job, NO_DATA_CAUSE, "")
    found = board.get(fingerprint) or board.open(rule, NO_DATA_CAUSE, "")
    silent_min = (board.now - job.received[-1]) / timedelta(minutes=1)
    # What it shows must not change at every look: the age of the data is on the page.
    value = found.value if found.value is not None else round(silent_min, 1)
    if rule.id not in found.rules or found.value is None:
        last = job.history[-1].without_verdict if job.history else None
        board.join(found, rule, last, value)
        found = board.get(fingerprint) or found
    if can(found.state, Trigger.CONFIRM):
        board.put(confirm(found, board.now), "fired")


def _is_silent(board: Board, rule: Rule) -> bool:
    received = board.job.received
    if is_finished(board.job.finished_at, received):
        return False
    if not isinstance(rule.condition, NoData) or not received:
        return False
    limit = silent_for(rule.condition, received)
    return limit is not None and board.now - received[-1] >= limit


def _settle(
    board: Board, incident: Incident, rules: Mapping[UUID, Rule], reads: Mapping[UUID, _Read]
) -> None:
    """End an incident that nothing holds any more."""
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


def _clear_sessions(incident: Incident, read: _Read) -> int:
    """Count the latest sessions in a row that are clear of an incident, for one of its rules."""
    count = 0
    for reading in reversed(read.readings):
        if reading.level is Level.UNKNOWN:
            continue
        pending = incident.state is IncidentState.PENDING
        if _holds(incident, reading) and not (pending and reading.level is Level.BETWEEN):
            break
        count += 1
    return count


def _holds(incident: Incident, reading: Reading) -> bool:
    if reading.level is Level.CLEAR:
        return False
    return any(blamed.cause == UNKNOWN or _matches(incident, blamed) for blamed in reading.blamed)


def _tick(board: Board, incident: Incident, rules: Mapping[UUID, Rule]) -> None:
    """Apply the passing of time: end silences, escalate incidents without an acknowledgement."""
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


# ---- What a session that was asked for says of a notice ----------------------------------------


# A session that loses less than this share of its time is healthy.
_LOST: Final = 0.02
# Of what the steps of the pulse grew by, a session has at least this share, or it is as before.
_OF_GROWTH: Final = 0.5


def judge(notice: NoticeFacts, facts: Facts) -> tuple[Outcome, str] | None:
    """Return what a session says of a notice, and the cause that it names.

    A cause at the notice's ranks or hosts confirms it, as any cause does where the notice blames
    none. A cause elsewhere explains it. Without a cause it counts whether steps are as long as
    those that were noticed.

    Returns
    -------
    tuple of Outcome and str, or None
        None where the session cannot tell: neither a verdict nor a known loss.
    """
    if facts.known is None:
        return None
    lost = facts.known.waste if facts.lost is None else facts.lost
    causes = [] if lost < _LOST else [one for one in facts.causes if one.cause != UNKNOWN]
    at_place = next((one for one in causes if _blames(one, notice)), None)
    if at_place is not None:
        return Outcome.CONFIRMED, at_place.cause
    if causes:
        outcome = Outcome.EXPLAINED if notice.ranks else Outcome.CONFIRMED
        return outcome, causes[0].cause
    if _is_as_slow(notice, facts) or any(
        worker.host in notice.hosts and worker.slowdown >= 1 + _LOST for worker in facts.worst
    ):
        return Outcome.CONFIRMED, ""
    return Outcome.CLEARED, ""


def _blames(cause: SuspectedCause, notice: NoticeFacts) -> bool:
    if any(gpu.rank in notice.ranks for gpu in cause.gpus):
        return True
    return any(host in cause.where for host in notice.hosts)


def _is_as_slow(notice: NoticeFacts, facts: Facts) -> bool:
    """Compare the session's steps with those of before; a session without their time is slow."""
    if facts.step_time_s is None or notice.baseline_s is None or notice.step_s is None:
        return True
    grew = max(notice.step_s / notice.baseline_s - 1, _LOST)
    return facts.step_time_s / notice.baseline_s - 1 >= _OF_GROWTH * grew

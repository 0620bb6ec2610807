"""What notices of the pulse make of incidents."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from app.alerts.board import Board, JobState
from app.alerts.incidents import Incident, Trigger, can, clear, confirm, fingerprint_of
from app.alerts.notices.facts import NoticeFacts, Outcome
from app.alerts.readings import HANG_CAUSE
from app.alerts.rules import Hanging, Noticed, Rule

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
        if not _means(condition, notice):
            continue
        found = _about(board, notice)
        if found is None:
            if settled is not None and settled >= notice.noticed_at:
                continue  # a person said that it is over
            found = board.open(rule, _cause(notice), notice.place)
        if found.notice is not None and found.notice.key != notice.key and _lasts(board, found):
            continue  # another notice of the same place has it
        facts = next((one for one in board.job.history if one.session == notice.session_id), None)
        board.join(found, rule, facts, notice.factor)
        joined = replace(board.get(found.fingerprint) or found, notice=notice)
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
        if incident.told and measured_at is not None and board.now < measured_at:
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


def _means(condition: Noticed | Hanging, notice: NoticeFacts) -> bool:
    if isinstance(condition, Hanging):
        return notice.stands_still
    return not notice.stands_still and (not condition.kinds or notice.kind in condition.kinds)


def _cause(notice: NoticeFacts) -> str:
    """Return what an incident is called: whatever stands still is a hang, as its files are."""
    return HANG_CAUSE if notice.stands_still else notice.kind


def _about(board: Board, notice: NoticeFacts) -> Incident | None:
    """Return the incident of a notice, whose place may have changed, or that of its place."""
    for incident in board.present():
        if incident.notice is not None and incident.notice.key == notice.key:
            return incident
    return board.get(fingerprint_of(board.job.job, _cause(notice), notice.place))


def _lasts(board: Board, incident: Incident) -> bool:
    notice = None if incident.notice is None else _latest(board, incident.notice)
    return notice is not None and notice.is_going_on(board.now)


def _latest(board: Board, of: NoticeFacts) -> NoticeFacts | None:
    return next((notice for notice in board.job.notices if notice.key == of.key), None)

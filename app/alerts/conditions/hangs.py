"""What files of a hang, and a pulse that stands still, make of incidents."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from app.alerts.board import Board
from app.alerts.facts import HangFacts
from app.alerts.incidents import Incident, Trigger, can, clear, confirm, fingerprint_of
from app.alerts.readings import HANG_CAUSE
from app.alerts.rules import Hanging, Rule
from app.analysis.wording import gpu_time

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

"""What a session that was asked for says of a notice."""

from __future__ import annotations

from typing import Final

from app.alerts.facts import Facts
from app.alerts.notices.facts import NoticeFacts, Outcome
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.report.verdict import SuspectedCause

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

"""Fixes of what a job loses between its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.places import Hosts
from app.analysis.mitigation.fix import Fix

# A fix that brings less is not worth a restart.
MIN_GAIN: Final = 0.01


def without_standstills(
    fixes: Sequence[Fix], causes: Sequence[Cause], hosts: Hosts, now_s: float, turn_s: float
) -> list[Fix]:
    """Return the fixes of all causes, best first.

    What is lost between steps is a share of the time from one step to the next, which is what such
    a fix is held against; one that shortens steps as well does both.

    Parameters
    ----------
    fixes : sequence of Fix
        Those of causes within steps.
    causes : sequence of Cause
        All that are named.
    now_s : float
        Today's mean step.
    turn_s : float
        What it takes with the gap before it.
    """
    added = []
    for cause in causes:
        kind = KINDS.get(cause.cause)
        if not cause.between_s or kind is None or kind.remedy is None:
            continue
        remedy = kind.remedy(cause, hosts)
        saved_s = cause.between_s + (cause.saves or 0.0) * now_s
        gain = saved_s / turn_s
        if gain >= MIN_GAIN:
            words = (remedy.action, remedy.title, remedy.detail)
            after_s, at_most = turn_s - saved_s, cause.at_most
            added.append(Fix(*words, after_s, gain, cause=cause.cause, at_most=at_most))
    replaced = {fix.cause for fix in added}
    kept = [fix for fix in fixes if fix.cause not in replaced]
    return sorted([*kept, *added], key=lambda fix: -fix.gain)

"""For each named cause the change that removes it: what its diagnosis has replayed already."""

from __future__ import annotations

from collections.abc import Sequence

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.places import Hosts
from app.analysis.mitigation.fix import Fix


def remedies(causes: Sequence[Cause], hosts: Hosts, now_s: float) -> list[Fix]:
    """Return what removes each cause, with what the session replayed without it gains.

    Slow workers and heavy stages are not among them: those are replayed with late launches. Nor are
    pauses and lengths, which stay in the job: their fixes are plans.
    """
    fixes = []
    for cause in causes:
        kind = KINDS.get(cause.cause)
        if kind is None or kind.remedy is None or cause.saves is None:
            continue
        remedy = kind.remedy(cause, hosts)
        step_time_s = now_s * (1 - cause.saves)
        fixes.append(
            Fix(
                *(remedy.action, remedy.title, remedy.detail),
                step_time_s,
                cause.saves,
                cause=cause.cause,
            )
        )
    return fixes

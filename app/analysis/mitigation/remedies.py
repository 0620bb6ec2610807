"""For each named cause the change that removes it: what its diagnosis has replayed already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.analysis.diagnosis.causes.garbage_collection import GARBAGE_COLLECTION
from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.causes.sequence_lengths import SEQUENCE_LENGTHS
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.places import Hosts
from app.analysis.mitigation.fix import Fix

# Garbage is collected all the same, and sequences are as long as they are: their fixes are plans.
PLANNED: Final = frozenset({GARBAGE_COLLECTION.name, SEQUENCE_LENGTHS.name})


def remedies(causes: Sequence[Cause], hosts: Hosts, now_s: float) -> list[Fix]:
    """Return what removes each cause, with what the session replayed without it gains.

    Slow workers and heavy stages are not among them: those are replayed with late launches. Nor is
    what is `PLANNED`.
    """
    fixes = []
    for cause in causes:
        kind = KINDS.get(cause.cause)
        if kind is None or cause.cause in PLANNED or kind.remedy is None or cause.saves is None:
            continue
        remedy = kind.remedy(cause, hosts)
        gain = cause.saves - remedy.adds_s / now_s
        step_time_s = now_s * (1 - gain)
        fixes.append(
            Fix(remedy.action, remedy.title, remedy.detail, step_time_s, gain, cause=cause.cause)
        )
    return fixes

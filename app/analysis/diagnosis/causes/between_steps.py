"""Unrecorded idle time between steps above its usual length.

Ranks that stop together may resume one after another; the delay of later ranks within the step
has the same cause.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, Turn, always, needs_turns
from app.analysis.diagnosis.finding import Change, Evidence, Finding, Launches
from app.analysis.diagnosis.session_view import Signs
from app.analysis.diagnosis.standstills import empty_standstill, unnamed_first_delays
from app.analysis.diagnosis.step_gaps import Passing


def _find(signs: Signs) -> Finding | None:
    """Return the late begins of ranks in steps before which all stood still; else None."""
    passing = signs.passing
    if passing is None or not passing.is_worth_naming(passing.stalled_ns):
        return None
    struck = _struck(signs, passing)
    late_ns = {}
    for node, delay in unnamed_first_delays(signs).items():
        typical = np.median(delay[~struck]) if not struck.all() else 0.0
        late = np.where(struck[:, None], np.maximum(delay - typical, 0.0), 0.0)
        if late.any():
            late_ns[node] = late
    if not late_ns:
        return None
    return Finding(
        change=Change(on_time={node: late > 0 for node, late in late_ns.items()}),
        evidence=(Evidence("Some workers go on later than others after these gaps"),),
        launches=Launches(late_ns),
    )


def _struck(signs: Signs, passing: Passing) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which steps of the most frequent shape follow a standstill."""
    steps = passing.turns.steps[passing.stalled_ns > 0]
    return np.isin(signs.observation.layout.steps, steps)


BETWEEN_STEPS: Final = CauseKind(
    name="between_steps",
    title="Between steps",
    word="between",
    sign="Between some steps, or all, nothing is recorded for far longer than usual.",
    blames_machine=False,
    cannot_judge=needs_turns,
    because=always("the job stands still between steps, with nothing recorded"),
    find=_find,
    between=empty_standstill,
    remedy=always(
        Remedy(
            "name_standstill",
            "Find what the job waits for between steps",
            "The time from one step to the next without these gaps. Recorded with "
            "paceline_client (monitor.between) they get their name: data loading, checkpoints or "
            "evaluations.",
        )
    ),
    turn=Turn.SPECIAL,
    over_steps=True,
)

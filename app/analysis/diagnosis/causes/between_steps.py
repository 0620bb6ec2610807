"""Between steps: idle time between steps without recorded operations, longer than usual.

Ranks that stop together may resume one after another; the delay of the later ranks within the next
step has the same cause.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy, always, needs_step_gaps
from app.analysis.diagnosis.finding import Change, Evidence, Finding, Launches
from app.analysis.diagnosis.session_view import Signs
from app.analysis.diagnosis.standstills import empty_gap_loss, unnamed_first_delays


def _find(signs: Signs) -> Finding | None:
    """Return the late first launches of steps after a long gap; None if no launch is late."""
    gaps = signs.step_gaps
    if gaps is None or not gaps.is_worth_naming(gaps.stalled_ns):
        return None
    after_gap = np.isin(signs.observation.layout.steps, gaps.turns.steps[gaps.stalled_ns > 0])
    late_ns = {}
    for node, delay in unnamed_first_delays(signs).items():
        typical = np.median(delay[~after_gap]) if not after_gap.all() else 0.0
        late = np.where(after_gap[:, None], np.maximum(delay - typical, 0.0), 0.0)
        if late.any():
            late_ns[node] = late
    if not late_ns:
        return None
    return Finding(
        change=Change(on_time={node: late > 0 for node, late in late_ns.items()}),
        evidence=(Evidence("Some workers go on later than others after these gaps"),),
        launches=Launches(late_ns),
    )


BETWEEN_STEPS: Final = CauseKind(
    name="between_steps",
    title="Between steps",
    word="between",
    sign="Between some steps, or all, nothing is recorded for far longer than usual.",
    blames_machine=False,
    cannot_judge=needs_step_gaps,
    because=always("the job stands still between steps, with nothing recorded"),
    find=_find,
    between=empty_gap_loss,
    remedy=always(
        Remedy(
            "name_standstill",
            "Find what the job waits for between steps",
            "The time from one step to the next without these gaps. Recorded with "
            "paceline_client (monitor.between) they get their name: data loading, checkpoints or "
            "evaluations.",
        )
    ),
    phase=Phase.SPECIAL,
    over_steps=True,
)

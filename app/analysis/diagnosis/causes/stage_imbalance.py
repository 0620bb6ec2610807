"""Stage imbalance: a pipeline stage computes more than the other stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.analysis.diagnosis.causes.kind import CauseKind, Plan, needs_comparable_stages
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.locations import JobFacts


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Threshold below which the verdict names a slow worker as the other explanation."""

    # With less confidence than this, a heavy stage with one DP rank may be a slow worker instead.
    sure: float = 0.9


THRESHOLDS: Final = Thresholds()


def _because(cause: Cause, job: JobFacts) -> str:
    stage = cause.where.stage
    which = f"the last stage ({stage})" if stage == job.last_stage else f"stage {stage}"
    peers = stage is not None and job.has_peers(stage)
    if not peers and (cause.confidence or 0.0) < THRESHOLDS.sure:
        return f"{which} takes longer than the others: uneven cost or a slow worker"
    return f"{which} is heavier than the others"


STAGE_IMBALANCE: Final = CauseKind(
    name="stage_imbalance",
    title="Stage imbalance",
    word="stage",
    sign="One stage has more to compute than the others, on the median DP rank and in all steps.",
    blames_machine=False,
    cannot_judge=needs_comparable_stages,
    because=_because,
    find=lambda signs: signs.stage_or_worker.heavy,
    plan=Plan.DIVIDE_LAYERS,
    planned_around=True,
)

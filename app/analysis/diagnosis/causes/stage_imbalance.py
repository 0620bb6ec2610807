"""Stages that have more to compute than the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.analysis.diagnosis.causes.kind import CauseKind, Plan, needs_like_stages
from app.analysis.diagnosis.finding import Cause, Finding
from app.analysis.diagnosis.locations import JobFacts
from app.analysis.diagnosis.session_view import Signs


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides how the verdict names a heavy stage."""

    # Below this confidence a stage of one DP rank may have a slow worker instead.
    sure: float = 0.9


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return the heaviest stage, where stages differ; without it all have the same to compute."""
    return signs.stage_or_worker.heavy


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
    cannot_judge=needs_like_stages,
    because=_because,
    find=_find,
    plan=Plan.DIVIDE_LAYERS,
    planned_around=True,
)

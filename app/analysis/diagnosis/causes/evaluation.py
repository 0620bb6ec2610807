"""Evaluations between steps, as recorded by the ranks."""

from __future__ import annotations

from typing import Final

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, always
from app.analysis.diagnosis.standstills import recorded_gap_loss, with_recorded
from app.analysis.trace.model import EVALUATION as RECORDED

EVALUATION: Final = CauseKind(
    name="evaluation",
    title="Evaluation",
    word="evaluating",
    sign="Between steps, ranks are recorded to evaluate.",
    blames_machine=False,
    cannot_judge=lambda _signs: None,
    because=always("steps wait for evaluations"),
    find=lambda signs: with_recorded(signs, RECORDED, None),
    between=lambda signs: recorded_gap_loss(signs, RECORDED, "The job evaluates"),
    remedy=always(
        Remedy(
            "evaluate_elsewhere",
            "Evaluate less often, or on other machines",
            "The time from one step to the next without evaluations. Done half as often, half of "
            "it comes back; a checkpoint is evaluated elsewhere without holding up the job.",
        )
    ),
    over_steps=True,
)

"""Stages that have more to compute than the others."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, needs_like_stages
from app.analysis.diagnosis.figures import StageLoad
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding
from app.analysis.diagnosis.observation import lower_median
from app.analysis.diagnosis.places import JobFacts, StageView, Where
from app.analysis.diagnosis.signs import Signs
from app.analysis.replay.layout.dense import FloatArray

# The heaviest stage is too heavy from here on, against the mean of all.
_HEAVY: Final = 1.03


def _find(signs: Signs) -> Finding | None:
    """Return the heaviest stage, where stages differ; without it all have the same to compute."""
    observation = signs.observation
    if not observation.comparable:
        return None
    # The middle of the DP ranks, so that one slow worker does not make a heavy stage.
    levels = {
        name: lower_median(passes.own_ns, axis=2) for name, passes in observation.passes.items()
    }
    total = np.sum([level.sum(axis=1) for level in levels.values()], axis=0)
    heaviest = int(np.argmax(total))
    if observation.layout.pp == 1 or total[heaviest] < _HEAVY * total.mean():
        return None
    times: dict[int, FloatArray] = {}
    for name, passes in observation.passes.items():
        level = levels[name]
        factor = level.mean() / level
        for stage, nodes in enumerate(passes.nodes):
            for node, chunk in zip(nodes.tolist(), passes.chunk.tolist(), strict=True):
                times[node] = np.asarray(factor[stage, chunk])
    return Finding(
        change=Change(times=times),
        evidence=(_evidence(levels, total, heaviest),),
        where=Where(stage=heaviest),
        figure=StageLoad(relative=tuple((total / total.mean()).tolist())),
    )


def _evidence(levels: dict[str, FloatArray], total: FloatArray, heaviest: int) -> Evidence:
    others = np.arange(len(total)) != heaviest
    against = {
        name.split("-")[0]: float(
            level.sum(axis=1)[heaviest] / np.median(level.sum(axis=1)[others])
        )
        for name, level in levels.items()
    }
    listed = ", ".join(f"{name} {ratio:.2f}×" for name, ratio in against.items())
    last = "The last stage" if heaviest == len(total) - 1 else f"Stage {heaviest}"
    return Evidence(
        f"{last} against the median of the other stages: {listed}, on every DP rank",
        StageView(pp=heaviest),
    )


def _because(cause: Cause, job: JobFacts) -> str:
    stage = cause.where.stage
    which = f"the last stage ({stage})" if stage == job.last_stage else f"stage {stage}"
    return f"{which} is heavier than the others"


STAGE_IMBALANCE: Final = CauseKind(
    name="stage_imbalance",
    title="Stage imbalance",
    word="stage",
    sign="One stage has more to compute than the others, on the middle DP rank and in all steps.",
    cannot_judge=needs_like_stages,
    because=_because,
    find=_find,
    planned_around=True,
)

"""Steps that wait for their batch: their first operations are launched late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, needs_gathers
from app.analysis.diagnosis.figures import LateLaunches
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding, Launches
from app.analysis.diagnosis.late_launches import first_delays
from app.analysis.diagnosis.places import FigureView, Hosts, JobFacts, StepView, Where
from app.analysis.diagnosis.signs import Signs
from app.analysis.replay.layout.dense import FloatArray

_ALL_WAIT: Final = "steps wait for their data"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether steps wait for their batch."""

    least_share: float = 0.01  # steps wait when the latest stage does so for this share of a step
    # A stage waits when it does so for this share of what the latest one does.
    waiting: float = 0.5


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return the wait for batches; without it first operations are launched when they may be."""
    observation, nodes = signs.observation, signs.observation.layout.nodes
    delays = _unless_paused(signs, observation.once(first_delays))
    by_stage: dict[int, FloatArray] = {}
    for node, delay in delays.items():
        stage = int(nodes.pp[node])
        by_stage[stage] = by_stage[stage] + delay if stage in by_stage else delay
    if not by_stage:
        # Of no stage is it known when a step begins.
        return None
    latest = np.max(list(by_stage.values()), axis=0)
    if np.mean(latest) < THRESHOLDS.least_share * signs.step_ns:
        return None
    waiting = tuple(
        stage
        for stage, delay in sorted(by_stage.items())
        if float(np.mean(delay)) >= THRESHOLDS.waiting * float(np.mean(latest))
    )
    somewhere = Where(stages=waiting if len(waiting) < observation.layout.pp else ())
    by_step = latest.max(axis=1)
    worst = int(np.argmax(by_step))
    evidence = [
        Evidence(
            f"The first operations of a step are launched {np.mean(latest) / 1e6:.0f} ms late on "
            f"average, {by_step[worst] / 1e6:.0f} ms in the worst step",
            StepView(step=int(observation.layout.steps[worst])),
        )
    ]
    by_rank = np.mean(latest, axis=0)
    slowest = int(np.argmax(by_rank))
    where = somewhere
    figure = LateLaunches(by_step_s=tuple((by_step / 1e9).tolist()))
    if observation.layout.dp > 1 and by_rank[slowest] > 2 * np.median(by_rank):
        where = replace(somewhere, dp=slowest)
        figure = replace(figure, by_dp_s=tuple((by_rank / 1e9).tolist()))
        evidence.append(
            Evidence(
                f"DP rank {slowest} waits longest: {by_rank[slowest] / 1e6:.0f} ms, the median "
                f"{np.median(by_rank) / 1e6:.0f} ms",
                FigureView(part="ranks"),
            )
        )
    on_time = {node: np.ones(delay.shape, bool) for node, delay in delays.items()}
    return Finding(Change(on_time=on_time), tuple(evidence), where, figure, Launches(delays))


def _unless_paused(signs: Signs, delays: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """Return delays without what pauses of an interpreter make, which strike any forward."""
    stalled = signs.stalled_launches
    if stalled is None:
        return delays
    paused = dict(zip(stalled.nodes.tolist(), stalled.late_ns, strict=True))
    return {
        node: np.where(paused[node] > 0, 0.0, delay) if node in paused else delay
        for node, delay in delays.items()
    }


def _because(cause: Cause, job: JobFacts) -> str:
    del job
    stages = cause.where.stages
    return f"steps wait for data on stage {stages[0]}" if len(stages) == 1 else _ALL_WAIT


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    del hosts
    dp = cause.where.dp
    return Remedy(
        "load_ahead",
        "Load batches ahead" if dp is None else f"Load the batches of DP rank {dp} ahead",
        "Replayed with the first operations of each step launched when they may be: its batch is "
        "there before it begins.",
    )


DATA_LOADING: Final = CauseKind(
    name="data_loading",
    title="Data loading",
    word="loading",
    sign="The first operations of a step are launched late: what gathers parameters, the first "
    "forward of stage 0, and the first receive of a forward elsewhere.",
    blames_machine=False,
    cannot_judge=needs_gathers,
    because=_because,
    find=_find,
    remedy=_remedy,
)

"""Steps that wait for their batch: late launches of their first operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, needs_begins
from app.analysis.diagnosis.finding import (
    Cause,
    Change,
    Doubt,
    Evidence,
    Finding,
    LateLaunches,
    Launches,
)
from app.analysis.diagnosis.locations import FigureView, Hosts, JobFacts, StepView, Where
from app.analysis.diagnosis.periodic_standstills import FEWEST, interval, listed, may_stand_still
from app.analysis.diagnosis.session_view import Signs
from app.analysis.diagnosis.standstills import (
    recorded_standstill,
    unnamed_first_delays,
    with_recorded,
)
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.robust_statistics import mean, median
from app.analysis.trace.model import DATA_LOADING as RECORDED
from app.analysis.wording import named

# A step is one of those that wait when it waits for this share of what the worst does.
_STRUCK: Final = 0.5
_ALL_WAIT: Final = "steps wait for their data"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether steps wait for their batch."""

    least_share: float = 0.01  # steps wait when the latest stage does so for this share of a step
    # A stage waits when it does so for this share of what the latest one does.
    waiting: float = 0.5
    # The highest confidence where one or two steps wait for so much longer than the others that it
    # may be for something else.
    in_doubt: float = 0.8


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return what waits for batches, by its sign and while ranks are recorded to load them."""
    return with_recorded(signs, RECORDED, _by_sign(signs))


def _by_sign(signs: Signs) -> Finding | None:
    """Return the wait for batches; without it first operations are launched when they may be."""
    observation, nodes = signs.observation, signs.observation.layout.nodes
    delays = _unless_paused(signs, unnamed_first_delays(signs))
    by_stage: dict[int, FloatArray] = {}
    for node, delay in delays.items():
        stage = int(nodes.pp[node])
        by_stage[stage] = by_stage[stage] + delay if stage in by_stage else delay
    if not by_stage:
        # Of no stage is it known when a step begins.
        return None
    latest = np.max(list(by_stage.values()), axis=0)
    late_ns = float(np.mean(latest))
    if late_ns < THRESHOLDS.least_share * signs.step_ns:
        return None
    waiting = tuple(
        stage
        for stage, delay in sorted(by_stage.items())
        if float(np.mean(delay)) >= THRESHOLDS.waiting * late_ns
    )
    somewhere = Where(stages=waiting if len(waiting) < observation.layout.pp else ())
    by_step = latest.max(axis=1)
    worst = int(np.argmax(by_step))
    evidence = [
        Evidence(
            f"The first operations of a step are launched {late_ns / 1e6:.0f} ms late on "
            f"average, {by_step[worst] / 1e6:.0f} ms in the worst step",
            StepView(step=int(observation.layout.steps[worst])),
        )
    ]
    struck = by_step >= _STRUCK * by_step[worst]
    apart = interval(observation.layout.steps, struck)
    if apart and struck.sum() >= FEWEST:
        steps = listed(observation.layout.steps[struck].tolist())
        evidence.append(Evidence(f"Most of it every {apart} steps, in {steps}"))
    by_rank = mean(latest)
    slowest = int(np.argmax(by_rank))
    where = somewhere
    figure = LateLaunches(by_step_s=tuple((by_step / 1e9).tolist()))
    late = np.flatnonzero(by_rank >= THRESHOLDS.waiting * by_rank[slowest]).tolist()
    others_ns = float(median(np.delete(by_rank, late))) if len(late) < len(by_rank) else np.inf
    if 2 * len(late) <= len(by_rank) and by_rank[slowest] > 2 * others_ns:
        where = replace(somewhere, dp=slowest) if len(late) == 1 else somewhere
        figure = replace(figure, by_dp_s=tuple((by_rank / 1e9).tolist()))
        evidence.append(
            Evidence(
                f"{_ranks(signs, late)} longest: {by_rank[slowest] / 1e6:.0f} ms, the others "
                f"{others_ns / 1e6:.0f} ms",
                FigureView(part="ranks"),
            )
        )
    doubt, beyond = None, may_stand_still(signs, delays)
    if beyond is not None:
        steps = listed(observation.layout.steps[beyond].tolist())
        evidence.append(
            Evidence(
                f"Longest in {steps}: that may as well be a checkpoint, which batches that "
                "are loaded ahead do not shorten"
            )
        )
        doubt = Doubt(THRESHOLDS.in_doubt, at_most=True)
    on_time = {node: np.ones(delay.shape, bool) for node, delay in delays.items()}
    return Finding(
        Change(on_time=on_time), tuple(evidence), where, figure, Launches(delays), doubt=doubt
    )


def _ranks(signs: Signs, late: Sequence[int]) -> str:
    """Say which DP ranks wait, and on which host where they are all of its workers."""
    text = named("DP rank", [str(rank) for rank in late])
    if len(late) == 1:
        return f"{text} waits"
    workers = [(dp, pp) for dp in late for pp in range(signs.observation.layout.pp)]
    host = signs.observation.hosts.whole_host(workers)
    return f"{text} wait" if host is None else f"{text}, all on {host}, wait"


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
    how = (
        "The time from one step to the next without loading"
        if cause.between_s
        else "Replayed with the first operations of each step launched when they may be"
    )
    return Remedy(
        "load_ahead",
        "Load batches ahead" if dp is None else f"Load the batches of DP rank {dp} ahead",
        f"{how}: a step's batch is there before it begins.",
    )


DATA_LOADING: Final = CauseKind(
    name="data_loading",
    title="Data loading",
    word="loading",
    sign="The first operations of a step are launched late: what gathers parameters, the first "
    "forward of stage 0, and the first receive of a forward elsewhere; or ranks are recorded to "
    "load batches.",
    blames_machine=False,
    cannot_judge=needs_begins,
    because=_because,
    find=_find,
    between=lambda signs: recorded_standstill(signs, RECORDED, "Batches are loaded"),
    remedy=_remedy,
    recurs=True,
)

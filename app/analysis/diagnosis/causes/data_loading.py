"""Data loading: the first operations of steps launch late, as they wait for their batch of data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, needs_step_begins
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
    loading_recorded,
    recorded_gap_loss,
    unnamed_first_delays,
    with_recorded,
)
from app.analysis.quantities import FloatArray
from app.analysis.replay.robust_statistics import mean, median
from app.analysis.trace.model import DATA_LOADING as RECORDED
from app.analysis.wording import name_list

# The evidence lists the steps whose wait is at least this share of the longest wait.
_STRUCK: Final = 0.5


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether steps wait for their batch."""

    # Steps wait when the latest rank of the latest stage is late by this share of a step.
    least_share: float = 0.01
    # A stage waits when its lateness is this share of the latest stage's lateness.
    waiting: float = 0.5
    # Highest confidence if one or two steps wait so much longer than the other steps that they may
    # wait for another reason, such as a checkpoint.
    in_doubt: float = 0.8
    # Highest confidence if a rank begins steps late alone, and no rank records what it loads.
    of_one_rank: float = 0.5


THRESHOLDS: Final = Thresholds()


def _by_sign(signs: Signs) -> Finding | None:
    """Return the wait for batches; without the cause, first operations launch at once."""
    observation, nodes = signs.observation, signs.observation.layout.nodes
    delays, stalled = unnamed_first_delays(signs), signs.stalled_launches
    loading = loading_recorded(signs)
    if loading.any():
        # What the loaders' own records do not cover is no wait for a batch.
        delays = {node: np.where(loading, 0.0, delay) for node, delay in delays.items()}
    if stalled is not None:
        # Pauses of the interpreter delay any forward, so their delays are no wait for a batch.
        paused_ns = dict(zip(stalled.nodes.tolist(), stalled.late_ns, strict=True))
        delays = {
            node: np.where(paused_ns[node] > 0, 0.0, delay) if node in paused_ns else delay
            for node, delay in delays.items()
        }
    by_stage: dict[int, FloatArray] = {}
    for node, delay in delays.items():
        stage = int(nodes.pp[node])
        by_stage[stage] = by_stage[stage] + delay if stage in by_stage else delay
    if not by_stage:
        # No stage recorded the operations that begin a step.
        return None
    latest = np.max(list(by_stage.values()), axis=0)
    late_ns = float(np.mean(latest))
    by_step = latest.max(axis=1)
    # All ranks wait for the latest rank, so its lateness counts, however many ranks are on time.
    if float(np.mean(by_step)) < THRESHOLDS.least_share * signs.step_ns:
        return None
    waiting = tuple(
        stage
        for stage, delay in sorted(by_stage.items())
        if float(np.mean(delay)) >= THRESHOLDS.waiting * late_ns
    )
    somewhere = Where(stages=waiting if len(waiting) < observation.layout.pp else ())
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
    if where.dp is not None and not loading.any():
        evidence.append(
            Evidence(
                "No rank records when it loads batches: a rank that begins steps late alone may as "
                "well stand still for another reason"
            )
        )
        doubt = Doubt(THRESHOLDS.of_one_rank, at_most=True)
    on_time = {node: np.ones(delay.shape, bool) for node, delay in delays.items()}
    return Finding(
        Change(on_time=on_time), tuple(evidence), where, figure, Launches(delays), doubt=doubt
    )


def _ranks(signs: Signs, late: Sequence[int]) -> str:
    """Name the DP ranks that wait, and their host if they are all of this host's workers."""
    text = name_list("DP rank", [str(rank) for rank in late])
    if len(late) == 1:
        return f"{text} waits"
    workers = [(dp, pp) for dp in late for pp in range(signs.observation.layout.pp)]
    host = signs.observation.hosts.whole_host(workers)
    return f"{text} wait" if host is None else f"{text}, all on {host}, wait"


def _because(cause: Cause, job: JobFacts) -> str:  # noqa: ARG001 - no host is to blame
    if cause.where.dp is not None and cause.at_most:
        return f"DP rank {cause.where.dp} stands still before steps, maybe for its data"
    if len(cause.where.stages) == 1:
        return f"steps wait for data on stage {cause.where.stages[0]}"
    return "steps wait for their data"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:  # noqa: ARG001 - no host is named
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
    cannot_judge=needs_step_begins,
    because=_because,
    find=lambda signs: with_recorded(signs, RECORDED, _by_sign(signs)),
    between=lambda signs: recorded_gap_loss(signs, RECORDED, "Batches are loaded"),
    remedy=_remedy,
    recurs=True,
)

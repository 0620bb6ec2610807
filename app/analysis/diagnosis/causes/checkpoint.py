"""Checkpoint: every stage begins some steps late, at even intervals.

A session is often shorter than two intervals, so a single late step counts as a checkpoint too,
with less confidence: data that are late would be late repeatedly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy, needs_step_begins
from app.analysis.diagnosis.finding import (
    Alternative,
    Cause,
    Change,
    Doubt,
    Evidence,
    Finding,
    LateLaunches,
    Launches,
)
from app.analysis.diagnosis.locations import Hosts, StepView, Where
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.periodic_standstills import (
    at_intervals,
    by_stage,
    listed,
    stands_still,
    together_ns,
)
from app.analysis.diagnosis.session_view import Signs
from app.analysis.diagnosis.standstills import (
    recorded_gap_loss,
    unnamed_first_delays,
    with_recorded,
)
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.trace.model import CHECKPOINT as RECORDED


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether steps stand still as with checkpoints."""

    # A rank takes part when it begins late by this share of the job's mean standstill.
    alike: float = 0.5
    # …and a stage by this share.
    others: float = 0.25
    # All ranks write: this share of each stage's DP ranks takes part.
    ranks: float = 0.75
    # A stage also waits for something else when it begins another step late by this share of a
    # standstill.
    waiting: float = 0.1
    # With one stage, fewer standstills are in doubt: any two steps are at some interval.
    sure_from: int = 3
    # The highest confidence of a single standstill, or of few on the only stage, which may as well
    # wait for data.
    in_doubt: float = 0.8


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Standstill:
    """Steps at whose begin no stage launches anything."""

    # (steps,): how late each step begins: the earliest stage's median over the DP ranks
    late_ns: FloatArray
    struck: NDArray[np.bool_]  # (steps,): the steps that stand still
    apart: int  # their interval in steps, or a divisor of it; 0 for a single step
    stages: int  # stages whose first operations are recorded
    dp: int | None = None  # the only DP rank that stands still; None if all do


def _standstill(signs: Signs, first: dict[int, FloatArray]) -> _Standstill | None:
    """Return the steps that stand still: a single one, or several at even intervals; else None.

    Where weights are not sharded, a single DP rank may write them. `first` is how late each first
    operation launches, by node, shape (steps, dp), ns.
    """
    observation = signs.observation
    stages = by_stage(observation, first)
    if not stages:
        # No stage recorded the operations that begin a step.
        return None
    common = _at_intervals(signs, together_ns(stages), len(stages))
    if common is not None:
        least = THRESHOLDS.alike * common.late_ns[common.struck].mean()
        ranks = [float((late[common.struck] >= least).mean()) for late in stages.values()]
        if min(ranks) >= THRESHOLDS.ranks:
            return common
    of_rank = np.min(list(stages.values()), axis=0)
    slowest = int(np.argmax(of_rank.sum(axis=0)))
    alone = _at_intervals(signs, of_rank[:, slowest], len(stages))
    # A single rank that waits once may as well wait for its data.
    if alone is None or not alone.apart:
        return None
    # With one stage the first rank writes; another rank, or few standstills, may wait for data.
    if alone.stages == 1 and (slowest or alone.struck.sum() < THRESHOLDS.sure_from):
        return None
    return replace(alone, dp=slowest)


def _at_intervals(signs: Signs, late_ns: FloatArray, stages: int) -> _Standstill | None:
    """Return the steps that stand still, given how late each begins; None if none do."""
    if not stands_still(signs, late_ns):
        return None
    struck = at_intervals(signs.observation, late_ns)
    return None if struck is None else _Standstill(late_ns, *struck, stages)


def _by_sign(signs: Signs) -> Finding | None:
    """Return the standstills; without them those steps begin as late as the others."""
    observation = signs.observation
    first = unnamed_first_delays(signs)
    found = _standstill(signs, first)
    if found is None:
        return None
    gaps = signs.step_gaps
    if gaps is not None and gaps.is_worth_naming(gaps.stalled_ns):
        stalled = gaps.turns.steps[gaps.stalled_ns > 0]
        if np.isin(observation.layout.steps[found.struck], stalled).mean() > 1 / 2:
            # late only after a long gap between steps, which is another cause
            return None
    late_ns = _late_ns(found, first)
    count = int(found.struck.sum())
    may_be_data = found.stages == 1 and count < THRESHOLDS.sure_from
    doubt = None
    if may_be_data or count == 1:
        doubt = Doubt(THRESHOLDS.in_doubt, Alternative() if may_be_data else None)
    return Finding(
        change=Change(on_time={node: late > 0 for node, late in late_ns.items()}),
        evidence=tuple(_evidence(observation, found)),
        where=Where(dp=found.dp),
        figure=LateLaunches(by_step_s=tuple((found.late_ns / 1e9).tolist())),
        launches=Launches(late_ns),
        doubt=doubt,
    )


def _late_ns(found: _Standstill, first: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """Return how late checkpoints make first operations launch, by node, shape (steps, dp), ns.

    A stage that is late in other steps too waits for something else as well: of its delay, as much
    counts as the other stages take to write.
    """
    least_ns = THRESHOLDS.others * found.late_ns[found.struck].mean()
    ranks = slice(None) if found.dp is None else slice(found.dp, found.dp + 1)
    # Nodes that stand still: a stage does so before it gathers its parameters, or after.
    delays = {
        node: delay[:, ranks]
        for node, delay in first.items()
        if delay[found.struck, ranks].mean() >= least_ns
    }
    typical = {node: float(np.median(delay[~found.struck])) for node, delay in delays.items()}
    waiting = {
        node
        for node, delay in delays.items()
        if delay[~found.struck].max() >= THRESHOLDS.waiting * found.late_ns[found.struck].mean()
    }
    only_write = [delay - typical[node] for node, delay in delays.items() if node not in waiting]
    alike = np.median(only_write, axis=(0, 2))[:, None] if only_write else None
    late_ns = {}
    for node, delay in delays.items():
        if alike is not None and node in waiting:
            late = np.minimum(delay, alike)
        else:
            late = delay - typical[node]
        late_ns[node] = np.zeros_like(first[node])
        late_ns[node][:, ranks] = np.where(found.struck[:, None], np.maximum(late, 0.0), 0.0)
    return late_ns


def _evidence(observation: Observation, found: _Standstill) -> list[Evidence]:
    steps = listed(observation.layout.steps[found.struck].tolist())
    worst = int(np.argmax(found.late_ns))
    who = f"All {found.stages} stages launch" if found.stages > 1 else "DP ranks launch"
    if found.dp is not None:
        who = f"DP rank {found.dp} launches"
    when = (
        f"{steps}: {found.apart} steps apart, or several times that"
        if found.apart
        else f"{steps}, and of no other"
    )
    return [
        Evidence(
            f"{who} nothing for {found.late_ns[found.struck].mean() / 1e6:.0f} ms at the start of "
            f"{when}",
            StepView(step=int(observation.layout.steps[worst])),
        ),
        Evidence(
            f"The {int((~found.struck).sum())} other steps begin within "
            f"{found.late_ns[~found.struck].max() / 1e6:.0f} ms"
        ),
    ]


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:  # noqa: ARG001 - no host is named
    how = (
        "The time from one step to the next without them"
        if cause.between_s
        else "Replayed with the first operations of those steps launched as soon as in the others"
    )
    return Remedy(
        "save_in_background",
        "Save checkpoints in the background",
        f"{how}: weights are copied to the host's memory and written out while the job goes on. "
        "Saved half as often, half of it comes back.",
    )


CHECKPOINT: Final = CauseKind(
    name="checkpoint",
    title="Checkpoint",
    word="saving",
    sign="At a fixed interval of steps, or once, and in no other step, the first operations of all "
    "stages are launched late, about equally; or ranks are recorded to write checkpoints.",
    blames_machine=False,
    cannot_judge=needs_step_begins,
    because=lambda cause, _job: (
        "steps wait for checkpoints"
        if cause.between_s
        else "all stages stand still at the start of some steps, as with checkpoints"
    ),
    find=lambda signs: with_recorded(signs, RECORDED, _by_sign(signs)),
    between=lambda signs: recorded_gap_loss(signs, RECORDED, "Checkpoints are written"),
    remedy=_remedy,
    phase=Phase.SPECIAL,
    over_steps=True,
)

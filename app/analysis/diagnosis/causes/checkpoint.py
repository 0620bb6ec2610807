"""Checkpoint: every stage begins some steps late, at equal intervals.

A session is often shorter than two intervals, so a single late step counts as a checkpoint too,
with less confidence: late data would make several steps late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

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
from app.analysis.quantities import BoolArray, FloatArray
from app.analysis.trace.model import CHECKPOINT as RECORDED


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether steps stand still as for checkpoints."""

    # A rank takes part in a checkpoint when it begins late by this share of the job's mean
    # standstill.
    alike: float = 0.5
    # A stage takes part when it begins late by this share of the job's mean standstill.
    others: float = 0.25
    # All ranks write the checkpoint when this share of each stage's DP ranks takes part.
    ranks: float = 0.75
    # A stage also waits for another reason when it begins a step without a checkpoint late by this
    # share of a standstill.
    waiting: float = 0.1
    # With one stage, the cause is in doubt for fewer standstills than this: any two steps have some
    # interval.
    sure_from: int = 3
    # Highest confidence in a single standstill, or in few standstills of a job with one stage: the
    # job may also wait for data.
    in_doubt: float = 0.8


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Standstill:
    """Steps at the beginning of which no stage launches any operation."""

    # (steps,): lateness of each step's begin: the earliest stage's median over the DP ranks
    late_ns: FloatArray
    struck: BoolArray  # (steps,): the steps that stand still
    apart: int  # their interval in steps, or a divisor of it; 0 for a single step
    stages: int  # stages whose first operations are recorded
    dp: int | None = None  # the only DP rank that stands still; None if all do


def _standstill(signs: Signs, first: dict[int, FloatArray]) -> _Standstill | None:
    """Return a single step that stands still, or several at equal intervals; None without any.

    If weights are not sharded, a single DP rank may write them. `first` are the launch delays of
    first operations, by node, shape (steps, dp), ns.
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
    # A single DP rank that is late once may as well wait for its data.
    if alone is None or not alone.apart:
        return None
    # With one stage the first DP rank writes the checkpoint: another rank may wait for data, and so
    # may the first rank if it stands still only a few times.
    if alone.stages == 1 and (slowest or alone.struck.sum() < THRESHOLDS.sure_from):
        return None
    return replace(alone, dp=slowest)


def _at_intervals(signs: Signs, late_ns: FloatArray, stages: int) -> _Standstill | None:
    """Return the steps that stand still, given each step's lateness; None if none do."""
    if not stands_still(signs, late_ns):
        return None
    struck = at_intervals(signs.observation, late_ns)
    return None if struck is None else _Standstill(late_ns, *struck, stages)


def _by_sign(signs: Signs) -> Finding | None:
    """Return the standstills; without the cause, these steps begin as late as other steps."""
    observation = signs.observation
    first = unnamed_first_delays(signs)
    standstill = _standstill(signs, first)
    if standstill is None:
        return None
    gaps = signs.step_gaps
    if gaps is not None and gaps.is_worth_naming(gaps.stalled_ns):
        stalled = gaps.turns.steps[gaps.stalled_ns > 0]
        if np.isin(observation.layout.steps[standstill.struck], stalled).mean() > 1 / 2:
            # These steps are late only after a long gap between steps, which is another cause.
            return None
    late_ns = _late_ns(standstill, first)
    count = int(standstill.struck.sum())
    may_be_data = standstill.stages == 1 and count < THRESHOLDS.sure_from
    doubt = None
    if may_be_data or count == 1:
        doubt = Doubt(THRESHOLDS.in_doubt, Alternative() if may_be_data else None)
    return Finding(
        change=Change(on_time={node: late > 0 for node, late in late_ns.items()}),
        evidence=tuple(_evidence(observation, standstill)),
        where=Where(dp=standstill.dp),
        figure=LateLaunches(by_step_s=tuple((standstill.late_ns / 1e9).tolist())),
        launches=Launches(late_ns),
        doubt=doubt,
    )


def _late_ns(standstill: _Standstill, first: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """Return launch delays of first operations by checkpoints, by node, shape (steps, dp), ns.

    A stage that is late in other steps too also waits for another reason: of its delay, the part
    counts that the other stages take to write the checkpoint.
    """
    least_ns = THRESHOLDS.others * standstill.late_ns[standstill.struck].mean()
    ranks = slice(None) if standstill.dp is None else slice(standstill.dp, standstill.dp + 1)
    # Late first operations: a stage stands still before or after it gathers its parameters.
    delays = {
        node: delay[:, ranks]
        for node, delay in first.items()
        if delay[standstill.struck, ranks].mean() >= least_ns
    }
    typical = {node: float(np.median(delay[~standstill.struck])) for node, delay in delays.items()}
    waiting = {
        node
        for node, delay in delays.items()
        if delay[~standstill.struck].max()
        >= THRESHOLDS.waiting * standstill.late_ns[standstill.struck].mean()
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
        late_ns[node][:, ranks] = np.where(standstill.struck[:, None], np.maximum(late, 0.0), 0.0)
    return late_ns


def _evidence(observation: Observation, standstill: _Standstill) -> list[Evidence]:
    steps = listed(observation.layout.steps[standstill.struck].tolist())
    worst = int(np.argmax(standstill.late_ns))
    who = f"All {standstill.stages} stages launch" if standstill.stages > 1 else "DP ranks launch"
    if standstill.dp is not None:
        who = f"DP rank {standstill.dp} launches"
    when = (
        f"{steps}: {standstill.apart} steps apart, or several times that"
        if standstill.apart
        else f"{steps}, and of no other"
    )
    return [
        Evidence(
            f"{who} nothing for {standstill.late_ns[standstill.struck].mean() / 1e6:.0f} ms at the "
            f"start of {when}",
            StepView(step=int(observation.layout.steps[worst])),
        ),
        Evidence(
            f"The {int((~standstill.struck).sum())} other steps begin within "
            f"{standstill.late_ns[~standstill.struck].max() / 1e6:.0f} ms"
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

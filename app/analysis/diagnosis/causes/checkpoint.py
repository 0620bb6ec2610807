"""Steps that begin late on every stage at even intervals, as checkpoints make them.

A session is often shorter than two intervals. A single late step is a checkpoint too, with less
confidence: late data would be late repeatedly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, Turn, needs_begins
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
from app.analysis.diagnosis.locations import Hosts, JobFacts, StepView, Where
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
    recorded_standstill,
    unnamed_first_delays,
    with_recorded,
)
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.trace.model import CHECKPOINT as RECORDED


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether steps stand still as with checkpoints."""

    # A rank is struck, and a stage, when it begins late by these shares of what the job does.
    alike: float = 0.5
    others: float = 0.25
    # All ranks write: of each stage this share of its DP ranks begins a struck step late.
    ranks: float = 0.75
    # A stage waits for something else as well that begins another step late by this share of a
    # standstill.
    waiting: float = 0.1
    # Standstills of one stage that are not in doubt: any two steps are some number apart.
    sure_from: int = 3
    # The highest confidence of a single standstill, or of few of one stage only, which may as
    # well wait for data.
    in_doubt: float = 0.8


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Standstill:
    """Steps in which nothing is launched at first, on any stage."""

    # (steps,): how late each step begins: the earliest stage's median over the DP ranks.
    late_ns: FloatArray
    struck: NDArray[np.bool_]  # (steps,)
    # What the numbers of the steps struck are apart, or several times that; 0 of a single one.
    apart: int
    stages: int  # whose first operations are recorded
    dp: int | None = None  # the DP rank that stands still, where the others do not


def _standstill(signs: Signs, first: dict[int, FloatArray]) -> _Standstill | None:
    """Return the steps that stand still: a single one, or some at even intervals; else None.

    Where weights are not sharded a single DP rank may write them.
    """
    observation = signs.observation
    stages = by_stage(observation, first)
    if not stages:
        # Of no stage is it known when a step begins.
        return None
    found = _at_intervals(signs, together_ns(stages), len(stages))
    if found is not None:
        least = THRESHOLDS.alike * found.late_ns[found.struck].mean()
        ranks = [float((late[found.struck] >= least).mean()) for late in stages.values()]
        if min(ranks) >= THRESHOLDS.ranks:
            return found
    of_rank = np.min(list(stages.values()), axis=0)
    slowest = int(np.argmax(of_rank.sum(axis=0)))
    alone = _at_intervals(signs, of_rank[:, slowest], len(stages))
    # One rank that waits once, or a few times on one stage, may as well wait for its data.
    if alone is None or not alone.apart:
        return None
    # Of one stage the first rank writes; another one waits for its data.
    if alone.stages == 1 and (slowest or alone.struck.sum() < THRESHOLDS.sure_from):
        return None
    return replace(alone, dp=slowest)


def _at_intervals(signs: Signs, late_ns: FloatArray, stages: int) -> _Standstill | None:
    """Return the steps that stand still, given how late each begins; None where none do."""
    if not stands_still(signs, late_ns):
        return None
    found = at_intervals(signs.observation, late_ns)
    return None if found is None else _Standstill(late_ns, *found, stages)


def _goes_on_late(signs: Signs, struck: NDArray[np.bool_]) -> bool:
    """Return whether steps begin late on some ranks since all stood still, for what has no name."""
    passing = signs.passing
    if passing is None or not passing.is_worth_naming(passing.stalled_ns):
        return False
    stalled = passing.turns.steps[passing.stalled_ns > 0]
    return bool(np.isin(signs.observation.layout.steps[struck], stalled).mean() > 1 / 2)


def _find(signs: Signs) -> Finding | None:
    """Return what stands still at the start of steps, and what waits for a recorded checkpoint."""
    return with_recorded(signs, RECORDED, _by_sign(signs))


def _by_sign(signs: Signs) -> Finding | None:
    """Return the standstills; without them those steps begin as late as the others."""
    observation = signs.observation
    first = unnamed_first_delays(signs)
    found = _standstill(signs, first)
    if found is None or _goes_on_late(signs, found.struck):
        return None
    late_ns = _written(found, first)
    return Finding(
        change=Change(on_time={node: late > 0 for node, late in late_ns.items()}),
        evidence=tuple(_evidence(observation, found)),
        where=Where(dp=found.dp),
        figure=LateLaunches(by_step_s=tuple((found.late_ns / 1e9).tolist())),
        launches=Launches(late_ns),
        doubt=_doubt(found),
    )


def _written(found: _Standstill, first: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """Return how late checkpoints make the first operations of stages, by node, (steps, dp), ns.

    A stage that waits in other steps as well may do so before or after it writes, now and then, or
    not in these: what it writes takes as long as the other stages take.
    """
    least_ns = THRESHOLDS.others * found.late_ns[found.struck].mean()
    ranks = slice(None) if found.dp is None else slice(found.dp, found.dp + 1)
    # A stage stands still before it gathers its parameters, or after.
    standing = {
        node: delay[:, ranks]
        for node, delay in first.items()
        if delay[found.struck, ranks].mean() >= least_ns
    }
    typical = {node: float(np.median(delay[~found.struck])) for node, delay in standing.items()}
    waiting = {
        node
        for node, delay in standing.items()
        if delay[~found.struck].max() >= THRESHOLDS.waiting * found.late_ns[found.struck].mean()
    }
    only_write = [delay - typical[node] for node, delay in standing.items() if node not in waiting]
    alike = np.median(only_write, axis=(0, 2))[:, None] if only_write else None
    late_ns = {}
    for node, delay in standing.items():
        if alike is not None and node in waiting:
            late = np.minimum(delay, alike)
        else:
            late = delay - typical[node]
        late_ns[node] = np.zeros_like(first[node])
        late_ns[node][:, ranks] = np.where(found.struck[:, None], np.maximum(late, 0.0), 0.0)
    return late_ns


def _doubt(found: _Standstill) -> Doubt | None:
    """Return what else it may be: with one stage its data, and a single time anything once."""
    count = int(found.struck.sum())
    if found.stages == 1 and count < THRESHOLDS.sure_from:
        return Doubt(THRESHOLDS.in_doubt, Alternative())
    if count == 1:
        return Doubt(THRESHOLDS.in_doubt)
    return None


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


def _because(cause: Cause, job: JobFacts) -> str:
    del job
    if cause.between_s:
        return "steps wait for checkpoints"
    return "all stages stand still at the start of some steps, as with checkpoints"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    del hosts
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
    cannot_judge=needs_begins,
    because=_because,
    find=_find,
    between=lambda signs: recorded_standstill(signs, RECORDED, "Checkpoints are written"),
    remedy=_remedy,
    turn=Turn.SPECIAL,
    over_steps=True,
)

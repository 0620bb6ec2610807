"""Slow worker: a worker computes slower than the other DP ranks of its stage.

The worker is slow always, since a certain step, in spells, or in bursts of passes. A pause of the
interpreter lengthens only forwards, and never most of them; a worker that is slow in one direction
takes longer for nearly all of its passes in this direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Plan, needs_peers
from app.analysis.diagnosis.finding import (
    Cause,
    Change,
    Doubt,
    Evidence,
    Finding,
    StageLoad,
    WorkerSteps,
)
from app.analysis.diagnosis.group_waits import waits_only_for_missing
from app.analysis.diagnosis.locations import (
    JobFacts,
    RegionView,
    SlowSpells,
    Where,
    Worker,
    WorkerView,
)
from app.analysis.diagnosis.microbatch_effects import Effects
from app.analysis.diagnosis.observation import (
    Observation,
    held_against_peers,
    lower_median,
    scatter_of_most,
)
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import BoolArray, FloatArray, SingleArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether a worker is slow."""

    slow: float = 0.04  # A worker is lastingly slow from this excess over its peers on.
    slow_step: float = 0.07  # …and in a single step from this excess on
    to_scatter: float = 6.0  # …and by this many standard deviations of healthy workers
    slow_one_way: float = 0.1  # lasting excess in one direction only
    burst: float = 0.25  # A pass of a burst takes this much longer than the worker's typical pass.
    to_noise: float = 7.0  # …and by this many standard deviations of the residuals
    # Bursts lengthen a worker's forwards by at least this share, and its backwards too.
    least_bursts: float = 0.02
    to_median: float = 4.0  # …and by this many times the median worker's share
    # A worker is slow in bursts, not in whole steps, when bursts explain this many times the excess
    # that slow steps explain.
    no_steps: float = 1.2
    # Other workers are named when the excess in their slow steps is this share of the slowest
    # worker's excess: every slow step loses time, however rare it is.
    to_slowest: float = 0.25
    # From this share of slow steps on, a worker counts as slow in all steps, or in all steps since
    # a certain step.
    nearly_all: float = 0.9
    # Highest confidence in a worker that was not recorded: the other workers may have waited for
    # the network.
    not_recorded: float = 0.8
    # A worker with this lasting excess is always named: if only the slowest worker were replaced,
    # the job would still straggle because of this worker (what-if paper, section 4).
    straggling: float = 0.1


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Slow:
    """Slowness of workers, arrays of shape (pp, steps, dp)."""

    # by operation type: computing time ÷ that of the stage's peers
    times: Mapping[str, FloatArray]
    level: FloatArray  # the same of forward and backward combined
    when: BoolArray  # the steps in which each worker is slow

    def excess(self) -> FloatArray:
        """Return each worker's mean excess over its peers, shape (pp, dp)."""
        return np.asarray(np.where(self.when, self.level - 1, 0.0).mean(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class _Bursts:
    """Passes that take far longer than the other passes of their worker."""

    limit: float  # a pass is slow beyond this multiple of its worker's typical time
    workers: BoolArray  # (pp, dp): workers with many such passes

    def of(self, residual: SingleArray) -> BoolArray:
        """Return a mask of the slow passes among a worker's residuals."""
        return np.asarray(residual > self.limit)


def _find(signs: Signs) -> Finding | None:
    """Return the slow workers, slowest first; without the cause they compute like their peers."""
    observation, slowness, effects = signs.observation, signs.slowness, signs.effects
    if slowness is None:
        return None
    if signs.stage_or_worker.slow is not None:
        return signs.stage_or_worker.slow
    slow = _by_step(slowness)
    waits = waits_only_for_missing(observation, 1 + THRESHOLDS.slow)
    if waits.any():
        slow = replace(slow, when=slow.when & ~waits[:, None, :])
    excess = slow.excess()
    bursts = None if effects is None else _bursts(effects, excess)
    if bursts is not None and effects is not None:
        slow = _with_bursts(slow, effects, bursts)
        excess = slow.excess()
    if excess.max() <= 0:
        return None
    severity = excess / np.maximum(slow.when.mean(axis=1), 1e-9)
    slowest = np.unravel_index(np.argmax(excess), excess.shape)
    lasting = slow.when.mean(axis=1) >= THRESHOLDS.nearly_all
    straggling = severity >= np.where(lasting, THRESHOLDS.straggling, np.inf)
    chosen = np.argwhere(
        (excess > 0) & (straggling | (severity >= THRESHOLDS.to_slowest * severity[slowest]))
    )
    workers = sorted(
        ((int(dp), int(pp)) for pp, dp in chosen), key=lambda w: -float(excess[w[1], w[0]])
    )
    times = _without(observation, slow, workers)
    in_bursts: set[Worker] = set()
    if bursts is not None and effects is not None:
        in_bursts = {(dp, pp) for dp, pp in workers if bursts.workers[pp, dp]}
        _shorten_bursts(times, observation, effects, bursts, in_bursts)
    dp, pp = workers[0]
    when = slow.when[pp, :, dp]
    as_slow = float(np.mean(_ratios(slow.times, workers[0], when)))
    spells = None
    if np.mean(when) < THRESHOLDS.nearly_all:
        spells = SlowSpells(steps=int(when.sum()), of=len(when), times=as_slow)
    absent = observation.layout.absent
    return Finding(
        change=Change(times=times),
        evidence=tuple(_evidence(observation, slow, workers, in_bursts)),
        where=Where(workers=tuple(workers), spells=spells),
        figure=WorkerSteps(
            worker=workers[0], ratio=tuple(slow.level[pp, :, dp].tolist()), times=as_slow
        ),
        uncertainty=held_against_peers(observation, workers),
        # A worker that recorded nothing is known to be slow only by the time that others wait for
        # it.
        doubt=Doubt(THRESHOLDS.not_recorded)
        if absent is not None and bool(absent[dp, pp])
        else None,
    )


def _by_step(slowness: Mapping[str, FloatArray]) -> _Slow:
    """Return the workers and steps in which most passes are slow."""
    forward, backward = slowness[FORWARD_COMPUTE], slowness[BACKWARD_COMPUTE]
    both, either = np.minimum(forward, backward), np.maximum(forward, backward)
    lasting = median(both.swapaxes(0, 1))
    limit = 1 + max(THRESHOLDS.slow, THRESHOLDS.to_scatter * scatter_of_most(lasting))
    limit_step = 1 + max(
        THRESHOLDS.slow_step, THRESHOLDS.to_scatter * scatter_of_most(both / lasting[:, None, :])
    )
    slow = (both > limit_step) | ((both > limit) & (lasting > limit)[:, None, :])
    lasting = median(either.swapaxes(0, 1))
    # If half of the workers are slow, all are equally far from the median worker, so that only the
    # faster half shows the scatter.
    scatter = min(scatter_of_most(lasting), _scatter_of_faster(lasting))
    limit = 1 + max(THRESHOLDS.slow_one_way, THRESHOLDS.to_scatter * scatter)
    one_way = ~slow & (either > limit) & (lasting > limit)[:, None, :]
    level = np.where(one_way, (forward + backward) / 2, both)
    return _Slow(slowness, level, slow | one_way)


def _scatter_of_faster(lasting: FloatArray) -> float:
    """Return the standard deviation estimated from the faster half of values, as if normal."""
    values = np.sort(lasting, axis=None)
    # A quarter of normal values lie more than 0.6745 standard deviations below the median.
    quarter, middle = values[(len(values) - 1) // 4], values[(len(values) - 1) // 2]
    return float(middle - quarter) / 0.6745


def _bursts(effects: Effects, by_step: FloatArray) -> _Bursts | None:
    """Return the workers with slow single passes, forward and backward; None without any.

    `by_step` is each worker's excess by whole steps, shape (pp, dp); workers are left out if slow
    steps explain their excess nearly as well as bursts.
    """
    forward, backward = effects.residual[FORWARD_COMPUTE], effects.residual[BACKWARD_COMPUTE]
    if forward[:, 0, 0].size == 1:
        return None
    limit = 1 + max(THRESHOLDS.burst, THRESHOLDS.to_noise * effects.noise)
    shares = []
    for residual in (forward, backward):
        # Computed stage by stage, as copies of the whole array would set the peak memory of a large
        # session's analysis.
        by_stage = [
            np.where(of_stage > limit, of_stage - 1, 0).mean(axis=(0, 1), dtype=np.float64)
            for of_stage in residual
        ]
        shares.append(np.array(by_stage))
    share = np.minimum(*shares)
    typical_share = float(lower_median(share.ravel(), axis=0))
    workers = share > np.maximum(
        max(THRESHOLDS.least_bursts, THRESHOLDS.to_median * typical_share),
        THRESHOLDS.no_steps * by_step,
    )
    return _Bursts(limit, workers) if workers.any() else None


def _with_bursts(by_step: _Slow, effects: Effects, bursts: _Bursts) -> _Slow:
    """Return the slowness of workers; workers with bursts are slow in the steps with a burst."""
    times = {name: by_worker.copy() for name, by_worker in by_step.times.items()}
    level, when = by_step.level.copy(), by_step.when.copy()
    for pp, dp in np.argwhere(bursts.workers).tolist():
        slow = np.zeros(when.shape[1], dtype=bool)
        for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE):
            residual = effects.residual[name][pp, :, :, dp]
            times[name][pp, :, dp] = residual.mean(axis=0)
            slow |= bursts.of(residual).any(axis=0)
        ratios = times[FORWARD_COMPUTE][pp, :, dp], times[BACKWARD_COMPUTE][pp, :, dp]
        level[pp, :, dp] = np.mean(ratios, axis=0)
        when[pp, :, dp] = slow
    return _Slow(times, level, when)


def _without(observation: Observation, slow: _Slow, workers: list[Worker]) -> dict[int, FloatArray]:
    """Return, by node, factors of computing times that remove the slowness of some workers."""
    times: dict[int, FloatArray] = {}
    for name, by_worker in slow.times.items():
        for pp in sorted({pp for _, pp in workers}):
            factor = np.ones(slow.when.shape[1:])
            for dp in (dp for dp, stage in workers if stage == pp):
                own, when = by_worker[pp, :, dp], slow.when[pp, :, dp]
                if observation.shares_processors:
                    # The median over the steps: single steps vary by contention, also those of the
                    # peers.
                    own = np.asarray(np.median(own[when]))
                factor[:, dp] = np.where(when, 1 / own, 1.0)
            times.update(dict.fromkeys(observation.computations(name, pp), factor))
    return times


def _shorten_bursts(
    times: dict[int, FloatArray],
    observation: Observation,
    effects: Effects,
    bursts: _Bursts,
    workers: set[Worker],
) -> None:
    """Replace factors of workers with bursts: only slow passes change, to their typical time."""
    for name, passes in observation.passes.items():
        for dp, pp in sorted(workers):
            residual = effects.residual[name][pp, :, :, dp]
            factors = np.where(bursts.of(residual), 1 / residual, 1.0)
            for node, factor in zip(passes.nodes[pp].tolist(), factors, strict=True):
                changed = times[node].copy()
                changed[:, dp] = factor
                times[node] = changed


def _ratios(
    slowness: Mapping[str, FloatArray], worker: Worker, when: BoolArray
) -> tuple[float, float]:
    """Return a worker's mean computing time ÷ its peers', for forwards and for backwards."""
    dp, pp = worker
    forward, backward = (
        float(slowness[name][pp, when, dp].mean()) for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE)
    )
    return forward, backward


def _evidence(
    observation: Observation, slow: _Slow, workers: list[Worker], in_bursts: set[Worker]
) -> list[Evidence]:
    lines = []
    for dp, pp in workers[:_NAMED]:
        when = slow.when[pp, :, dp]
        forward, backward = _ratios(slow.times, (dp, pp), when)
        bursts = ", in bursts of some passes" if (dp, pp) in in_bursts else ""
        lines.append(
            Evidence(
                f"{observation.hosts.subject((dp, pp))}: forward {forward:.2f}×, backward "
                f"{backward:.2f}× its stage's peers, {_when(observation, when)}{bursts}",
                WorkerView(dp=dp, pp=pp),
            )
        )
    if len(workers) > _NAMED:
        lines.append(
            Evidence(f"{len(workers) - _NAMED} more workers are slow", RegionView(view="map"))
        )
    hosts = {observation.hosts.host(worker) for worker in workers}
    if len(workers) > 1 and len(hosts) == 1 and None not in hosts:
        whole = observation.hosts.whole_host(workers) is not None
        others = ", which has no others" if whole else ""
        lines.append(Evidence(f"All of them are on {hosts.pop()}{others}", RegionView(view="map")))
    return lines


def _when(observation: Observation, slow: BoolArray) -> str:
    """Return the words for the steps in which a worker is slow."""
    count, share = len(slow), float(np.mean(slow))
    if count == 1:
        return "in this step"
    if share >= THRESHOLDS.nearly_all:
        return f"in all {count} steps" if slow.all() else f"in {int(slow.sum())} of {count} steps"
    first = int(np.argmax(slow))
    if np.mean(slow[first:]) >= THRESHOLDS.nearly_all and first > 1:
        return f"in every step since {int(observation.layout.steps[first])}"
    return f"in {int(slow.sum())} of {count} steps"


def _because(cause: Cause, job: JobFacts) -> str:
    workers = cause.where.workers
    who = job.name_workers(workers[0])
    host = job.whole_host(workers) if len(workers) > 1 else None
    if host is not None:
        return f"{host} is slow: all of its {len(workers)} workers are, and no others"
    if len(workers) > 1:
        return f"{len(workers)} workers are slow, {who} most of all"
    spells = cause.where.spells
    if spells:
        return (
            f"{who} computes {spells.times:.1f}× slower than its peers in "
            f"{spells.steps} of {spells.of} steps"
        )
    match cause.figure:
        case WorkerSteps(times=float(times)):
            return f"{who} computes {times:.1f}× slower than its peers"
        case StageLoad(relative=relative):
            # With one DP rank, the evidence names the reference of the comparison.
            times = relative[workers[0][1]]
            return f"{who} computes {times:.1f}× slower than the other stages"
        case _:
            return f"{who} is slow"


SLOW_WORKER: Final = CauseKind(
    name="slow_worker",
    title="Slow worker",
    word="worker",
    sign="A worker computes slower than the other DP ranks of its stage: always, since a step, by "
    "spells or in bursts of passes, forward and backward alike; or lastingly in one direction.",
    blames_machine=True,
    cannot_judge=needs_peers,
    because=_because,
    find=_find,
    needs_no_replay=True,
    plan=Plan.REPLACE_WORKERS,
    planned_around=True,
    alerts_alone=True,
    recurs=True,
)

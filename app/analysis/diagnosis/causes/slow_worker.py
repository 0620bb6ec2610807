"""Workers that compute slower than their stage's peers: always, since a step, by spells, in bursts.

A pause of the interpreter lengthens forwards only, and never most of them; a worker that is slow
in one direction takes longer for nearly all of its passes of that direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
from app.analysis.diagnosis.group_waits import waits_for_missing
from app.analysis.diagnosis.locations import (
    JobFacts,
    RegionView,
    SlowSpells,
    Where,
    Worker,
    WorkerView,
)
from app.analysis.diagnosis.microbatch_effects import Typical
from app.analysis.diagnosis.observation import (
    Observation,
    SingleArray,
    held_against_peers,
    lower_median,
    scatter_of_most,
)
from app.analysis.diagnosis.session_view import Signs
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether a worker is slow."""

    slow: float = 0.04  # A worker is lastingly slow from this excess over its peers on.
    slow_step: float = 0.07  # …and in a single step from this excess on
    # …and by this many standard deviations of what healthy workers scatter by.
    to_scatter: float = 6.0
    slow_one_way: float = 0.1  # in one direction only it is lastingly slow from this excess on
    burst: float = 0.25  # A pass of a burst takes this much longer than the worker's typical one.
    to_noise: float = 7.0  # …and by this many standard deviations of the residuals
    # Bursts lengthen a worker's forwards and its backwards by this share each.
    least_bursts: float = 0.02
    to_median: float = 4.0  # …and by this many times what they do on the median worker
    # A worker is slow by bursts and not by steps when they explain this many times as much.
    no_steps: float = 1.2
    # Other workers count when in their slow steps they are slow by this share of what the
    # slowest is in its own: each slow step is lost, however often they come.
    to_slowest: float = 0.25
    # Steps are all slow, or slow since one of them, when this share of them is.
    nearly_all: float = 0.9
    # The highest confidence in one that was not recorded: the others may have waited for the
    # network.
    not_recorded: float = 0.8
    # A worker that is lastingly slow by this much counts in any case: with the slowest one
    # replaced, the job would straggle because of it (paper, section 4).
    straggling: float = 0.1


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Slow:
    """How slow workers are."""

    # (pp, steps, dp): by type: computing time ÷ that of the stage's peers
    times: Mapping[str, FloatArray]
    level: FloatArray  # (pp, steps, dp): the same of forward and backward as one
    when: NDArray[np.bool_]  # (pp, steps, dp): where they are slow

    def excess(self) -> FloatArray:
        """Return by how much of its time each worker is slow, shape (pp, dp)."""
        return np.asarray(np.where(self.when, self.level - 1, 0.0).mean(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class _Bursts:
    """Passes that take far longer than their worker's others."""

    limit: float  # a pass is slow beyond this multiple of its worker's typical time
    workers: NDArray[np.bool_]  # (pp, dp): on which workers such passes are many

    def of(self, residual: SingleArray) -> NDArray[np.bool_]:
        """Return which passes are slow, given their residuals."""
        return np.asarray(residual > self.limit)


def _find(signs: Signs) -> Finding | None:
    """Return the workers that are slow, slowest first; without it they compute like their peers."""
    observation, slowness = signs.observation, signs.slowness
    if slowness is None:
        return None
    if signs.stage_or_worker.slow is not None:
        return signs.stage_or_worker.slow
    found = _by_step(slowness)
    waits = waits_for_missing(observation, 1 + THRESHOLDS.slow)
    if waits.any():
        found = replace(found, when=found.when & ~waits[:, None, :])
    excess = found.excess()
    bursts = None if signs.typical is None else _bursts(signs.typical, excess)
    if bursts is not None and signs.typical is not None:
        found = _with_bursts(found, signs.typical, bursts)
        excess = found.excess()
    if excess.max() <= 0:
        return None
    severity = excess / np.maximum(found.when.mean(axis=1), 1e-9)
    slowest = np.unravel_index(np.argmax(excess), excess.shape)
    lasting = found.when.mean(axis=1) >= THRESHOLDS.nearly_all
    straggling = severity >= np.where(lasting, THRESHOLDS.straggling, np.inf)
    chosen = np.argwhere(
        (excess > 0) & (straggling | (severity >= THRESHOLDS.to_slowest * severity[slowest]))
    )
    workers = sorted(
        ((int(dp), int(pp)) for pp, dp in chosen), key=lambda w: -float(excess[w[1], w[0]])
    )
    times = _without(observation, found, workers)
    in_bursts: set[Worker] = set()
    if bursts is not None and signs.typical is not None:
        in_bursts = {(dp, pp) for dp, pp in workers if bursts.workers[pp, dp]}
        _shorten_bursts(times, observation, signs.typical, bursts, in_bursts)
    dp, pp = workers[0]
    when = found.when[pp, :, dp]
    as_slow = float(np.mean(_ratios(found.times, workers[0], when)))
    level = tuple(found.level[pp, :, dp].tolist())
    return Finding(
        change=Change(times=times),
        evidence=tuple(_evidence(observation, found, workers, in_bursts)),
        where=Where(workers=tuple(workers), spells=_spells(when, as_slow)),
        figure=WorkerSteps(worker=workers[0], ratio=level, times=as_slow),
        uncertainty=held_against_peers(observation, workers),
        doubt=Doubt(THRESHOLDS.not_recorded) if _absent(observation, workers[0]) else None,
    )


def _absent(observation: Observation, worker: Worker) -> bool:
    """Return whether a worker is slow only by what the others waited for it."""
    absent = observation.layout.absent
    return absent is not None and bool(absent[worker])


def _by_step(slowness: Mapping[str, FloatArray]) -> _Slow:
    """Return in which steps most passes of which workers are slow."""
    forward, backward = slowness[FORWARD_COMPUTE], slowness[BACKWARD_COMPUTE]
    both, either = np.minimum(forward, backward), np.maximum(forward, backward)
    lasting = median(both.swapaxes(0, 1))
    limit = 1 + max(THRESHOLDS.slow, THRESHOLDS.to_scatter * scatter_of_most(lasting))
    limit_step = 1 + max(
        THRESHOLDS.slow_step, THRESHOLDS.to_scatter * scatter_of_most(both / lasting[:, None, :])
    )
    slow = (both > limit_step) | ((both > limit) & (lasting > limit)[:, None, :])
    lasting = median(either.swapaxes(0, 1))
    limit = 1 + max(THRESHOLDS.slow_one_way, THRESHOLDS.to_scatter * scatter_of_most(lasting))
    one_way = ~slow & (either > limit) & (lasting > limit)[:, None, :]
    level = np.where(one_way, (forward + backward) / 2, both)
    return _Slow(slowness, level, slow | one_way)


def _bursts(typical: Typical, by_step: FloatArray) -> _Bursts | None:
    """Return on which workers single passes are slow, forward and backward; None on none.

    Workers that whole steps explain nearly as well are not among them; `by_step` is their excess.
    """
    forward, backward = typical.residual[FORWARD_COMPUTE], typical.residual[BACKWARD_COMPUTE]
    if forward[:, 0, 0].size == 1:
        return None
    limit = 1 + max(THRESHOLDS.burst, THRESHOLDS.to_noise * typical.noise)
    shares = []
    for residual in (forward, backward):
        # Stage by stage: copies of everything would be what a large session's analysis needs most.
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


def _with_bursts(found: _Slow, typical: Typical, bursts: _Bursts) -> _Slow:
    """Return how slow workers are, those with bursts in the steps in which they have them."""
    times = {name: by_worker.copy() for name, by_worker in found.times.items()}
    level, when = found.level.copy(), found.when.copy()
    for pp, dp in np.argwhere(bursts.workers).tolist():
        slow = np.zeros(when.shape[1], dtype=bool)
        for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE):
            residual = typical.residual[name][pp, :, :, dp]
            times[name][pp, :, dp] = residual.mean(axis=0)
            slow |= bursts.of(residual).any(axis=0)
        ratios = times[FORWARD_COMPUTE][pp, :, dp], times[BACKWARD_COMPUTE][pp, :, dp]
        level[pp, :, dp] = np.mean(ratios, axis=0)
        when[pp, :, dp] = slow
    return _Slow(times, level, when)


def _without(
    observation: Observation, found: _Slow, workers: list[Worker]
) -> dict[int, FloatArray]:
    """Return factors that make the steps in which workers are slow like those of their peers."""
    times: dict[int, FloatArray] = {}
    for name, by_worker in found.times.items():
        for pp in sorted({pp for _, pp in workers}):
            factor = np.ones(found.when.shape[1:])
            for dp in (dp for dp, stage in workers if stage == pp):
                own, when = by_worker[pp, :, dp], found.when[pp, :, dp]
                if observation.shares_processors:
                    # Some steps take it longer by chance, as they do its peers.
                    own = np.asarray(np.median(own[when]))
                factor[:, dp] = np.where(when, 1 / own, 1.0)
            times.update(dict.fromkeys(observation.computations(name, pp), factor))
    return times


def _shorten_bursts(
    times: dict[int, FloatArray],
    observation: Observation,
    typical: Typical,
    bursts: _Bursts,
    workers: set[Worker],
) -> None:
    """Let the slow passes of workers with bursts, and no others, take their typical time."""
    for name, passes in observation.passes.items():
        for dp, pp in sorted(workers):
            residual = typical.residual[name][pp, :, :, dp]
            factors = np.where(bursts.of(residual), 1 / residual, 1.0)
            for node, factor in zip(passes.nodes[pp].tolist(), factors, strict=True):
                changed = times[node].copy()
                changed[:, dp] = factor
                times[node] = changed


def _ratios(
    slowness: Mapping[str, FloatArray], worker: Worker, when: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return how many times as long as its peers a worker computes, forward and backward."""
    dp, pp = worker
    forward, backward = (
        float(slowness[name][pp, when, dp].mean()) for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE)
    )
    return forward, backward


def _spells(when: NDArray[np.bool_], times: float) -> SlowSpells | None:
    """Return in how many steps the slowest worker is slow and how much, if not in nearly all."""
    if np.mean(when) >= THRESHOLDS.nearly_all:
        return None
    return SlowSpells(steps=int(when.sum()), of=len(when), times=times)


def _evidence(
    observation: Observation, found: _Slow, workers: list[Worker], in_bursts: set[Worker]
) -> list[Evidence]:
    lines = []
    for dp, pp in workers[:_NAMED]:
        when = found.when[pp, :, dp]
        forward, backward = _ratios(found.times, (dp, pp), when)
        bursts = ", in bursts of some passes" if (dp, pp) in in_bursts else ""
        lines.append(
            Evidence(
                f"W{observation.hosts.named((dp, pp))[1:]}: forward {forward:.2f}×, backward "
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


def _when(observation: Observation, slow: NDArray[np.bool_]) -> str:
    """Say in which steps a worker is slow."""
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
    who = job.named(workers[0])
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
            # one DP rank: what evidence compares it with
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
    holds_anyway=True,
    plan=Plan.REPLACE_WORKERS,
    planned_around=True,
    alerts_alone=True,
    recurs=True,
)

"""Workers that compute slower than their stage's peers: always, from a step on, or by spells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.causes.kind import CauseKind
from app.analysis.diagnosis.figures import StageLoad, WorkerSteps
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding
from app.analysis.diagnosis.observation import Observation, scatter_of_most
from app.analysis.diagnosis.places import (
    JobFacts,
    RegionView,
    SlowSpells,
    Where,
    Worker,
    WorkerView,
)
from app.analysis.diagnosis.signs import Signs
from app.analysis.diagnosis.stages import SLOW_WORKER_NAME
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.medians import median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

# A worker is slow from here on, always or in a single step, and beyond what workers scatter by.
_SLOW: Final = 0.04
_SLOW_STEP: Final = 0.07
_TO_SCATTER: Final = 6.0
# Others count beside the slowest one when in their slow steps they are this much of what it is in
# its own: how often they are does not matter, each slow step is lost.
_BESIDE: Final = 0.25
# Steps are all slow, or slow since one of them, when this share of them is.
_NEARLY_ALL: Final = 0.9
_NAMED: Final = 3


def _find(signs: Signs) -> Finding | None:
    """Return the workers whose forwards and backwards are both slow, slowest first.

    Without it they compute like their peers.
    """
    observation, slowness = signs.observation, signs.slowness
    if slowness is None:
        return None
    if signs.stage_or_worker.slow is not None:
        return signs.stage_or_worker.slow
    both = np.minimum(slowness[FORWARD_COMPUTE], slowness[BACKWARD_COMPUTE])
    lasting = median(both.swapaxes(0, 1))
    limit = 1 + max(_SLOW, _TO_SCATTER * scatter_of_most(lasting))
    limit_step = 1 + max(_SLOW_STEP, _TO_SCATTER * scatter_of_most(both / lasting[:, None, :]))
    slow = (both > limit_step) | ((both > limit) & (lasting > limit)[:, None, :])
    excess = np.where(slow, both - 1, 0.0).mean(axis=1)
    if excess.max() <= 0:
        return None
    severity = excess / np.maximum(slow.mean(axis=1), 1e-9)
    slowest = np.unravel_index(np.argmax(excess), excess.shape)
    found = np.argwhere((excess > 0) & (severity >= _BESIDE * severity[slowest]))
    workers = sorted(
        ((int(dp), int(pp)) for pp, dp in found), key=lambda w: -float(excess[w[1], w[0]])
    )
    times: dict[int, FloatArray] = {}
    for name, by_worker in slowness.items():
        for pp in sorted({pp for _, pp in workers}):
            factor = np.ones(both.shape[1:])
            for dp in (dp for dp, stage in workers if stage == pp):
                own = by_worker[pp, :, dp]
                factor[:, dp] = np.where(slow[pp, :, dp], 1 / own, 1.0)
            times.update(dict.fromkeys(observation.computations(name, pp), factor))
    dp, pp = workers[0]
    when = slow[pp, :, dp]
    as_slow = float(np.mean(_ratios(slowness, workers[0], when)))
    return Finding(
        change=Change(times=times),
        evidence=tuple(_evidence(observation, slowness, workers, slow)),
        where=Where(workers=tuple(workers), spells=_spells(when, as_slow)),
        figure=WorkerSteps(worker=workers[0], ratio=tuple(both[pp, :, dp].tolist()), times=as_slow),
    )


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
    if when.mean() >= _NEARLY_ALL:
        return None
    return SlowSpells(steps=int(when.sum()), of=len(when), times=times)


def _evidence(
    observation: Observation,
    slowness: Mapping[str, FloatArray],
    workers: list[Worker],
    slow: NDArray[np.bool_],
) -> list[Evidence]:
    lines = []
    for dp, pp in workers[:_NAMED]:
        when = slow[pp, :, dp]
        forward, backward = _ratios(slowness, (dp, pp), when)
        lines.append(
            Evidence(
                f"W{observation.hosts.named((dp, pp))[1:]}: forward {forward:.2f}×, backward "
                f"{backward:.2f}× its stage's peers, {_when(observation, when)}",
                WorkerView(dp=dp, pp=pp),
            )
        )
    if len(workers) > _NAMED:
        lines.append(
            Evidence(f"{len(workers) - _NAMED} more workers are slow", RegionView(view="map"))
        )
    hosts = {observation.hosts.host(worker) for worker in workers}
    if len(workers) > 1 and len(hosts) == 1 and None not in hosts:
        lines.append(Evidence(f"All of them are on {hosts.pop()}", RegionView(view="map")))
    return lines


def _when(observation: Observation, slow: NDArray[np.bool_]) -> str:
    """Say in which steps a worker is slow."""
    count, share = len(slow), float(slow.mean())
    if share >= _NEARLY_ALL:
        return f"in all {count} steps" if slow.all() else f"in {int(slow.sum())} of {count} steps"
    first = int(np.argmax(slow))
    if slow[first:].mean() >= _NEARLY_ALL and first > 1:
        return f"in every step since {int(observation.layout.steps[first])}"
    return f"in {int(slow.sum())} of {count} steps"


def _cannot_judge(signs: Signs) -> str | None:
    if not signs.observation.comparable_within_stages:
        return (
            "stages do not compute as often forward as backward, so their workers cannot be "
            "compared"
        )
    layout = signs.observation.layout
    if layout.dp == 1 and (layout.pp == 1 or not signs.observation.comparable):
        return "with one DP rank a worker has no peers to compare it with"
    return None


def _because(cause: Cause, job: JobFacts) -> str:
    workers = cause.where.workers
    who = job.named(workers[0])
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
    name=SLOW_WORKER_NAME,
    title="Slow worker",
    word="worker",
    sign="A worker computes slower than the other DP ranks of its stage, forward and backward "
    "alike: always, since a step, or by spells.",
    cannot_judge=_cannot_judge,
    because=_because,
    find=_find,
    planned_around=True,
)

"""Rotating: the slowest worker changes from step to step, so replacing a worker does not help.

A worker is slow in a step if it computes longer than usual, or if its host pauses and launches
computations late. By chance each worker is the slowest about equally often, and rarely twice in a
row. A worker that is the slowest more often is a slow worker with spells, which is excluded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy, always, needs_peers
from app.analysis.diagnosis.finding import (
    Cause,
    Change,
    Evidence,
    Finding,
    Launches,
    Rotation,
    Uncertainty,
)
from app.analysis.diagnosis.late_launches import first_delays
from app.analysis.diagnosis.locations import FigureView, JobFacts, RegionView, SlowSpells, Where
from app.analysis.diagnosis.observation import (
    COMPUTATIONS,
    Observation,
    lower_median,
    scatter_of_most,
    summed,
)
from app.analysis.diagnosis.recorded_lengths import computing_of_steps
from app.analysis.diagnosis.session_view import Signs
from app.analysis.diagnosis.standstills import unloaded_first_delays
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.host_delays import delays_of
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether slowness rotates over the workers."""

    slow_step: float = 0.07  # A worker is slow in a step from this excess over its median step.
    to_scatter: float = 6.0  # …and by this many standard deviations
    steps: float = 0.25  # at least this share of the steps has a slow worker
    fewest_steps: int = 6  # …and at least this many steps
    fewest_workers: int = 3  # at least this many workers are the slowest of some step
    # …and at least this share of the number expected if the slowest worker of each step were drawn
    # at random.
    of_expected: float = 0.6
    # A worker has slow spells when, at random, any worker would be the slowest as often with less
    # than this probability.
    by_chance: float = 1e-3
    # Workers with slow spells are excluded, up to this share of all workers.
    most_with_spells: float = 0.25
    # A DP rank is slow as a whole if this share of its workers is slow in the rank's slow steps.
    whole_rank: float = 0.75
    # A host pauses when it launches a computation this share of a step later than usual.
    pause: float = 0.02
    # A host pauses in a backward when it takes this share longer than typical …
    stall: float = 0.12
    forward: float = 0.4  # …and its forward less than this share of that excess
    # Workers pause, rather than compute slowly, if this share of their excess is late launches.
    late: float = 0.5


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Rotation:
    """The slow workers of each step."""

    # (pp, steps, dp): computing and pauses ÷ computing of the worker's median step
    ratio: FloatArray
    slow: BoolArray  # (pp, steps, dp)
    slowest: IntArray  # (steps,): number of the slowest worker, -1 where none is slow
    again: int  # steps with the same slowest worker as the step before


def _find(signs: Signs) -> Finding | None:
    """Return the slow steps; without the cause, workers compute as in their median steps."""
    slowness, observation = signs.slowness, signs.observation
    if slowness is None or needs_peers(signs) is not None:
        return None
    both = np.minimum(slowness[FORWARD_COMPUTE], slowness[BACKWARD_COMPUTE])
    ratio = both / median(both.swapaxes(0, 1))[:, None, :]
    pauses, stalls = _pauses(signs), _stalled_backwards(signs)
    paused = _relative_to_computing(observation, summed([pauses, stalls]))
    rotation = _rotation(ratio + paused)
    if rotation is None:
        return None
    late = {
        node: np.where(rotation.slow[observation.layout.nodes.pp[node]], late_ns, 0.0)
        for node, late_ns in pauses.items()
    }
    less = {}
    for name, by_worker in slowness.items():
        own = by_worker / median(by_worker.swapaxes(0, 1))[:, None, :]
        share = np.where(rotation.slow, 1 - 1 / np.maximum(own, 1.0), 0.0)
        explained = observation.explained.computing_ns
        for stage in np.flatnonzero(rotation.slow.any(axis=(1, 2))).tolist():
            for node in observation.computations(name, stage):
                taken = observation.recorded_ns[node] - explained.get(node, 0.0)
                less[node] = np.maximum(taken, 0.0) * share[stage]
    for node, stall in stalls.items():
        stalled = np.where(rotation.slow[observation.layout.nodes.pp[node]], stall, 0.0)
        less[node] = np.maximum(less.get(node, 0.0), stalled)
    struck = rotation.slowest >= 0
    by_step = rotation.ratio.max(axis=(0, 2))
    pausing = float(paused[rotation.slow].sum()) >= THRESHOLDS.late * float(
        (rotation.ratio[rotation.slow] - 1).sum()
    )
    workers = ratio[:, 0].size
    counts = np.bincount(rotation.slowest[struck], minlength=workers).reshape(ratio[:, 0].shape)
    return Finding(
        change=Change(less_ns=less, on_time={node: late_ns > 0 for node, late_ns in late.items()}),
        evidence=tuple(_evidence(observation, rotation, counts, pausing=pausing)),
        where=Where(
            spells=SlowSpells(
                steps=int(struck.sum()), of=len(struck), times=float(by_step[struck].mean())
            )
        ),
        figure=Rotation(
            by_step=tuple(by_step.tolist()), slowest=tuple(map(tuple, counts.T.tolist()))
        ),
        launches=Launches(late),
        uncertainty=Uncertainty(hiding=1 - 1 / ratio.shape[2]),
    )


def _pauses(signs: Signs) -> dict[int, FloatArray]:
    """Return launch delays of computations by pauses of single hosts, by node, (steps, dp), ns.

    The first operations of a step count only if it is recorded that they do not wait for a batch.
    A delay of most DP ranks is a wait of the job, which is no pause of single hosts.
    """
    observation, layout = signs.observation, signs.observation.layout
    if signs.step_gaps is None or layout.dp == 1:
        return {}
    nodes = np.flatnonzero(layout.of_types(*COMPUTATIONS))
    delays = dict(zip(nodes.tolist(), delays_of(observation.group, nodes), strict=True))
    for node in observation.memoize(first_delays):
        delays.pop(node, None)
    delays |= unloaded_first_delays(signs)
    stalled = signs.stalled_launches
    if stalled is not None:
        # Pauses that delay forwards only are garbage collections.
        for node, late_ns in zip(stalled.nodes.tolist(), stalled.late_ns, strict=True):
            if node in delays:
                delays[node] = np.where(late_ns > 0, 0.0, delays[node])
    pauses, least_ns = {}, THRESHOLDS.pause * signs.step_ns
    for node, delay in delays.items():
        if delay.max() < least_ns:
            continue
        beyond = delay - np.median(delay)
        beyond = beyond - np.maximum(lower_median(beyond, axis=1), 0.0)[:, None]
        late_ns = np.where(beyond >= least_ns, beyond, 0.0)
        if late_ns.any():
            pauses[node] = late_ns
    return pauses


def _stalled_backwards(signs: Signs) -> dict[int, FloatArray]:
    """Return the excess of single backwards that hosts pause in, by node, (steps, dp), ns.

    Single forwards that stall are garbage collections, which do not lengthen backwards.
    """
    effects = signs.effects
    if effects is None or signs.step_gaps is None:
        return {}
    passes = signs.observation.passes[BACKWARD_COMPUTE]
    limit = max(THRESHOLDS.stall, THRESHOLDS.to_scatter * effects.noise)
    stalls = {}
    for nodes, times_ns, backward, forward in zip(
        passes.nodes.tolist(),
        passes.times_ns,
        effects.residual[BACKWARD_COMPUTE],
        effects.residual[FORWARD_COMPUTE],
        strict=True,
    ):
        beyond = backward - 1
        stalled = (beyond > limit) & (forward - 1 < THRESHOLDS.forward * beyond)
        for place in np.flatnonzero(stalled.any(axis=(1, 2))).tolist():
            excess = times_ns[place] - times_ns[place] / backward[place]
            stalls[nodes[place]] = np.where(stalled[place], excess, 0.0).astype(np.float64)
    return stalls


def _relative_to_computing(
    observation: Observation, late_ns: Mapping[int, FloatArray]
) -> FloatArray:
    """Return each worker's late launches ÷ its computing in its median step, (pp, steps, dp)."""
    computing_ns = observation.memoize(computing_of_steps)
    total = np.zeros_like(computing_ns)
    for node, late in late_ns.items():
        total[observation.layout.nodes.pp[node]] += late
    return total / np.maximum(median(computing_ns.swapaxes(0, 1)), 1.0)[:, None, :]


def _rotation(ratio: FloatArray) -> _Rotation | None:
    """Return the slow workers of each step; None if slowness does not rotate.

    `ratio` is each worker's computing time ÷ the worker's median step, shape (pp, steps, dp).
    """
    limit = 1 + max(
        THRESHOLDS.slow_step, THRESHOLDS.to_scatter * scatter_of_most(np.ascontiguousarray(ratio))
    )
    slow = ratio > limit
    if not slow.any():
        return None
    steps, workers = ratio.shape[1], ratio[:, 0].size
    flat = ratio.swapaxes(0, 1).reshape(steps, workers)
    taking_part = np.ones(workers, dtype=bool)
    while True:
        among = np.where(taking_part, flat, 0.0)
        slowest = np.where(among.max(axis=1) > limit, among.argmax(axis=1), -1)
        struck = int((slowest >= 0).sum())
        if struck < max(THRESHOLDS.fewest_steps, THRESHOLDS.steps * steps):
            return None
        counts = np.bincount(slowest[slowest >= 0], minlength=workers)
        most = _most_by_chance(struck, int(taking_part.sum()))
        if counts.max() <= most:
            break
        taking_part &= counts <= most
        if (~taking_part).sum() > THRESHOLDS.most_with_spells * workers:
            return None
    left = int(taking_part.sum())
    different = int((counts > 0).sum())
    expected = left * (1 - (1 - 1 / left) ** struck)
    if different < max(THRESHOLDS.fewest_workers, THRESHOLDS.of_expected * expected):
        return None
    again = int(((slowest[1:] == slowest[:-1]) & (slowest[1:] >= 0)).sum())
    if again > _most_by_chance(max(struck - 1, 1), left):
        return None
    slow &= taking_part.reshape(ratio.shape[0], 1, ratio.shape[2])
    return _Rotation(ratio, slow, slowest, again)


def _most_by_chance(draws: int, workers: int) -> int:
    """Return how often the most frequent of `workers` is drawn by chance in `draws` draws.

    The number is a quantile of a binomial count, corrected for the number of workers (Bonferroni).
    """
    beyond, share = 1.0, 1 / workers
    for count in range(draws + 1):
        chance = lgamma(draws + 1) - lgamma(count + 1) - lgamma(draws - count + 1)
        chance += count * log(share) + (draws - count) * (log(1 - share) if workers > 1 else 0.0)
        beyond -= exp(chance)
        if beyond * workers < THRESHOLDS.by_chance:
            return count
    return draws


def _evidence(
    observation: Observation, rotation: _Rotation, counts: IntArray, *, pausing: bool
) -> list[Evidence]:
    struck = rotation.slowest >= 0
    drawn, steps = int(struck.sum()), len(struck)
    slowest = rotation.ratio.max(axis=(0, 2))[struck]
    most = np.unravel_index(np.argmax(counts), counts.shape)
    return [
        Evidence(
            f"In {drawn} of {steps} steps one of {counts.size} workers takes "
            f"{slowest.mean():.2f}× its median step, {int((counts > 0).sum())} different ones in "
            "turn",
            FigureView(),
        ),
        Evidence(
            f"{observation.hosts.subject((int(most[1]), int(most[0])))} is the slowest most "
            f"often, in {counts[most]} steps; by chance up to "
            f"{_most_by_chance(drawn, counts.size)} would be. The same one is twice on end in "
            f"{rotation.again}",
            RegionView(view="map"),
        ),
        Evidence(f"Likeliest: {_likeliest(rotation, pausing=pausing)}"),
    ]


def _likeliest(rotation: _Rotation, *, pausing: bool) -> str:
    """Return the likeliest reason, given whether whole DP ranks or single stages are slow."""
    if pausing:
        return (
            "pauses that each host has at its own time, such as garbage collection: devices "
            "compute as fast as usual, but wait for launches. gc.freeze(), and collecting on all "
            "ranks in the same step, shorten them"
        )
    stages = rotation.slow.shape[0]
    of_rank = rotation.slow.sum(axis=0)
    whole = of_rank[of_rank > 0] >= THRESHOLDS.whole_rank * stages
    if stages > 1 and whole.mean() > THRESHOLDS.whole_rank:
        return (
            "longer sequences, whose lengths are not recorded: all stages of a DP rank are slow "
            "at once"
        )
    if stages > 1:
        return (
            "pauses that each host has at its own time, or other tenants of the hosts: forward and "
            "backward are slow alike, and on one stage only"
        )
    return "pauses, other tenants of the hosts, or sequence lengths that are not recorded"


def _because(cause: Cause, job: JobFacts) -> str:  # noqa: ARG001 - no place is named
    spells = cause.where.spells
    if spells is None:
        return "no worker is slow: another one is in each step"
    every = spells.steps >= spells.of
    when = "in each step" if every else f"in each of {spells.steps} of {spells.of} steps"
    return f"no worker is slow: another one {when}, {spells.times:.2f}×"


ROTATING: Final = CauseKind(
    name="rotating",
    title="Rotating",
    word="rotating",
    sign="In most steps one worker computes slower than in its median step, forward and backward "
    "alike, or its host pauses and launches late, and it is another one each time: each as often "
    "as by chance, and not for long.",
    blames_machine=False,
    cannot_judge=needs_peers,
    because=_because,
    find=_find,
    needs_no_replay=True,
    needs_own_devices=True,
    remedy=always(
        Remedy(
            "even_steps",
            "Find what makes another worker slow in each step",
            "Replayed with all workers computing as in their median steps. No worker is to be "
            "replaced: whichever is, another one is slow in the next step. Look at what all hosts "
            "do now and then: collecting garbage, other tenants, daemons, and data of unequal "
            "length.",
        )
    ),
    phase=Phase.SPECIAL,
    over_steps=True,
)

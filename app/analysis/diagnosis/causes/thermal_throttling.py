"""Thermal throttling: workers grow slower over several steps and recover, like hot devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy, needs_peers
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding, WorkerSteps
from app.analysis.diagnosis.locations import Hosts, JobFacts, RegionView, Where, Worker, WorkerView
from app.analysis.diagnosis.observation import Observation, held_against_peers, scatter_of_most
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import FloatArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether a worker's slowness drifts like a hot device's."""

    least_range: float = 0.1  # range of a worker's slowness over the session
    to_scatter: float = 8.0  # …in standard deviations of the workers' scatter
    least_move: float = 0.02  # a move: a change of at least this much from step to step
    move_to_scatter: float = 4.0  # …and of this many standard deviations
    moves: int = 3  # a climb: at least this many moves one way in a row
    moves_again: int = 2  # …or this many in a row, and this many times
    of_range: float = 0.4  # a climb is at least this share of the range
    of_all: float = 0.2  # all climbs together are at least this share of all moves
    one_move: float = 0.6  # a single move is at most this share of its climb
    # …or up to this share in a long climb of a calm worker: a device approaches its final
    # temperature in ever smaller moves.
    one_of_many: float = 0.7
    # The slowness changes its direction at no more than this share of the steps; by chance, it does
    # at two thirds.
    most_turns: float = 0.6
    # A worker is calm if the sum of its squared moves is at most this many times the sum of its
    # squared distances from the mean; chance gives a ratio of 2 (von Neumann 1941).
    calm: float = 1.4
    # Below this ratio of the two sums no climb is needed, as scatter may hide each move …
    smooth: float = 0.7
    # …if this share of the steps is between cool and hot: a worker that alternates between two
    # levels moves rarely too.
    between: float = 0.15
    # A step is between cool and hot if it is at least this share of the range away from both.
    quarter: float = 0.25
    # A worker has heated up after this share of the way from its coolest to its hottest step, and
    # has cooled down after the same share of the way back.
    warm: float = 0.7
    # Other workers are named if their range is this share of the hottest worker's range.
    to_hottest: float = 0.25


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return the drifting workers, slowest first; without the drift they are like their peers."""
    observation, slowness = signs.observation, signs.slowness
    if slowness is None or needs_peers(signs) is not None:
        return None
    if observation.layout.dp == 1:
        # A worker without peers is compared with its own coolest step.
        slowness = {
            name: np.asarray(by_worker / by_worker.min(axis=1, keepdims=True))
            for name, by_worker in slowness.items()
        }
    both = np.minimum(slowness[FORWARD_COMPUTE], slowness[BACKWARD_COMPUTE])
    # Levels are relative to the worker's median step, as chance scales with the computing time.
    levels = both / median(both.swapaxes(0, 1))[:, None, :]
    range_ = np.ptp(levels, axis=1)
    if range_.max() < THRESHOLDS.least_range:
        return None
    noise = scatter_of_most(levels)
    least = max(
        THRESHOLDS.least_range,
        THRESHOLDS.to_scatter * noise,
        THRESHOLDS.to_hottest * float(range_.max()),
    )
    workers = [
        (int(dp), int(pp))
        for pp, dp in np.argwhere(range_ >= least)
        if _drifts(
            levels[pp, :, dp], max(THRESHOLDS.least_move, THRESHOLDS.move_to_scatter * noise)
        )
    ]
    # If most workers drift, the reason is not the heat of single devices.
    if not workers or len(workers) > both[:, 0].size / 2:
        return None
    workers.sort(key=lambda worker: -float(both[worker[1], :, worker[0]].mean()))
    dp, pp = workers[0]
    ratio = both[pp, :, dp]
    return Finding(
        change=Change(less_ns=_beyond_peers(observation, slowness, workers)),
        evidence=tuple(_evidence(observation, both, workers)),
        where=Where(workers=tuple(workers)),
        figure=WorkerSteps(
            worker=workers[0], ratio=tuple(ratio.tolist()), times=float(ratio.max())
        ),
        uncertainty=replace(
            held_against_peers(observation, workers),
            # The cycle is unknown if recorded steps are missing, as a gap may hide a cycle.
            cycle=_cycle(ratio) if (np.diff(observation.layout.steps) == 1).all() else None,
        ),
    )


def _drifts(ratio: FloatArray, least: float) -> bool:
    """Return whether a worker's slowness rises or falls over several steps, and not by chance."""
    moves, away = np.diff(ratio), ratio - ratio.mean()
    restless = float((moves**2).sum() / (away**2).sum())
    share = (ratio - ratio.min()) / np.ptp(ratio)
    between = (share > THRESHOLDS.quarter) & (share < 1 - THRESHOLDS.quarter)
    if restless <= THRESHOLDS.smooth and between.mean() >= THRESHOLDS.between:
        return True
    return _climbs(
        ratio, least, THRESHOLDS.one_of_many if restless <= THRESHOLDS.calm else THRESHOLDS.one_move
    )


def _climbs(ratio: FloatArray, least: float, most: float) -> bool:
    """Return whether the slowness moves one way over several steps, by at least `least` in each.

    No single move of a long climb is more than the share `most` of the climb.
    """
    moves = np.diff(ratio)
    moves = moves[np.abs(moves) >= least]
    climbs: Counter[tuple[bool, int]] = Counter()
    climbed = 0.0
    for up, run in groupby(moves.tolist(), key=lambda move: move > 0):
        heights = np.abs(list(run))
        height = float(heights.sum())
        moved = min(len(heights), THRESHOLDS.moves)
        largest = height * (most if moved == THRESHOLDS.moves else THRESHOLDS.one_move)
        if height >= THRESHOLDS.of_range * np.ptp(ratio) and heights.max() <= largest:
            climbs[up, moved] += 1
            climbed += height
    gradual = any(
        climbs[up, THRESHOLDS.moves] or climbs[up, THRESHOLDS.moves_again] >= THRESHOLDS.moves_again
        for up in (False, True)
    )
    turns = int(np.count_nonzero(np.diff(moves > 0)))
    often = climbed >= THRESHOLDS.of_all * float(np.abs(moves).sum())
    return gradual and often and turns <= THRESHOLDS.most_turns * (len(ratio) - 2)


def _cycle(ratio: FloatArray) -> int | None:
    """Return the mean number of steps between two rises; None if there are fewer than two."""
    share = (ratio - ratio.min()) / np.ptp(ratio)
    rises, cool = [], False
    for step, warm in enumerate(share.tolist()):
        if cool and warm >= THRESHOLDS.warm:
            rises.append(step)
        cool = warm < THRESHOLDS.warm and (cool or warm <= 1 - THRESHOLDS.warm)
    return round((rises[-1] - rises[0]) / (len(rises) - 1)) if len(rises) > 1 else None


def _beyond_peers(
    observation: Observation, slowness: Mapping[str, FloatArray], workers: list[Worker]
) -> dict[int, FloatArray]:
    """Return the excess computing time over the peers, by node, shape (steps, dp), ns."""
    less: dict[int, FloatArray] = {}
    explained = observation.explained.computing_ns
    for name, by_worker in slowness.items():
        for pp in sorted({pp for _, pp in workers}):
            share = np.zeros(by_worker.shape[1:])
            for dp in (dp for dp, stage in workers if stage == pp):
                share[:, dp] = 1 - 1 / np.maximum(by_worker[pp, :, dp], 1.0)
            for node in observation.computations(name, pp):
                taken = observation.recorded_ns[node] - explained.get(node, 0.0)
                less[node] = np.maximum(taken, 0.0) * share
    return less


def _evidence(observation: Observation, both: FloatArray, workers: list[Worker]) -> list[Evidence]:
    steps = observation.layout.steps
    lines = []
    for dp, pp in workers[:_NAMED]:
        ratio = both[pp, :, dp]
        coolest, hottest = int(ratio.argmin()), int(ratio.argmax())
        steady = "its stage's peers" if both.shape[2] > 1 else "its own coolest step"
        between = (ratio > ratio.min() + np.ptp(ratio) / 5) & (
            ratio < ratio.max() - np.ptp(ratio) / 5
        )
        lines.append(
            Evidence(
                f"{observation.hosts.subject((dp, pp))}: {ratio[coolest]:.2f}× {steady} in step "
                f"{steps[coolest]}, {ratio[hottest]:.2f}× in step {steps[hottest]}, and in between "
                f"in {int(between.sum())} of {len(ratio)} steps: it slows down and recovers over "
                "several steps",
                WorkerView(dp=dp, pp=pp),
            )
        )
    more = len(workers) - _NAMED
    if more > 0:
        lines.append(Evidence(f"{more} more workers do so", RegionView(view="map")))
    host = observation.hosts.whole_host(workers)
    if len(workers) > 1 and host is not None:
        lines.append(Evidence(f"They are all workers of {host}", RegionView(view="map")))
    return lines


def _because(cause: Cause, job: JobFacts) -> str:
    workers = cause.where.workers
    who = job.name_workers(workers[0])
    if len(workers) > 1:
        return (
            f"{len(workers)} workers slow down over several steps, {who} most of all, as when hot"
        )
    match cause.figure:
        case WorkerSteps(times=float(times)):
            return f"{who} slows down over several steps, up to {times:.1f}×, as when hot"
        case _:
            return f"{who} slows down over several steps, as when hot"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    workers = cause.where.workers
    host = hosts.whole_host(workers) if len(workers) > 1 else None
    return Remedy(
        "cool_device",
        f"Cool {host or hosts.name_workers(*workers)}",
        "Replayed with it computing all the time like the other DP ranks of its stage. Clocks, "
        "temperatures and limits of power say what throttles it: a fan, dust, neighbors, a cap.",
    )


THERMAL_THROTTLING: Final = CauseKind(
    name="thermal_throttling",
    title="Thermal throttling",
    word="heat",
    sign="A worker grows slower than its stage's peers over several steps and recovers, forward "
    "and backward alike, with levels in between.",
    blames_machine=True,
    cannot_judge=needs_peers,
    because=_because,
    find=_find,
    needs_own_devices=True,
    remedy=_remedy,
    phase=Phase.SPECIAL,
    over_steps=True,
)

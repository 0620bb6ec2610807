"""Workers that grow slower over several steps and recover, as devices do that get too hot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, Turn, needs_peers
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding, WorkerSteps
from app.analysis.diagnosis.locations import Hosts, JobFacts, RegionView, Where, Worker, WorkerView
from app.analysis.diagnosis.observation import Observation, held_against_peers, scatter_of_most
from app.analysis.diagnosis.session_view import Signs
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether a worker drifts as a hot device does."""

    least_range: float = 0.1  # heat changes how slow a worker is by this much over the session
    to_scatter: float = 8.0  # …and by this many standard deviations of what workers scatter by
    least_move: float = 0.02  # from one step to the next a change of this size is a move
    move_to_scatter: float = 4.0  # …that is this many standard deviations
    moves: int = 3  # heat comes or goes in this many moves one way in a row
    moves_again: int = 2  # …or in this many, again and again
    of_range: float = 0.4  # such a climb is this share of the range
    of_all: float = 0.2  # all climbs together are this share of all moves
    one_move: float = 0.6  # no move is a larger share of its climb
    # …but the first of many is up to this share where steps are calm: a device nears the heat
    # that it ends up with ever more slowly.
    one_of_many: float = 0.7
    # The direction changes at this share of the steps at most; chance turns at two of three.
    most_turns: float = 0.6
    # Steps are calm where the squares of moves are at most this many times those of distances
    # from the mean; chance makes them twice as much (von Neumann 1941).
    calm: float = 1.4
    # Below this ratio calmness alone tells, where each move is too small to be told from
    # chance.
    smooth: float = 0.7
    # …if this share of the steps lies between cool and hot: a worker of two levels moves as
    # seldom.
    between: float = 0.15
    # Between cool and hot is what is this share of the range away from either.
    quarter: float = 0.25
    # A worker has heated up at this share of the way from its coolest to its hottest step, and
    # cooled down when it is as far back.
    warm: float = 0.7
    # Other workers count when their range is this share of that of the hottest.
    to_hottest: float = 0.25


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return the workers that drift, the slowest first; without it they compute like the others."""
    observation, slowness = signs.observation, signs.slowness
    if slowness is None or needs_peers(signs) is not None:
        return None
    if observation.layout.dp == 1:
        slowness = {name: _against_itself(by_worker) for name, by_worker in slowness.items()}
    both = np.minimum(slowness[FORWARD_COMPUTE], slowness[BACKWARD_COMPUTE])
    # Chance moves a worker by so much of what it takes, slow as it is.
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
    # What drifts nearly everywhere is no worker's heat.
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
            # Between recorded stretches it is not known how often it came.
            cycle=_cycle(ratio) if (np.diff(observation.layout.steps) == 1).all() else None,
        ),
    )


def _against_itself(by_worker: FloatArray) -> FloatArray:
    """Return the slowness of workers without peers, against their own coolest step."""
    return np.asarray(by_worker / by_worker.min(axis=1, keepdims=True))


def _drifts(ratio: FloatArray, least: float) -> bool:
    """Return whether a worker's slowness comes or goes over several steps, and not by chance."""
    moves, away = np.diff(ratio), ratio - ratio.mean()
    restless = float((moves**2).sum() / (away**2).sum())
    if restless <= THRESHOLDS.smooth and _is_between(ratio):
        return True
    return _climbs(
        ratio, least, THRESHOLDS.one_of_many if restless <= THRESHOLDS.calm else THRESHOLDS.one_move
    )


def _is_between(ratio: FloatArray) -> bool:
    """Return whether many steps are between cool and hot."""
    share = (ratio - ratio.min()) / np.ptp(ratio)
    return bool(
        ((share > THRESHOLDS.quarter) & (share < 1 - THRESHOLDS.quarter)).mean()
        >= THRESHOLDS.between
    )


def _climbs(ratio: FloatArray, least: float, most: float) -> bool:
    """Return whether it moves one way over several steps, by `least` or more in each.

    The largest of many moves on end is `most` of all of them.
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
    """Return how many steps pass from one heating up to the next; None where it is seen once."""
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
    """Return how much longer than their peers workers compute, by node, shape (steps, dp), ns."""
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
                f"W{observation.hosts.named((dp, pp))[1:]}: {ratio[coolest]:.2f}× {steady} in step "
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
    who = job.named(workers[0])
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
        f"Cool {host or hosts.named(*workers)}",
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
    turn=Turn.SPECIAL,
    over_steps=True,
)

"""How well the healthy times of workers at fault are known from their peers.

A worker at fault is replayed as the median of its peers, and workers differ. Where all hosts are at
fault nothing tells what healthy ones take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, pi, sqrt
from typing import Final

import numpy as np

from app.analysis.diagnosis.observation import COMPUTATIONS, Observation
from app.analysis.diagnosis.places import Worker
from app.analysis.diagnosis.uncertainty import Uncertainty
from app.analysis.replay.layout.graph import P2P
from app.analysis.replay.session import with_lags

# Half of a 95 % interval, in standard deviations.
_WIDE: Final = 1.96
# The variance of a median of normal values, times their number, over theirs.
_OF_MEDIAN: Final = pi / 2
# A host that waits for its input launches nothing meanwhile: whenever a device has waited for a
# transfer it waits for the launch as well, on a healthy host, too. What that takes there no trace
# tells, of what is launched: the least, as much as is assumed, and the most. How much longer a step
# is by it a replay tells.
_HEALTHY_LAUNCH: Final = (0.01, 0.04, 0.1)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides how well healthy workers and hosts are known, which the interval is made of."""

    scatter: float = 0.003  # what workers differ by (sigma) where few or no peers tell
    # Pairs of workers that this counts for: without it two peers that happen to be alike would
    # pass for knowledge.
    counts_for: int = 2
    # Half of a 95 % interval of a step whose hosts wait for their input, beyond what a launch
    # takes.
    unsure_waiting: float = 0.005


THRESHOLDS: Final = Thresholds()


def held_against_peers(observation: Observation, workers: Sequence[Worker]) -> Uncertainty:
    """Return how far a step may be off in which the workers at fault compute like their peers.

    All other workers are healthy. A step follows the slowest DP rank, which one of many seldom is:
    what a worker would take weighs as its share of the DP ranks.
    """
    layout = observation.layout
    healthy = np.ones((layout.pp, layout.dp), dtype=bool)
    ranks, stages = [dp for dp, _ in workers], [pp for _, pp in workers]
    healthy[stages, ranks] = False
    peers = healthy.sum(axis=1)
    squares, pairs = THRESHOLDS.counts_for * THRESHOLDS.scatter**2, THRESHOLDS.counts_for
    if observation.passes and layout.dp > 1:
        taken = [passes.own_ns.sum(axis=1) for passes in observation.passes.values()]
        level = np.log(np.add.reduce(taken))
        center = (level * healthy).sum(axis=1) / np.maximum(peers, 1)
        beyond = (level - center[:, None])[healthy]
        squares += float(beyond @ beyond)
        pairs += int(np.maximum(peers - 1, 0).sum())
    fewest = max(int(peers[stages].min()), 1)
    sigma = sqrt(squares / pairs * (1 + _OF_MEDIAN / fewest))
    return Uncertainty(
        _WIDE * sigma * len(set(ranks)) / layout.dp, hiding=kept_waiting(observation, workers)
    )


def kept_waiting(observation: Observation, workers: Sequence[Worker]) -> float:
    """Return the share of the job that some workers at fault keep waiting.

    Other DP ranks wait, or where these are the larger share, other stages. The rest of it is waited
    for itself: what is launched late there makes the step longer all the same.
    """
    ranks, stages = {dp for dp, _ in workers}, {pp for _, pp in workers}
    layout = observation.layout
    return 1 - min(len(ranks) / layout.dp, len(stages) / layout.pp)


@dataclass(frozen=True, slots=True)
class HealthyLaunches:
    """What healthy hosts take to launch after they have waited, and what is not known of it."""

    lags_ns: dict[tuple[int, int], float]
    uncertainty: Uncertainty


def healthy_launches(observation: Observation) -> HealthyLaunches:
    """Return what passes before launches after transfers if hosts are healthy."""
    transfers = observation.layout.of_types(*P2P)
    ideal_ns = observation.group.durations.ideal_ns
    launched = [
        (node, other)
        for node in np.flatnonzero(observation.layout.of_types(*COMPUTATIONS)).tolist()
        for other in observation.after[node]
        if transfers[other]
    ]
    lags = [
        {edge: share * float(ideal_ns[edge[0]]) for edge in launched} for share in _HEALTHY_LAUNCH
    ]
    groups = (with_lags(observation.group, lags_ns) for lags_ns in lags)
    least, typical, most = (
        float(group.simulator.step_times([group.simulator.keep()]).sum()) for group in groups
    )
    unsure = hypot(THRESHOLDS.unsure_waiting, typical / least - 1)
    longer = sqrt(max((most / typical - 1) ** 2 - unsure**2, 0.0))
    return HealthyLaunches(lags[1], Uncertainty(unsure, longer))

"""How well it is known what workers would take that are at fault: as well as their peers tell.

Whoever is at fault is replayed as the middle one of its peers, and workers differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt
from typing import Final

import numpy as np

from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.places import Worker

# Half of a 95 % interval, in standard deviations.
_WIDE: Final = 1.96
# What workers differ by (sigma) where few or no peers tell, and how many pairs of them it counts
# for: without it two peers that happen to be alike would pass for knowledge.
_SCATTER: Final = 0.003
_COUNTS_FOR: Final = 2
# The variance of a median of normal values, times their number, over theirs.
_OF_MEDIAN: Final = pi / 2
# Stages differ by up to so much where a model is evenly divided; replayed they are all the same.
UNEVEN: Final = 0.004


def unsure_of_peers(observation: Observation, workers: Sequence[Worker]) -> float:
    """Return how far a step may be off in which some workers compute like their peers, relative.

    Half of a 95 % interval. A step follows the slowest DP rank, which one of many seldom is: what
    a worker would take weighs as its share of the DP ranks.

    Parameters
    ----------
    observation : Observation
    workers : sequence of (DP rank, stage)
        Those that are at fault; all others are healthy.
    """
    layout = observation.layout
    healthy = np.ones((layout.pp, layout.dp), dtype=bool)
    ranks, stages = [dp for dp, _ in workers], [pp for _, pp in workers]
    healthy[stages, ranks] = False
    peers = healthy.sum(axis=1)
    squares, pairs = _COUNTS_FOR * _SCATTER**2, _COUNTS_FOR
    if observation.passes and layout.dp > 1:
        taken = [passes.own_ns.sum(axis=1) for passes in observation.passes.values()]
        level = np.log(np.add.reduce(taken))
        middle = (level * healthy).sum(axis=1) / np.maximum(peers, 1)
        beyond = (level - middle[:, None])[healthy]
        squares += float(beyond @ beyond)
        pairs += int(np.maximum(peers - 1, 0).sum())
    fewest = max(int(peers[stages].min()), 1)
    sigma = sqrt(squares / pairs * (1 + _OF_MEDIAN / fewest))
    return _WIDE * sigma * len(set(ranks)) / layout.dp

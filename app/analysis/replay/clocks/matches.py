"""Ends that belong together, by which clocks are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.graph import DP_COLLECTIVES, Graph
from app.analysis.replay.medians import median_of_known

Item = TypeVar("Item")

# Ends that one pair of stages is matched by in each step; more say nothing new.
MATCHES: Final = 6


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Clocks that are compared: node `one` shows `ahead_ns` more than node `other`.

    Nodes are ranks (DP rank × PP + stage), then one for each stage's collectives, then one for the
    boundaries of steps. `ahead_ns` has the shape (steps, matches), NaN where nothing was recorded;
    `spread_ns`, of the same shape, is how far single ends of a step are from it.
    """

    one: NDArray[np.int64]
    other: NDArray[np.int64]
    ahead_ns: FloatArray
    spread_ns: FloatArray

    def pairs(self) -> list[tuple[int, int]]:
        """Return (one, other) of each match."""
        return list(zip(self.one.tolist(), self.other.tolist(), strict=True))


def matches_of(layout: Layout, graph: Graph) -> Matches:
    """Compare the ends of what moves data together."""
    dp, pp = layout.dp, layout.pp
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    collectives: dict[int, list[int]] = {}
    stage = layout.nodes.pp.tolist()
    spanning = layout.of_types(*DP_COLLECTIVES).tolist()
    for unit in graph.units:
        match unit.members:
            case (one_of, other_of) if not unit.across_dp and stage[one_of] != stage[other_of]:
                if layout.free is not None and (layout.free[one_of] or layout.free[other_of]):
                    continue
                if stage[one_of] > stage[other_of]:
                    one_of, other_of = other_of, one_of
                pairs.setdefault((stage[one_of], stage[other_of]), []).append((one_of, other_of))
            case (node,) if spanning[node]:
                collectives.setdefault(stage[node], []).append(node)
            case _:
                pass
    ranks = np.arange(dp) * pp
    one, other, apart = [], [], []
    for (first, second), found in sorted(pairs.items()):
        ends = [_ends(layout, list(side)) for side in zip(*_sample(found), strict=True)]
        one.append(ranks + first)
        other.append(ranks + second)
        apart.append(ends[0] - ends[1])
    if dp > 1:
        for stage, nodes in sorted(collectives.items()):
            end = _ends(layout, _sample(nodes))
            median = median_of_known(end.transpose(2, 0, 1))
            one.append(ranks + stage)
            other.append(np.full(dp, dp * pp + stage))
            apart.append(end - median[:, :, None])
    nothing = np.zeros((len(layout.steps), 0))
    ahead = _medians(apart)
    spread = _medians(
        [np.abs(values - median) for values, median in zip(apart, ahead, strict=True)]
    )
    return Matches(
        np.concatenate([np.zeros(0, dtype=np.int64), *one]),
        np.concatenate([np.zeros(0, dtype=np.int64), *other]),
        np.concatenate([nothing, *ahead], axis=1),
        np.concatenate([nothing, *spread], axis=1),
    )


def _medians(series: Sequence[FloatArray]) -> list[FloatArray]:
    """Return `median_of_known` of each; those that are equally long are looked at together."""
    alike: dict[int, list[int]] = {}
    for index, values in enumerate(series):
        alike.setdefault(len(values), []).append(index)
    found: dict[int, FloatArray] = {}
    for places in alike.values():
        together = np.array([series[index] for index in places]).swapaxes(0, 1)
        found.update(zip(places, median_of_known(together), strict=True))
    return [found[index] for index in range(len(series))]


def _sample(found: list[Item]) -> list[Item]:
    """Choose a few, evenly spread over the whole step."""
    if len(found) <= MATCHES:
        return found
    return [found[i * (len(found) - 1) // (MATCHES - 1)] for i in range(MATCHES)]


def _ends(layout: Layout, nodes: list[int]) -> FloatArray:
    """Return recorded ends, shape (nodes, steps, dp); NaN where missing."""
    ends = layout.start_ns[nodes] + layout.duration_ns[nodes]
    if layout.missing is not None:
        ends[layout.missing[nodes]] = np.nan
    return ends

"""Signs of adaptations: regular launch delays, samples of lanes, and a precheck.

A *lane* is one step of one DP rank. Most sessions show no sign of any adaptation, and a large
session has millions of operations. So the precheck tests a necessary condition of each sign on a
few lanes. Without it a report takes 1.8 times (AR), 1.5 times (ST) and 1.15 times (AR tiled 16
times) as long, with the same result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, P2P, Graph
from app.analysis.replay.layout.pipeline import COMPUTE, DIRECTIONS
from app.analysis.replay.robust_statistics import mean, median
from app.analysis.trace.model import FORWARD_COMPUTE, GC, PARAMS_ALL_GATHER

# A delay is close to the median delay if it is at least this share of the median…
MOST_OF: Final = 0.5
# …and the delay is regular if the median delay of each DP rank is at least this share of the median
# of all ranks: a single late worker is a straggler, not a property of the job.
_ON_EVERY_RANK: Final = 0.25
# Delays are clipped at Tukey's outer fence (third quartile + 3 interquartile ranges), so that
# single stalls do not change the mean.
_FENCE: Final = 3.0


def regular_share(late_ns: FloatArray) -> float:
    """Return the share of launches whose delay is close to the median delay.

    The share is 0 if launches are late on some DP ranks only, or not late at all.

    Parameters
    ----------
    late_ns : float64 array, shape (…, dp)
        Launch delays; NaN where a launch is of another kind.
    """
    launched = late_ns[~np.isnan(late_ns)]
    if not len(launched):
        return 0.0
    median_ns = float(median(launched))
    ranks = [own[~np.isnan(own)] for own in late_ns.reshape(-1, late_ns.shape[-1]).T]
    least = min(float(median(own)) for own in ranks if len(own))
    if median_ns <= 0 or least < _ON_EVERY_RANK * median_ns:
        return 0.0
    return float(np.mean(launched >= MOST_OF * median_ns))


def typical_ns(late_ns: FloatArray) -> float:
    """Return the mean launch delay, at least 0, ns.

    The mean is used, as for the ideal durations of computations. Single stalls are clipped. A
    negative mean comes from clocks that jump, and counts as 0.
    """
    launched = late_ns[~np.isnan(late_ns)]
    low, high = np.quantile(launched, (0.25, 0.75)).tolist()
    return max(0.0, float(np.mean(np.minimum(launched, high + _FENCE * (high - low)))))


# Largest numbers of lanes and of DP ranks in a sample.
_LANES: Final = 64
_SAMPLED_RANKS: Final = 8


def _chosen(layout: Layout) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Return the indices of the sampled steps and DP ranks; None if all are sampled."""
    steps, dp = len(layout.steps), layout.dp
    most = _LANES // min(dp, _SAMPLED_RANKS)
    if steps <= most and dp <= _SAMPLED_RANKS:
        return None
    return (
        np.linspace(0, steps - 1, min(steps, most)).astype(np.intp),
        np.linspace(0, dp - 1, min(dp, _SAMPLED_RANKS)).astype(np.intp),
    )


def sampled_times(layout: Layout, nodes: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Return starts and durations of nodes in the sampled lanes, shape (dp, nodes, steps), ns."""
    steps, ranks = _chosen(layout) or (np.arange(len(layout.steps)), np.arange(layout.dp))
    lanes = np.ix_(ranks, nodes, steps)
    return layout.start_ns.transpose(2, 0, 1)[lanes], layout.duration_ns.transpose(2, 0, 1)[lanes]


def sampled(layout: Layout) -> Layout:
    """Return a layout of evenly spread steps and DP ranks; a small layout is returned unchanged."""
    places = _chosen(layout)
    if places is None:
        return layout
    chosen, ranks = places
    lanes = np.ix_(np.arange(len(layout.nodes)), chosen, ranks)
    padding = layout.padding
    return replace(
        layout,
        steps=layout.steps[chosen],
        start_ns=layout.start_ns[lanes],
        duration_ns=layout.duration_ns[lanes],
        begin_ns=layout.begin_ns[chosen],
        ranks=layout.ranks[ranks],
        missing=None if layout.missing is None else layout.missing[lanes],
        padding=padding and replace(padding, counts=padding.counts[np.ix_(chosen, ranks)]),
        paused_ns={},
        shares={},
    )


Lags = Mapping[tuple[int, int], float]

# Launches are regularly late if this share of their delays is close to the median: of exponentially
# distributed (random) delays 71 % are.
_REGULARLY: Final = 0.8
# Smallest number of launches from which a regular delay is inferred.
_FEWEST: Final = 20
# Smallest regular delay, as a share of the duration of the launched computations, that is worth
# modeling.
_LEAST_AWAITED_SHARE: Final = 0.002


def lags_after_transfers(
    layout: Layout,
    graph: Graph,
    ideal_ns: FloatArray,
    *,
    also: Collection[tuple[int, int]] = (),
) -> Lags:
    """Return the regular delays from the end of a transfer to the launch of its computation, ns.

    A host that waits for its input launches nothing meanwhile, so after the transfer its device
    waits for the launch. Behind a straggler few devices wait for transfers, but without the
    straggler more devices do, so a replay without the straggler needs these delays. Each type of
    computation has one delay, measured on all stages. (`regular_delays` is the adaptation for
    sessions whose discrepancy shows such delays.)

    Parameters
    ----------
    ideal_ns : float64 array, shape (nodes,)
        Ideal duration of each node.
    also : collection of (dp, pp)
        Workers with slow hosts, which are left out of the measurement. If there are any, all lanes
        of the other workers are measured instead of a sample.

    Returns
    -------
    mapping of (computation, transfer) to float
        Delays of the dependencies that have no lag in the graph yet; empty if launches are not
        regularly late.
    """
    transfers = layout.of_types(*P2P)
    few = layout if also else sampled(layout)
    slow = np.zeros((layout.pp, few.dp), dtype=bool)
    for dp, pp in also:
        slow[pp, dp] = True
    after = {
        node: before
        for unit in graph.units
        for node, before in zip(unit.members, unit.after, strict=True)
    }
    lags: dict[tuple[int, int], float] = {}
    for name in sorted(COMPUTE):
        edges = {
            node: received
            for node in np.flatnonzero(layout.of_types(name)).tolist()
            if (received := tuple(end for end in after[node] if transfers[end]))
        }
        if edges:
            late_ns = _late(few, edges, after, slow)
            takes_ns = float(median(ideal_ns[list(edges)]))
            waited = late_ns[~np.isnan(late_ns)]
            lag_ns = 0.0
            enough = (
                len(waited) >= _FEWEST and float(median(waited)) >= _LEAST_AWAITED_SHARE * takes_ns
            )
            if enough and regular_share(late_ns) >= _REGULARLY:
                lag_ns = typical_ns(late_ns)
            lags |= {(node, end): lag_ns for node, ends in edges.items() for end in ends if lag_ns}
    return {edge: lag_ns for edge, lag_ns in lags.items() if edge not in graph.lags_ns}


def _late(
    layout: Layout,
    edges: Mapping[int, tuple[int, ...]],
    after: Mapping[int, tuple[int, ...]],
    slow: NDArray[np.bool_],
) -> FloatArray:
    """Return the delays from the ends of transfers to their computations, shape (…, dp), ns.

    The delay is NaN if a computation waited for something other than its transfer, and on `slow`
    workers, a mask of shape (pp, dp).
    """
    # Computations with equal numbers of dependencies share one NumPy call.
    alike: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    for node, received in edges.items():
        others = tuple(end for end in after[node] if end not in received)
        alike[len(received), len(others)].append((node, *received, *others))
    late_ns = []
    for (inputs, others_too), listed in alike.items():
        rows = np.array(listed)
        start = layout.start_ns[rows[:, 0]]
        ends = layout.start_ns[rows[:, 1:]] + layout.duration_ns[rows[:, 1:]]
        waited = ~np.broadcast_to(slow[layout.nodes.pp[rows[:, 0]], None], start.shape)
        if others_too:
            waited &= ends[:, :inputs].max(axis=1) > ends[:, inputs:].max(axis=1)
        own_ns = np.where(waited, start - ends.max(axis=1), np.nan)
        late_ns.append(own_ns.reshape(-1, layout.dp))
    return np.concatenate(late_ns)


# Numbers of steps and DP ranks in the precheck's sample.
_STEPS: Final = 4
_RANKS: Final = 2
# Share of cases that must show a sign: lower than in the sign's full test, since the precheck looks
# at a few lanes only.
_MOST: Final = 0.96
# Largest ratio of mean to median of launch delays, above which delays are irregular.
_MEDIANS: Final = 2.0
# Share of a type's receives that must be posted in turn for the precheck to pass.
_HALF: Final = 0.5
_LEAST_SHARE: Final = 0.005


class Precheck:
    """Necessary conditions of the adaptations' signs, tested on a few lanes of a layout.

    Arrays hold operations stage by stage in the order of their launch, shape (nodes, lanes).
    """

    def __init__(self, layout: Layout) -> None:
        steps = np.unique(np.linspace(0, len(layout.steps) - 1, _STEPS).astype(np.intp))
        ranks = np.unique(np.linspace(0, layout.dp - 1, _RANKS).astype(np.intp))
        nodes = layout.nodes
        in_order = np.lexsort((layout.launch, nodes.pp))
        lanes = np.ix_(in_order, steps, ranks)
        start = layout.start_ns[lanes].reshape(len(nodes), -1)
        end = start + layout.duration_ns[lanes].reshape(len(nodes), -1)
        self._step_ns = float(end.max())
        # Stages are shifted apart on the time axis, so that operations of different stages never
        # overlap.
        apart = nodes.pp[in_order, None] * (4 * self._step_ns)
        self._start: FloatArray = start + apart
        self._end: FloatArray = end + apart
        self._op = nodes.op[in_order]
        self._codes = {name: code for code, name in enumerate(layout.op_names)}
        self._computes = self._of(COMPUTE)
        self._stage = nodes.pp[in_order]
        self._alone = layout.dp == 1
        collections = nodes.op == self._codes[GC]
        self._collects = bool(collections.any() and layout.duration_ns[collections].any())

    def _of(self, names: frozenset[str]) -> NDArray[np.bool_]:
        return np.array([name in names for name in self._codes])[self._op]

    def collects_garbage(self) -> bool:
        """Return whether the layout has a garbage collection of a duration above 0."""
        return self._collects

    def may_nest_collectives(self) -> bool:
        """Return whether DP collectives of some node regularly lie inside a computation."""
        if self._alone:
            return False
        chosen = self._of(DP_COLLECTIVES)
        start, end = self._start[chosen, None], self._end[chosen, None]
        inside = (self._start[self._computes] <= start) & (end <= self._end[self._computes])
        inside &= end > start
        return bool((np.mean(np.asarray(inside.any(axis=1)), axis=1) >= _MOST).any())

    def has_no_pipeline(self) -> bool:
        """Return whether the job has a single pipeline stage."""
        return bool(self._stage[-1] == 0)

    def may_end_late(self) -> bool:
        """Return whether sends end later than their receives by a relevant time.

        The time is averaged over both directions, so that differences between clocks cancel.
        """
        late = 0.0
        for direction in DIRECTIONS:
            sends = self._end[self._op == self._codes[direction.send]]
            receives = self._end[self._op == self._codes[direction.recv]]
            if len(sends) != len(receives) or not len(sends):
                return bool(len(sends) and len(receives))
            # Forward receives are shifted forward by one stage relative to their sends and backward
            # receives back, so the shifts cancel in the sum.
            late += float(mean(sends.ravel()) - mean(receives.ravel()))
        typical = float(median((self._end - self._start)[self._computes].ravel()))
        return late > typical / (2 * int(self._stage[-1] + 1))

    def gathers_chunks(self) -> bool:
        """Return whether the first forward follows the gathering of several chunks."""
        forwards = (self._op == self._codes[FORWARD_COMPUTE]).nonzero()[0]
        gathers = (self._op == self._codes[PARAMS_ALL_GATHER]).nonzero()[0]
        if len(gathers) <= self._stage[-1] + 1 or not len(forwards):
            return False
        first = self._stage[gathers] == self._stage[forwards[0]]
        return float(np.mean(self._start[forwards[0]] >= self._end[gathers[first]])) >= _MOST

    def may_block(self) -> bool:
        """Return whether transfers of a type mostly end before the stage's next computation."""
        later = np.where(self._computes[:, None], self._start, np.inf)
        begins = np.minimum.accumulate(later[::-1], axis=0)[::-1]
        chosen = self._of(P2P)
        clear = np.mean((self._end <= begins)[chosen], axis=1)
        kind = self._op[chosen].astype(np.int64) * (self._stage[-1] + 1) + self._stage[chosen]
        counts = np.bincount(kind)
        return bool((np.bincount(kind, clear) >= _MOST * counts)[counts > 0].any())

    def may_post_in_turn(self) -> bool:
        """Return whether receives regularly start after a computation of the other direction."""
        computes = self._computes.nonzero()[0]
        for direction in DIRECTIONS:
            receives = (self._op == self._codes[direction.recv]).nonzero()[0]
            before = computes[np.maximum(np.searchsorted(computes, receives) - 1, 0)]
            other = (
                (before < receives)
                & (self._stage[before] == self._stage[receives])
                & (self._op[before] != self._codes[direction.compute])
            )
            late = np.mean(self._start[receives] >= self._end[before], axis=1) >= _MOST
            if (late & other).sum() > _HALF * other.sum() > 0:
                return True
        return False

    def may_delay(self) -> bool:
        """Return whether computations often start late after the previous end on their stage."""
        launched = self._computes.copy()
        # The first computation of each stage is left out, since it waits for its data.
        firsts = launched.nonzero()[0]
        launched[firsts[np.flatnonzero(np.diff(self._stage[firsts], prepend=-1))]] = False
        starts = self._start[launched]
        if not len(starts):
            return False
        # Lanes are shifted apart on the time axis as well, so that a single search covers all
        # lanes.
        apart = 4 * (self._stage[-1] + 1) * self._step_ns * np.arange(starts.shape[1])
        ends = np.sort(self._end + apart, axis=0).T.ravel()
        starts = starts + apart
        gaps = starts - ends[np.searchsorted(ends, starts, side="right") - 1]
        cuts = np.flatnonzero(np.diff(self._stage[launched])) + 1
        total = sum(
            len(of_stage) * float(median(of_stage.ravel())) for of_stage in np.split(gaps, cuts)
        )
        return _MEDIANS * total >= _LEAST_SHARE * self._step_ns


# Largest difference between two consecutive readings of a clock, ns: starts and ends this close
# count as equal.
SAME_NS: Final = 1e3
NOWHERE: Final = -1


def computes_of(layout: Layout, stage: int) -> NDArray[np.int64]:
    """Return the computation nodes of a stage."""
    return np.flatnonzero(layout.of_types(*COMPUTE) & (layout.nodes.pp == stage))


def containing(layout: Layout, node: int) -> NDArray[np.int64]:
    """Return the computation around each occurrence of a node, (steps, dp); `NOWHERE` if none."""
    computes = computes_of(layout, int(layout.nodes.pp[node]))
    if not len(computes):
        return np.full(layout.start_ns.shape[1:], NOWHERE)
    start, end = layout.start_ns[node], layout.start_ns[node] + layout.duration_ns[node]
    begins = layout.start_ns[computes]
    inside = (begins <= start + SAME_NS) & (end <= begins + layout.duration_ns[computes] + SAME_NS)
    # Computations that are no longer than the node cannot contain it.
    inside &= layout.duration_ns[computes] > layout.duration_ns[node]
    if layout.missing is not None:
        inside &= ~layout.missing[computes] & ~layout.missing[node]
    return np.where(inside.any(axis=0), computes[inside.argmax(axis=0)], NOWHERE)

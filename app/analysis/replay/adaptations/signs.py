"""Signs of adaptations: sampled lanes, a precheck, and regular launch delays.

Most sessions show no sign, and a large one has millions of operations, so a precheck on a few
lanes rules signs out by a condition that each requires. Without it a report takes 1.8 times (AR),
1.5 times (ST) and 1.15 times (AR tiled 16 times) as long, with the same result.
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

# ---- What launches are regularly late by, on every DP rank: a worker that alone is late is slow --


# Launches are about as late as the median when they are late by this share of it at least…
MOST_OF: Final = 0.5
# …and on every DP rank the median is this share of that of all.
_ON_EVERY_RANK: Final = 0.25
# Single stalls make nothing typical: they count as Tukey's outer fence.
_FENCE: Final = 3.0


def regular_share(late_ns: FloatArray) -> float:
    """Return the share of launches that are about as late as the median.

    0 where they are late on some DP ranks only, or not late at all.

    Parameters
    ----------
    late_ns : float64 array, shape (…, dp)
        How late each launch is; NaN where it is none of the kind.
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
    """Return the mean: launching is the host's computing, whose ideal is a mean.

    Single stalls do not make it. Nothing is launched before its input is there: a few clocks that
    jump do not make it so.
    """
    launched = late_ns[~np.isnan(late_ns)]
    low, high = np.quantile(launched, (0.25, 0.75)).tolist()
    return max(0.0, float(np.mean(np.minimum(launched, high + _FENCE * (high - low)))))


# ---- A few lanes of a session: enough to show how the job runs, and as cheap in a large one ----


_LANES: Final = 64
_SAMPLED_RANKS: Final = 8


def _chosen(layout: Layout) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Return the steps and DP ranks of a sample; None where it is the whole."""
    steps, dp = len(layout.steps), layout.dp
    most = _LANES // min(dp, _SAMPLED_RANKS)
    if steps <= most and dp <= _SAMPLED_RANKS:
        return None
    return (
        np.linspace(0, steps - 1, min(steps, most)).astype(np.intp),
        np.linspace(0, dp - 1, min(dp, _SAMPLED_RANKS)).astype(np.intp),
    )


def sampled_times(layout: Layout, nodes: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Return start and duration of some nodes in a sample, shape (dp, nodes, steps)."""
    steps, ranks = _chosen(layout) or (np.arange(len(layout.steps)), np.arange(layout.dp))
    lanes = np.ix_(ranks, nodes, steps)
    return layout.start_ns.transpose(2, 0, 1)[lanes], layout.duration_ns.transpose(2, 0, 1)[lanes]


def sampled(layout: Layout) -> Layout:
    """Return a layout of a few of its steps and DP ranks, evenly spread; small ones as they are."""
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


# ---- What hosts take to launch after they have waited for a transfer ---------------------------
# A host that waits for its input launches nothing meanwhile: its device then waits for the launch
# as well. Behind a straggler few devices wait for transfers, or others than without it, so that a
# replay without the straggler has to know what follows those waits (`regular_delays` adapts
# sessions whose recording calls for it; here the recording may be as near without).


Lags = Mapping[tuple[int, int], float]

# Launches are regularly late when that share is about as late as the median: of delays without
# memory, which are chance, 71 % are.
_REGULARLY: Final = 0.8
# Fewer than that many tell nothing.
_FEWEST: Final = 20
# Less than this share of what is launched changes no step.
_LEAST_AWAITED_SHARE: Final = 0.002


def lags_after_transfers(
    layout: Layout,
    graph: Graph,
    ideal_ns: FloatArray,
    *,
    also: Collection[tuple[int, int]] = (),
) -> Lags:
    """Return what regularly passes before computations after the transfers that they need, ns.

    A few lanes tell. Of a type of computations all stages have the same: where none waits for
    transfers, as behind a straggler, others tell.

    Parameters
    ----------
    ideal_ns : float64 array, shape (nodes,)
    also : collection of (dp, pp)
        Workers that do not count, as their hosts are slow; then all other lanes tell.

    Returns
    -------
    mapping of (computation, transfer) to float
        Nothing where launches are not regularly late. What the replay has already stays as it is.
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
            lag_ns = _regular(late_ns, _LEAST_AWAITED_SHARE * takes_ns)
            lags |= {(node, end): lag_ns for node, ends in edges.items() for end in ends if lag_ns}
    return {edge: lag_ns for edge, lag_ns in lags.items() if edge not in graph.lags_ns}


def _late(
    layout: Layout,
    edges: Mapping[int, tuple[int, ...]],
    after: Mapping[int, tuple[int, ...]],
    slow: NDArray[np.bool_],
) -> FloatArray:
    """Return how late computations begin after their transfers, shape (…, dp), ns.

    NaN where one waited for something else, and of workers that are slow, shape (pp, dp).
    """
    # those that follow as many of both are looked at together
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


def _regular(late_ns: FloatArray, least_ns: float) -> float:
    """Return what launches are regularly late by, 0 where they are not; `late_ns` is (…, dp)."""
    waited = late_ns[~np.isnan(late_ns)]
    if len(waited) < _FEWEST or float(median(waited)) < least_ns:
        return 0.0
    return typical_ns(late_ns) if regular_share(late_ns) >= _REGULARLY else 0.0


# ---- A glance at a few lanes: whether a sign can be there at all -------------------------------
# Most sessions show none of the signs, and a large one has millions of operations. So each sign has
# a condition that it cannot be without and that some lanes tell at once; only where it holds is the
# sign looked for. Without this a whole report takes 1.8 times (AR), 1.5 times (ST) and 1.15 times
# (AR tiled 16 times) as long, and says the same.


_STEPS: Final = 4
_RANKS: Final = 2
# Of a few lanes one more exception may happen by chance than of many.
_MOST: Final = 0.96
# Typical delays are means, and at most about that many medians.
_MEDIANS: Final = 2.0
# Receives of a type are posted in turn when half of them are.
_HALF: Final = 0.5
_LEAST_SHARE: Final = 0.005


class Precheck:
    """A few lanes of a layout: its operations stage by stage, in the order of their launch."""

    def __init__(self, layout: Layout) -> None:
        steps = np.unique(np.linspace(0, len(layout.steps) - 1, _STEPS).astype(np.intp))
        ranks = np.unique(np.linspace(0, layout.dp - 1, _RANKS).astype(np.intp))
        nodes = layout.nodes
        in_order = np.lexsort((layout.launch, nodes.pp))
        lanes = np.ix_(in_order, steps, ranks)
        start = layout.start_ns[lanes].reshape(len(nodes), -1)
        end = start + layout.duration_ns[lanes].reshape(len(nodes), -1)
        self._step_ns = float(end.max())
        # Stages one after another on one axis of time: nothing of one is near another's.
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
        """Return whether any collection takes time."""
        return self._collects

    def may_nest_collectives(self) -> bool:
        """Return whether a collective of DP ranks lies inside of a computation."""
        if self._alone:
            return False
        chosen = self._of(DP_COLLECTIVES)
        start, end = self._start[chosen, None], self._end[chosen, None]
        inside = (self._start[self._computes] <= start) & (end <= self._end[self._computes])
        inside &= end > start
        return bool((np.mean(np.asarray(inside.any(axis=1)), axis=1) >= _MOST).any())

    def has_no_pipeline(self) -> bool:
        """Return whether there is one stage."""
        return bool(self._stage[-1] == 0)

    def may_end_late(self) -> bool:
        """Return whether sends end after receives by some of what is computed with them.

        On average, whatever is whose: clocks that are apart count once each way.
        """
        late = 0.0
        for direction in DIRECTIONS:
            sends = self._end[self._op == self._codes[direction.send]]
            receives = self._end[self._op == self._codes[direction.recv]]
            if len(sends) != len(receives) or not len(sends):
                return bool(len(sends) and len(receives))
            # receives are a stage further on that axis, one way and the other
            late += float(mean(sends.ravel()) - mean(receives.ravel()))
        typical = float(median((self._end - self._start)[self._computes].ravel()))
        return late > typical / (2 * int(self._stage[-1] + 1))

    def gathers_chunks(self) -> bool:
        """Return whether a first forward begins after the gathering for more than one chunk."""
        forwards = (self._op == self._codes[FORWARD_COMPUTE]).nonzero()[0]
        gathers = (self._op == self._codes[PARAMS_ALL_GATHER]).nonzero()[0]
        if len(gathers) <= self._stage[-1] + 1 or not len(forwards):
            return False
        first = self._stage[gathers] == self._stage[forwards[0]]
        return float(np.mean(self._start[forwards[0]] >= self._end[gathers[first]])) >= _MOST

    def may_block(self) -> bool:
        """Return whether transfers of a type end before the next computation begins."""
        later = np.where(self._computes[:, None], self._start, np.inf)
        begins = np.minimum.accumulate(later[::-1], axis=0)[::-1]
        chosen = self._of(P2P)
        clear = np.mean((self._end <= begins)[chosen], axis=1)
        kind = self._op[chosen].astype(np.int64) * (self._stage[-1] + 1) + self._stage[chosen]
        counts = np.bincount(kind)
        return bool((np.bincount(kind, clear) >= _MOST * counts)[counts > 0].any())

    def may_post_in_turn(self) -> bool:
        """Return whether receives begin after a computation of the other direction, in turn."""
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
        """Return whether computations begin so late after what has ended on their stage."""
        launched = self._computes.copy()
        # the first of each stage waits for its data
        firsts = launched.nonzero()[0]
        launched[firsts[np.flatnonzero(np.diff(self._stage[firsts], prepend=-1))]] = False
        starts = self._start[launched]
        if not len(starts):
            return False
        # lanes one after another as well, so that one search does
        apart = 4 * (self._stage[-1] + 1) * self._step_ns * np.arange(starts.shape[1])
        ends = np.sort(self._end + apart, axis=0).T.ravel()
        starts = starts + apart
        gaps = starts - ends[np.searchsorted(ends, starts, side="right") - 1]
        cuts = np.flatnonzero(np.diff(self._stage[launched])) + 1
        total = sum(
            len(of_stage) * float(median(of_stage.ravel())) for of_stage in np.split(gaps, cuts)
        )
        return _MEDIANS * total >= _LEAST_SHARE * self._step_ns


# ---- Which computation of its rank an operation lies inside of ---------------------------------


# Starts and ends that are taken one after the other by the same clock.
SAME_NS: Final = 1e3
NOWHERE: Final = -1


def computes_of(layout: Layout, stage: int) -> NDArray[np.int64]:
    """Return the computations of a stage."""
    return np.flatnonzero(layout.of_types(*COMPUTE) & (layout.nodes.pp == stage))


def containing(layout: Layout, node: int) -> NDArray[np.int64]:
    """Return the computation that a node lies inside of, shape (steps, dp); `NOWHERE` else."""
    computes = computes_of(layout, int(layout.nodes.pp[node]))
    if not len(computes):
        return np.full(layout.start_ns.shape[1:], NOWHERE)
    start, end = layout.start_ns[node], layout.start_ns[node] + layout.duration_ns[node]
    begins = layout.start_ns[computes]
    inside = (begins <= start + SAME_NS) & (end <= begins + layout.duration_ns[computes] + SAME_NS)
    # a step's share of a computation that takes no time lies inside of nothing
    inside &= layout.duration_ns[computes] > layout.duration_ns[node]
    if layout.missing is not None:
        inside &= ~layout.missing[computes] & ~layout.missing[node]
    return np.where(inside.any(axis=0), computes[inside.argmax(axis=0)], NOWHERE)

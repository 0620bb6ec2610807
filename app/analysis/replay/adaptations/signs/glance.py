"""A glance at a few lanes: whether a sign can be there at all.

Most sessions show none of the signs, and a large one has millions of operations. So each sign has a
condition that it cannot be without and that some lanes tell at once; only where it holds is the
sign looked for. Without this a whole report takes 1.8 times (AR), 1.5 times (ST) and 1.15 times
(AR tiled 16 times) as long, and says the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.graph import COMPUTE, DP_COLLECTIVES, P2P
from app.analysis.replay.layout.pipeline import DIRECTIONS
from app.analysis.replay.medians import mean, median
from app.analysis.trace.model import FORWARD_COMPUTE, GC, PARAMS_ALL_GATHER

_STEPS: Final = 4
_RANKS: Final = 2
# Of a few lanes one more exception may happen by chance than of many.
_MOST: Final = 0.96
# Typical delays are means, and at most about that many medians.
_MEDIANS: Final = 2.0
# Receives of a type are posted in turn when half of them are.
_HALF: Final = 0.5
_LEAST_SHARE: Final = 0.005


class Glance:
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

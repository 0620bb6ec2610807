"""Replays of a session without some of its causes, and each cause's fair share of what they cost.

Causes hide one another: without a slow worker a heavy stage may cost more, or less. A cause's fair
share is what its removal brings on average over all orders in which the causes could be removed
(the Shapley value), so that the shares add up to what removing all of them brings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import factorial
from typing import Final

import numpy as np

from app.analysis.diagnosis.finding import Change
from app.analysis.whatif.layout import FloatArray
from app.analysis.whatif.replay import across_dp, replay
from app.analysis.whatif.session import Group
from app.analysis.whatif.variants import BATCH_ELEMENTS

NS: Final = 1e-9


# For each variant the values of a node that differ from the recording; None where they do not.
Edits = Mapping[int, Sequence[FloatArray | None]]


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """Durations of some nodes changed, shapes (steps, dp), in several variants.

    As long as no variant differs from another, one row stands for all of them.
    """

    recorded_ns: FloatArray
    edits_ns: Edits
    count: int
    steps: slice

    def end(self, node: int, begin: FloatArray) -> FloatArray:
        """Add the changed or the recorded duration."""
        recorded = self.recorded_ns[node, self.steps]
        edits = self.edits_ns.get(node)
        if edits is None:
            return begin + recorded
        end = np.empty((1, self.count, *recorded.shape))
        np.add(begin, recorded, out=end)
        _add_rows(begin, edits, self.steps, end)
        return end


@dataclass(frozen=True, slots=True, eq=False)
class LateEdited(Edited):
    """The same, and some nodes are launched late."""

    late_ns: Edits

    def launch(self, node: int, ready: FloatArray, *, shared: bool) -> FloatArray:
        """Launch late where the node is."""
        del shared
        late = self.late_ns.get(node)
        if late is None:
            return ready
        launch = np.empty((1, self.count, *self.recorded_ns[node, self.steps].shape))
        launch[:] = ready
        _add_rows(ready, late, self.steps, launch)
        return launch


def _add_rows(
    before: FloatArray, rows: Sequence[FloatArray | None], steps: slice, after: FloatArray
) -> None:
    """Write the rows that have values of their own."""
    shared = before.shape[1] == 1
    for index, row in enumerate(rows):
        if row is not None:
            np.add(before[0, 0 if shared else index], row[steps], out=after[0, index])


@dataclass(frozen=True, slots=True, eq=False)
class Counterfactuals:
    """Replays a group of steps without some causes.

    Parameters
    ----------
    group : Group
    changes : sequence of Change
        What the session would be without each cause.
    late_ns : mapping
        Launch delays that have a cause, by node; replays have them unless the cause is removed.
    """

    group: Group
    changes: Sequence[Change]
    late_ns: Mapping[int, FloatArray]
    _times: dict[frozenset[int], FloatArray] = field(default_factory=dict)

    def without(self, causes: frozenset[int]) -> FloatArray:
        """Return the time of each step without the causes of these numbers, seconds."""
        self.replay([causes])
        return self._times[causes]

    def replay(self, sets: Sequence[frozenset[int]]) -> None:
        """Replay the session without each of the sets, as many at once as fit the cache."""
        wanted = [causes for causes in dict.fromkeys(sets) if causes not in self._times]
        lanes = self.group.layout.duration_ns[0].size
        size = max(1, BATCH_ELEMENTS // lanes)
        for first in range(0, len(wanted), size):
            batch = wanted[first : first + size]
            for causes, times in zip(batch, self._replay(batch), strict=True):
                self._times[causes] = times

    def gain(self, causes: frozenset[int]) -> float:
        """Return what a mean step would be shorter without the causes, seconds."""
        return float(self.without(frozenset()).mean() - self.without(causes).mean())

    def shares(self, causes: Sequence[int]) -> FloatArray:
        """Return each cause's fair share of every step, shape (causes, steps), seconds."""
        count = len(causes)
        self.replay([frozenset(c) for size in range(count + 1) for c in combinations(causes, size)])
        shares = np.zeros((count, len(self.group.layout.steps)))
        for position, cause in enumerate(causes):
            others = [other for other in causes if other != cause]
            for size in range(count):
                weight = factorial(size) * factorial(count - size - 1) / factorial(count)
                for chosen in combinations(others, size):
                    before = frozenset(chosen)
                    saved = self.without(before) - self.without(before | {cause})
                    shares[position] += weight * saved
        return shares

    def _replay(self, sets: Sequence[frozenset[int]]) -> FloatArray:
        """Return the step times without each of the sets, shape (sets, steps), seconds."""
        group = self.group
        edits = self._edits(sets)
        late = {node: [self._late(node, causes) for causes in sets] for node in self.late_ns}
        count = len(group.layout.steps)
        size = max(1, BATCH_ELEMENTS // (group.layout.dp * len(sets)))
        times = np.empty((len(sets), count))
        recorded = group.durations.recorded_ns
        for first in range(0, count, size):
            steps = slice(first, min(first + size, count))
            rows = (
                LateEdited(recorded, edits, len(sets), steps, late)
                if late
                else Edited(recorded, edits, len(sets), steps)
            )
            times[:, steps] = replay(group.simulator.program, rows, across_dp).max(axis=-1)[0]
        return times * NS

    def _edits(self, sets: Sequence[frozenset[int]]) -> Edits:
        """Return the changed durations; sets that change a node in the same way share them."""
        changed: dict[int, set[int]] = {}
        for cause in frozenset().union(*sets):
            change = self.changes[cause]
            for node in (*change.less_ns, *change.times, *change.transfers_ns):
                changed.setdefault(node, set()).add(cause)
        edits = {}
        for node, causes in changed.items():
            alike: dict[frozenset[int], FloatArray | None] = {frozenset(): None}
            for chosen in sets:
                if (mine := chosen & causes) not in alike:
                    alike[mine] = self._duration(node, mine)
            edits[node] = [alike[chosen & causes] for chosen in sets]
        return edits

    def _duration(self, node: int, causes: frozenset[int]) -> FloatArray:
        """Return a node's duration without some causes, shape (steps, dp), ns."""
        duration = self.group.durations.recorded_ns[node]
        changes = [self.changes[cause] for cause in sorted(causes)]
        for change in changes:
            if node in change.less_ns:
                duration = np.maximum(duration - change.less_ns[node], 0.0)
        for change in changes:
            if node in change.times:
                duration = duration * change.times[node]
            if node in change.transfers_ns:
                duration = np.minimum(duration, change.transfers_ns[node])
        return np.asarray(duration)

    def _late(self, node: int, causes: frozenset[int]) -> FloatArray:
        """Return a node's launch delay without some causes, shape (steps, dp), ns."""
        late = self.late_ns[node]
        for cause in sorted(causes):
            on_time = self.changes[cause].on_time.get(node)
            if on_time is not None:
                late = np.where(on_time, 0.0, late)
        return np.asarray(late)

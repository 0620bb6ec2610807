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


@dataclass(frozen=True, slots=True, eq=False)
class LateEdited:
    """Durations and launch delays of some nodes changed, shapes (steps, dp), in several variants.

    As long as no variant differs from another, one row stands for all of them.
    """

    recorded_ns: FloatArray
    edited_ns: Sequence[Mapping[int, FloatArray]]
    late_ns: Sequence[Mapping[int, FloatArray]]
    steps: slice

    def launch(self, node: int, ready: FloatArray, *, shared: bool) -> FloatArray:
        """Launch late where the node is."""
        del shared
        return self._plus(ready, [late.get(node) for late in self.late_ns], None)

    def end(self, node: int, begin: FloatArray) -> FloatArray:
        """Add the changed or the recorded duration."""
        edited = [edited.get(node) for edited in self.edited_ns]
        return self._plus(begin, edited, self.recorded_ns[node])

    def _plus(
        self, times: FloatArray, added: Sequence[FloatArray | None], otherwise: FloatArray | None
    ) -> FloatArray:
        """Add to each variant's row what is given for it, or else the same to all."""
        first = added[0]
        if all(row is first for row in added):
            row = otherwise if first is None else first
            return times if row is None else times + row[self.steps]
        rows = np.empty((1, len(added), *self.recorded_ns[0, self.steps].shape))
        for index, row in enumerate(added):
            before = times[0, index if times.shape[1] > 1 else 0]
            more = otherwise if row is None else row
            rows[0, index] = before if more is None else before + more[self.steps]
        return rows


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
            changes = [[self.changes[cause] for cause in sorted(causes)] for causes in batch]
            for causes, times in zip(batch, self._replay(changes), strict=True):
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

    def _replay(self, variants: Sequence[Sequence[Change]]) -> FloatArray:
        """Return the step times of each variant, shape (variants, steps), seconds."""
        group = self.group
        edited = [self._edited(changes) for changes in variants]
        late = [self._late(changes) for changes in variants]
        count = len(group.layout.steps)
        size = max(1, BATCH_ELEMENTS // (group.layout.dp * len(variants)))
        times = np.empty((len(variants), count))
        for first in range(0, count, size):
            steps = slice(first, min(first + size, count))
            rows = LateEdited(group.durations.recorded_ns, edited, late, steps)
            times[:, steps] = replay(group.simulator.program, rows, across_dp).max(axis=-1)[0]
        return times * NS

    def _edited(self, changes: Sequence[Change]) -> dict[int, FloatArray]:
        recorded = self.group.durations.recorded_ns
        edited: dict[int, FloatArray] = {}
        for change in changes:
            for node, less in change.less_ns.items():
                edited[node] = np.maximum(edited.get(node, recorded[node]) - less, 0.0)
        for change in changes:
            for node, factor in change.times.items():
                edited[node] = edited.get(node, recorded[node]) * factor
            for node, transfer in change.transfers_ns.items():
                edited[node] = np.minimum(edited.get(node, recorded[node]), transfer)
        return edited

    def _late(self, changes: Sequence[Change]) -> dict[int, FloatArray]:
        late = dict(self.late_ns)
        for change in changes:
            for node, on_time in change.on_time.items():
                late[node] = np.where(on_time, 0.0, late[node])
        return late

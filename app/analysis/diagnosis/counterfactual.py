"""Replays of a session without some of its causes, and each cause's share of the loss.

Causes hide one another, so a share is the Shapley value: the mean gain of removing the cause over
all orders of removal; shares add up to the gain of removing all. Ranks that share the processors
of one machine also lose time by contention, which has no cause and is not counted as lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, groupby
from math import factorial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.finding import Change
from app.analysis.diagnosis.observation import Observation
from app.analysis.quantities import NS, FloatArray
from app.analysis.replay.confidence import FEWEST_DRAWN
from app.analysis.replay.engine.executors import executor_of
from app.analysis.replay.engine.replay import IDEAL, ON_TIME, RECORDED, CodeArray
from app.analysis.replay.engine.simulator import Durations, Simulator
from app.analysis.replay.layout.dependency_graph import LOCAL
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.robust_statistics import mean
from app.analysis.replay.session import ShapeGroup

# Changes of several nodes by several causes. Each entry is one cause: replaced durations and lost
# times, both by node; a factor and a longest transfer for all nodes.
_Changes = tuple[
    tuple[Sequence[FloatArray], Sequence[FloatArray], FloatArray | None, FloatArray | None], ...
]
# Change of a node by a cause: replaced duration, lost time, factor, longest transfer.
_Change = tuple[FloatArray | None, FloatArray | None, FloatArray | None, FloatArray | None]


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """The launch delays of a cause.

    Causes of different phases share no time; causes of one phase may.
    """

    phase: int
    late_ns: Mapping[int, FloatArray]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Nodes that are replayed without the same causes; each node has its own row."""

    nodes: list[int]
    causes: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Counterfactuals:
    """Replays of a group of steps without some causes; causes are identified by number."""

    group: ShapeGroup
    changes: Sequence[Change]  # those that remove each cause
    # Launch delays of each cause, by node; a replay contains these delays unless the cause is
    # removed.
    late_ns: Mapping[int, FloatArray]
    # launch delays without a known cause, which all replays contain, by node
    unexplained_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    # (steps,): step times with all causes, s, if already replayed
    now_s: FloatArray | None = None
    # launch delays of each cause, to compute the delay of a node that remains when other causes are
    # removed
    claims: Sequence[Claim] = ()
    # caches, by removed causes; a copy with other delays begins with empty caches
    _times: dict[frozenset[int], FloatArray] = field(init=False, default_factory=dict)
    _mean_s: dict[frozenset[int], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.now_s is not None:
            self._times[frozenset()] = self.now_s

    def with_delays(self, unexplained_ns: Mapping[int, FloatArray]) -> Counterfactuals:
        """Return replays that also contain these launch delays, which have no known cause."""
        return replace(self, unexplained_ns=unexplained_ns, now_s=None)

    def without(self, causes: frozenset[int]) -> FloatArray:
        """Return the time of each step without some causes, shape (steps,), seconds."""
        self.replay([causes])
        return self._times[causes]

    def replay(self, sets: Sequence[frozenset[int]]) -> None:
        """Replay the session without each set of causes, in one call; skip sets that are cached."""
        wanted = [causes for causes in dict.fromkeys(sets) if causes not in self._times]
        if wanted:
            self._times.update(zip(wanted, self._replay(wanted), strict=True))

    def gain(self, causes: frozenset[int]) -> float:
        """Return the time that a mean step saves without the causes, seconds."""
        return self.mean_s(frozenset()) - self.mean_s(causes)

    def mean_s(self, causes: frozenset[int]) -> float:
        """Return the time of a mean step without the causes, seconds."""
        mean_s = self._mean_s.get(causes)
        if mean_s is None:
            mean_s = self._mean_s[causes] = float(mean(self.without(causes)))
        return mean_s

    def ideal(self) -> FloatArray:
        """Return each step's time with ideal durations and the unexplained delays, seconds."""
        nodes = np.arange(len(self.group.layout.nodes))
        takes = np.full((1, len(nodes)), IDEAL, dtype=np.int32)
        late = np.full((1, len(nodes)), ON_TIME, dtype=np.int32)
        late[0, list(self.unexplained_ns)] = np.arange(len(self.unexplained_ns))

        def nothing(steps: slice) -> FloatArray:
            return np.empty((0, *self.group.durations.recorded_ns[0, steps].shape))

        def delays(steps: slice) -> FloatArray:
            return np.stack([_of(steps, delay) for delay in self.unexplained_ns.values()])

        times = self.group.simulator.coded_step_times(
            takes,
            nothing,
            late if self.unexplained_ns else None,
            delays if self.unexplained_ns else None,
        )
        return np.asarray(times[0] * NS)

    def shares(self, causes: Sequence[int]) -> FloatArray:
        """Return each cause's Shapley value in each step, shape (causes, steps), seconds."""
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
        """Return the step times without each set of causes, shape (sets, steps), seconds."""
        changed_by: dict[int, set[int]] = {}
        for cause in frozenset().union(*sets):
            change = self.changes[cause]
            for node in (
                *change.instead_ns,
                *change.less_ns,
                *change.times,
                *change.transfers_ns,
            ):
                changed_by.setdefault(node, set()).add(cause)
        takes, changed = self._coded(sets, changed_by, RECORDED)
        # A node may remain late when one of its causes is removed.
        late_by = {
            node: {cause for cause, change in enumerate(self.changes) if node in change.on_time}
            for node in (*self.late_ns, *self.unexplained_ns)
        }
        late, delayed = self._coded(sets, late_by, ON_TIME)

        recorded = self.group.durations.recorded_ns
        nodes = [node for rows in changed for node in rows.nodes]
        changes_of_rows = list(self._changes_of(changed))
        delayed_rows = [(node, rows.causes) for rows in delayed for node in rows.nodes]

        def values(steps: slice) -> FloatArray:
            durations = recorded[nodes, steps]
            for alike, changes in changes_of_rows:
                _change(durations[alike], changes, steps)
            return durations

        def delays(steps: slice) -> FloatArray:
            late = np.empty((len(delayed_rows), *recorded[0, steps].shape))
            for row, (node, causes) in zip(late, delayed_rows, strict=True):
                row[:] = self._late(node, causes, steps)
            return late

        times = self.group.simulator.coded_step_times(
            takes, values, late if delayed else None, delays
        )
        return times * NS

    def _coded(
        self, sets: Sequence[frozenset[int]], causes_of: Mapping[int, set[int]], typical: int
    ) -> tuple[CodeArray, list[_Rows]]:
        """Return a row for each pair of a node and the set of removed causes that affect the node.

        Returns
        -------
        codes : int32 array, shape (sets, nodes)
            The row of a node in each set; `typical` where no removed cause affects it.
        rows : list of _Rows
            In the order of the codes.
        """
        codes = np.full((len(sets), len(self.group.layout.nodes)), typical, dtype=np.int32)
        rows: list[_Rows] = []
        end = 0
        # Nodes are grouped by their causes, as thousands of nodes share few sets of causes.
        alike: dict[frozenset[int], list[int]] = {}
        for node, causes in causes_of.items():
            alike.setdefault(frozenset(causes), []).append(node)
        for causing, nodes in alike.items():
            begin: dict[frozenset[int], int] = {}
            for number, chosen in enumerate(sets):
                mine = chosen & causing
                if not mine and typical != ON_TIME:
                    continue
                if mine not in begin:
                    begin[mine] = end
                    end += len(nodes)
                    rows.append(_Rows(nodes, mine))
                codes[number, nodes] = np.arange(begin[mine], begin[mine] + len(nodes))
        return codes, rows

    def _changes_of(self, changed: Sequence[_Rows]) -> Iterator[tuple[slice, _Changes]]:
        """Yield runs of consecutive rows that share factors and transfers, with their changes."""
        end = 0
        for rows in changed:
            removed = [self.changes[cause] for cause in sorted(rows.causes)]
            own = [
                tuple(
                    (
                        change.instead_ns.get(node),
                        change.less_ns.get(node),
                        change.times.get(node),
                        change.transfers_ns.get(node),
                    )
                    for change in removed
                )
                for node in rows.nodes
            ]
            for _, group in groupby(own, key=_shared_arrays):
                alike = list(group)
                begin, end = end, end + len(alike)
                # factor and longest transfer are equal for all rows of a group
                yield (
                    slice(begin, end),
                    tuple(
                        (
                            [instead for instead, _, _, _ in rows if instead is not None],
                            [less for _, less, _, _ in rows if less is not None],
                            rows[0][2],
                            rows[0][3],
                        )
                        for rows in zip(*alike, strict=True)
                    ),
                )

    def _late(self, node: int, causes: frozenset[int], steps: slice) -> FloatArray:
        """Return a node's launch delay without some causes, shape (steps, dp), ns."""
        late = _of(steps, self.late_ns[node]) if node in self.late_ns else np.zeros((1, 1))
        for cause in sorted(causes):
            on_time = self.changes[cause].on_time.get(node)
            if on_time is not None:
                others = [
                    _of(steps, claim.late_ns[node])
                    for number, claim in enumerate(self.claims)
                    if number not in causes
                    and claim.phase != self.claims[cause].phase
                    and node in claim.late_ns
                ]
                left = np.minimum(late, np.add.reduce(others) if others else 0.0)
                late = np.where(_of(steps, on_time), left, late)
        if node in self.unexplained_ns:
            late = late + _of(steps, self.unexplained_ns[node])
        return np.asarray(late)


def _shared_arrays(changes: tuple[_Change, ...]) -> tuple[tuple[bool, bool, int, int], ...]:
    """Return a key that is equal for rows to be changed in one operation, as they share arrays."""
    return tuple(
        (instead is not None, less is not None, id(times), id(transfers))
        for instead, less, times, transfers in changes
    )


def _change(durations: FloatArray, changes: _Changes, steps: slice) -> None:
    """Apply changes to durations, shape (nodes, steps, dp), in place."""
    for instead, _, _, _ in changes:
        for row, own in zip(durations, instead, strict=False):
            row[:] = _of(steps, own)
    for _, less, _, _ in changes:
        if less:
            lost = np.empty_like(durations)
            for row, own in zip(lost, less, strict=True):
                row[:] = _of(steps, own)
            durations -= lost
            np.maximum(durations, 0.0, out=durations)
    for _, _, times, transfers in changes:
        if times is not None:
            durations *= _of(steps, times)
        if transfers is not None:
            np.minimum(durations, _of(steps, transfers), out=durations)


def _of(steps: slice, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values of the selected steps; a single row of values holds for all steps."""
    return values[steps] if values.ndim > 1 and len(values) > 1 else values


# Ranks on the processors of one machine (a laptop, any trial on CPUs) take processors from one
# another: any operation on any rank sometimes takes longer, and each collective waits for its
# latest rank. No worker is at fault, so the reference of the slowdown contains this loss.


_FEWEST_PASSES: Final = 3  # fewer passes of a worker through a chunk have no typical time


def contention_loss_s(observation: Observation, metrics: Metrics) -> float:
    """Return a mean step's loss by contention, seconds; 0 if ranks share no processors.

    The loss is measured by a replay in which each operation takes its median time on its rank; a
    rank's lasting slowness is not part of the loss. Without a pipeline, differences among
    collectives of one type, which transfer different amounts of data, are no loss either.
    """
    if not observation.shares_processors:
        return 0.0
    own = observation.recorded_ns
    typical_s = _replayed_s(observation, np.median(own, axis=1, keepdims=True))
    chance_s = max(metrics.simulated_step_s - typical_s, 0.0)
    if observation.layout.pp > 1:
        return chance_s
    alike_s = _replayed_s(observation, np.median(own, axis=(1, 2), keepdims=True))
    return chance_s + max(alike_s - metrics.ideal_step_s, 0.0)


def single_operation_loss_s(observation: Observation, metrics: Metrics) -> float:
    """Return a mean step's loss by single long operations, seconds, for a session of few steps.

    Few steps do not show whether an operation takes long once or repeatedly. The loss is measured
    by a replay in which computations take the median of the worker's passes through the same chunk,
    if there are enough passes, and transfers take at most the ideal time. 0 if there are enough
    steps for an interval.
    """
    if len(observation.layout.steps) >= FEWEST_DRAWN:
        return 0.0
    typical_ns = observation.recorded_ns.copy()
    computing = observation.layout.of_types(*sorted(LOCAL & observation.op_types))
    ideal_ns = observation.group.durations.ideal_ns[~computing, None, None]
    typical_ns[~computing] = np.minimum(typical_ns[~computing], ideal_ns)
    for passes in observation.passes.values():
        for stage, nodes in enumerate(passes.nodes):
            for chunk in np.unique(passes.chunk).tolist():
                mine = nodes[passes.chunk == chunk]
                if len(mine) * len(observation.layout.steps) >= _FEWEST_PASSES:
                    typical_ns[mine] = np.minimum(typical_ns[mine], passes.own_ns[stage, chunk])
    return max(metrics.simulated_step_s - _replayed_s(observation, typical_ns), 0.0)


def _replayed_s(observation: Observation, typical_ns: FloatArray) -> float:
    """Return the mean step time, s, with other durations, ns, (nodes, steps or 1, dp or 1)."""
    group = observation.group
    # Computations are cut at the same shares of their time in all steps and on all ranks.
    even = {
        node: np.broadcast_to(shares.mean(axis=(1, 2), keepdims=True), shares.shape)
        for node, shares in group.layout.shares.items()
    }
    layout = replace(group.layout, shares=even)
    durations = np.broadcast_to(typical_ns, observation.recorded_ns.shape)
    executor = executor_of(layout, group.graph, durations.min(axis=(1, 2)), durations.size)
    simulator = Simulator(layout, Durations(durations, group.durations.ideal_ns), executor)
    return float(np.mean(simulator.step_times([simulator.keep()])[0])) * NS

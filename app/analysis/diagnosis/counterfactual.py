"""Replays of a session without some of its causes, and the share of each cause in the loss.

Causes hide one another, so a share is the Shapley value: the mean gain of removing the cause over
all orders of removal; shares add up to the gain of removing all. Ranks that share the processors
of one machine lose time by contention: this loss stays in the job that others are compared with.
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
from app.analysis.replay.confidence import FEWEST_DRAWN
from app.analysis.replay.engine.executors import executor_of
from app.analysis.replay.engine.replay import IDEAL, ON_TIME, RECORDED, CodeArray
from app.analysis.replay.engine.simulator import Durations, Simulator
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import LOCAL
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.robust_statistics import mean
from app.analysis.replay.session import ShapeGroup

# ---- Replays of a session without some of its causes, and each cause's fair share of what they cos
#
# Causes hide one another: without a slow worker a heavy stage may cost more, or less. A cause's
# fair share is what its removal brings on average over all orders in which the causes could be
# removed (the Shapley value), so that the shares add up to what removing all of them brings.


NS: Final = 1e-9

# Of some nodes by each of some causes: durations in place of the recorded ones and time that is
# lost, of each node; factor, transfer duration.
_Changes = tuple[
    tuple[Sequence[FloatArray], Sequence[FloatArray], FloatArray | None, FloatArray | None], ...
]
# Of a node by a cause.
_Change = tuple[FloatArray | None, FloatArray | None, FloatArray | None, FloatArray | None]


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """What a cause makes of launch delays.

    Causes that are looked for in different phases share no time; those of one phase may.
    """

    phase: int
    late_ns: Mapping[int, FloatArray]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Nodes, each with a row of its own, without the same causes."""

    nodes: list[int]
    causes: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Counterfactuals:
    """Replays a group of steps without some causes."""

    group: ShapeGroup
    changes: Sequence[Change]  # what the session would be without each cause
    # Launch delays that have a cause, by node; replays have them unless the cause is removed.
    late_ns: Mapping[int, FloatArray]
    # Launch delays that every replay has.
    unexplained_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    # (steps,): the time of each step with all causes, where that has been replayed already
    now_s: FloatArray | None = None
    # By cause: what of a node's delay is its own, where another cause has the rest.
    claims: Sequence[Claim] = ()
    # What is known already; a copy with other delays begins anew.
    _times: dict[frozenset[int], FloatArray] = field(init=False, default_factory=dict)
    _mean_s: dict[frozenset[int], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.now_s is not None:
            self._times[frozenset()] = self.now_s

    def with_delays(self, unexplained_ns: Mapping[int, FloatArray]) -> Counterfactuals:
        """Return replays that have these launch delays as well; nothing of them is known yet."""
        return replace(self, unexplained_ns=unexplained_ns, now_s=None)

    def without(self, causes: frozenset[int]) -> FloatArray:
        """Return the time of each step without the causes of these numbers, seconds."""
        self.replay([causes])
        return self._times[causes]

    def replay(self, sets: Sequence[frozenset[int]]) -> None:
        """Replay the session without each of the sets, in one go."""
        wanted = [causes for causes in dict.fromkeys(sets) if causes not in self._times]
        if wanted:
            self._times.update(zip(wanted, self._replay(wanted), strict=True))

    def gain(self, causes: frozenset[int]) -> float:
        """Return what a mean step would be shorter without the causes, seconds."""
        return self.mean_s(frozenset()) - self.mean_s(causes)

    def mean_s(self, causes: frozenset[int]) -> float:
        """Return the time of a mean step without the causes, seconds."""
        known = self._mean_s.get(causes)
        if known is None:
            known = self._mean_s[causes] = float(mean(self.without(causes)))
        return known

    def ideal(self) -> FloatArray:
        """Return each step's time with all durations ideal, late as launches stay, seconds."""
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
        takes, changed = self._coded(sets, self._changed_by(sets), RECORDED)
        late, delayed = self._coded(sets, self._late_by(), ON_TIME)

        recorded = self.group.durations.recorded_ns
        nodes = [node for rows in changed for node in rows.nodes]
        made = list(self._made(changed))
        delayed_rows = [(node, rows.causes) for rows in delayed for node in rows.nodes]

        def values(steps: slice) -> FloatArray:
            durations = recorded[nodes, steps]
            for alike, changes in made:
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

    def _changed_by(self, sets: Sequence[frozenset[int]]) -> dict[int, set[int]]:
        """Return which causes change the duration of which node."""
        changed: dict[int, set[int]] = {}
        for cause in frozenset().union(*sets):
            change = self.changes[cause]
            for node in (
                *change.instead_ns,
                *change.less_ns,
                *change.times,
                *change.transfers_ns,
            ):
                changed.setdefault(node, set()).add(cause)
        return changed

    def _late_by(self) -> dict[int, set[int]]:
        """Return which causes make which node late; without any of them it is late all the same."""
        return {
            node: {cause for cause, change in enumerate(self.changes) if node in change.on_time}
            for node in (*self.late_ns, *self.unexplained_ns)
        }

    def _coded(
        self, sets: Sequence[frozenset[int]], causes_of: Mapping[int, set[int]], typical: int
    ) -> tuple[CodeArray, list[_Rows]]:
        """Give every (node, causes removed) that differs a row; sets that are alike share it.

        Returns
        -------
        codes : int32 array, shape (sets, nodes)
            The row, or `typical` where a node is as typical in a set.
        rows : list of _Rows
            In the order of the codes.
        """
        codes = np.full((len(sets), len(self.group.layout.nodes)), typical, dtype=np.int32)
        rows: list[_Rows] = []
        end = 0
        # Thousands of nodes have few sets of causes between them.
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

    def _made(self, changed: Sequence[_Rows]) -> Iterator[tuple[slice, _Changes]]:
        """Yield neighboring rows whose durations change alike, and by what."""
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
            for _, group in groupby(own, key=_kind):
                alike = list(group)
                begin, end = end, end + len(alike)
                yield slice(begin, end), tuple(map(_together, *alike))

    def _late(self, node: int, causes: frozenset[int], steps: slice) -> FloatArray:
        """Return a node's launch delay without some causes, shape (steps, dp), ns."""
        late = _of(steps, self.late_ns[node]) if node in self.late_ns else np.zeros((1, 1))
        for cause in sorted(causes):
            on_time = self.changes[cause].on_time.get(node)
            if on_time is not None:
                left = np.minimum(late, self._left(node, cause, causes, steps))
                late = np.where(_of(steps, on_time), left, late)
        if node in self.unexplained_ns:
            late = late + _of(steps, self.unexplained_ns[node])
        return np.asarray(late)

    def _left(
        self, node: int, cause: int, removed: frozenset[int], steps: slice
    ) -> FloatArray | float:
        """Return what other causes, which are not removed, make of a node's delay."""
        others = [
            _of(steps, claim.late_ns[node])
            for number, claim in enumerate(self.claims)
            if number not in removed
            and claim.phase != self.claims[cause].phase
            and node in claim.late_ns
        ]
        return np.add.reduce(others) if others else 0.0


def _kind(changes: tuple[_Change, ...]) -> tuple[tuple[bool, bool, int, int], ...]:
    """Return what tells rows apart that are not changed together: workers' nodes share factors."""
    return tuple(
        (instead is not None, less is not None, id(times), id(transfers))
        for instead, less, times, transfers in changes
    )


def _together(
    *rows: _Change,
) -> tuple[Sequence[FloatArray], Sequence[FloatArray], FloatArray | None, FloatArray | None]:
    """Return what a cause changes of rows of a kind."""
    _, _, times, transfers = rows[0]
    instead = [of_node for of_node, _, _, _ in rows if of_node is not None]
    return instead, [less for _, less, _, _ in rows if less is not None], times, transfers


def _change(durations: FloatArray, changes: _Changes, steps: slice) -> None:
    """Make durations, shape (nodes, steps, dp), what they are with some changes."""
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
    """Return values of some steps; of those that broadcast over steps there is only one row."""
    return values[steps] if values.ndim > 1 and len(values) > 1 else values


# ---- What ranks lose by chance that share the processors of one machine ------------------------
# On a laptop, and in every trial on CPUs, ranks take processors from one another. Each of their
# operations takes longer now and then, on whichever rank, and each collective waits for the latest.
# No worker is at fault, and against a job that ran alone on each processor every such job is slow.
# So the job that one is held against has that chance in it. Ranks with a device of their own, or a
# host, lose nothing so: there it is told, whatever its cause.


# Fewer passes of a worker through a chunk have no typical time.
_FEWEST_PASSES: Final = 3


def contention_loss_s(observation: Observation, metrics: Metrics) -> float:
    """Return what a mean step loses by chance, seconds; 0 where ranks share no processors.

    That is what steps would be shorter if each operation took on each rank what it typically takes
    there. What a rank lastingly takes longer is no chance. Without a pipeline, nothing else is a
    loss: that collectives of one type differ, since they carry more or less, is not.
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
    """Return what a mean step loses by single operations, seconds, of steps without a cause.

    Of few steps nothing tells what takes long once from what does so now and then. Computations
    take on each worker what its passes through the same chunk typically take, where there are
    enough of them, and transfers no longer than typical ones. 0 of steps enough for an interval.
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
    """Return the mean step if operations take that; shape (nodes, steps or 1, dp or 1)."""
    group = observation.group
    layout = _with_even_shares(group.layout)
    durations = np.broadcast_to(typical_ns, observation.recorded_ns.shape)
    executor = executor_of(layout, group.graph, durations.min(axis=(1, 2)), durations.size)
    simulator = Simulator(layout, Durations(durations, group.durations.ideal_ns), executor)
    return float(np.mean(simulator.step_times([simulator.keep()])[0])) * NS


def _with_even_shares(layout: Layout) -> Layout:
    """Return a layout whose computations are cut alike in all steps and on all ranks."""
    even = {
        node: np.broadcast_to(shares.mean(axis=(1, 2), keepdims=True), shares.shape)
        for node, shares in layout.shares.items()
    }
    return replace(layout, shares=even)

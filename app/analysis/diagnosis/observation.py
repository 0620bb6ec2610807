"""Data of a session for the finders of causes: microbatch computations, delays, healthy times.

A pass is a computation of one microbatch in one direction. A worker at fault is replayed with the
median of its peers, which differ among themselves; if all hosts are at fault, no healthy time is
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import hypot, pi, sqrt
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.finding import Uncertainty
from app.analysis.diagnosis.locations import Hosts, Worker
from app.analysis.memoize import Memoized
from app.analysis.quantities import FloatArray, IntArray, SingleArray
from app.analysis.replay.adaptations.candidate import opens_window
from app.analysis.replay.layout.dense import (
    Layout,
)
from app.analysis.replay.layout.dependency_graph import P2P
from app.analysis.replay.robust_statistics import median, quantile
from app.analysis.replay.session import ShapeGroup, begins_of, filled_ns, follows_of, with_lags
from app.analysis.trace import model as ops
from app.analysis.trace.model import ABSENT, Trace
from app.analysis.trace.rank_metadata import recorder_of

Real = TypeVar("Real", np.float32, np.float64)

_SAMPLE: Final = 60_000
_FEWEST: Final = 4  # values that have a scatter
_FEW: Final = 4  # rows that are sorted by comparisons
# Longest time for which a scheduler takes a processor from a rank: a few time slices.
_TAKEN_NS: Final = 20e6

COMPUTATIONS: Final = (ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE)


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """Computations of one type; the same index is the same microbatch and chunk on every stage."""

    nodes: IntArray  # (pp, passes)
    chunk: IntArray  # (passes,): 0-based number of the model chunk
    # (pp, passes, steps, dp), ns: single precision is finer than any clock, and saves memory
    times_ns: SingleArray
    own_ns: FloatArray  # (pp, chunks, dp): median pass of each worker through each chunk

    def relative(self) -> SingleArray:
        """Return times ÷ the worker's median time for the same chunk."""
        own = self.own_ns.astype(np.float32)
        return self.times_ns / own[:, self.chunk][:, :, None, :]


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """Time that the causes already found explain, by node, shape (steps, dp), ns."""

    computing_ns: Mapping[int, FloatArray] = field(default_factory=dict)  # of computations
    late_ns: Mapping[int, FloatArray] = field(default_factory=dict)  # of late launches


def summed(parts: Iterable[Mapping[int, FloatArray]]) -> dict[int, FloatArray]:
    """Return the sum of times by node."""
    total: dict[int, FloatArray] = {}
    for part in parts:
        for node, time_ns in part.items():
            total[node] = total[node] + time_ns if node in total else time_ns
    return total


@dataclass(frozen=True, eq=False)
class Observation(Memoized):
    """The main group of steps of a session, as the finders of causes use it."""

    trace: Trace
    group: ShapeGroup
    explained: Explained = field(default_factory=Explained)
    _memo: dict[Callable[[Observation], Any], Any] = field(init=False, default_factory=dict)

    @property
    def layout(self) -> Layout:
        """Return the layout of the steps."""
        return self.group.layout

    @property
    def recorded_ns(self) -> FloatArray:
        """Return durations without waiting, shape (nodes, steps, dp), ns.

        If DP ranks run different numbers of microbatches, the missing microbatches are filled in.
        """
        return filled_ns(self.group)

    @cached_property
    def after(self) -> dict[int, tuple[int, ...]]:
        """Return the nodes that each node waits for."""
        return self.group.memoize(follows_of)

    @cached_property
    def hosts(self) -> Hosts:
        """Return the hosts of workers and ranks."""
        meta = self.trace.meta
        of_worker = meta.sizes.tp * meta.sizes.cp
        guessed = meta.whereabouts.guessed_hosts
        return Hosts(meta.hosts, self.layout.ranks.tolist(), meta.gpus, of_worker, guessed)

    @cached_property
    def shares_processors(self) -> bool:
        """Return whether the ranks share the processors of one host."""
        meta = self.trace.meta
        return recorder_of(meta.extra).on_host and meta.sizes.world > 1 and meta.on_one_host

    @cached_property
    def op_types(self) -> frozenset[str]:
        """Return the types of operations that are replayed."""
        return frozenset(self.layout.op_names[code] for code in np.unique(self.layout.nodes.op))

    def delay_ns(self, node: int, *, regular: bool = False) -> FloatArray:
        """Return a node's launch delay after the last of its inputs ends, shape (steps, dp), ns.

        Explained delays are subtracted; regular delays, also between steps, count only if
        `regular`.
        """
        start, duration = self.layout.start_ns, self.layout.duration_ns
        graph = self.group.graph
        delay = start[node].copy()
        if self.after[node]:
            ends = [
                start[other] + duration[other] + (0.0 if regular else graph.lag_ns(node, other))
                for other in self.after[node]
            ]
            delay -= reduce(np.maximum, ends)
        elif graph.chained:
            delay -= begins_of(self.group, int(self.layout.nodes.pp[node]))
            if regular:
                delay[~opens_window(self.layout)] += graph.step_gap_ns
        if node in self.explained.late_ns:
            delay -= self.explained.late_ns[node]
        late: FloatArray = np.maximum(delay, 0.0)
        if self.shares_processors:
            # A short delay may arise because another rank had the processor, so only the part that
            # recurs in each step counts.
            short = late < _TAKEN_NS
            late = np.where(short, np.minimum(late, np.median(late, axis=0)), late)
        return late

    @cached_property
    def _counts(self) -> IntArray:
        """Return the number of computations by type and stage, shape (recorded types, pp)."""
        nodes, layout = self.layout.nodes, self.layout
        counts = np.array(
            [
                np.bincount(nodes.pp[nodes.op == code], minlength=layout.pp)
                for code in layout.codes(*COMPUTATIONS)
            ]
        )
        # Forward and backward have a row even if they are not recorded.
        return counts[counts.any(axis=1) | (np.arange(len(counts)) < 2)]  # noqa: PLR2004

    @cached_property
    def comparable(self) -> bool:
        """Return whether all stages have equally many computations, forward and backward.

        Otherwise computations cannot be assigned to microbatches.
        """
        return bool(self._counts.all() and (self._counts == self._counts[0, 0]).all())

    @cached_property
    def comparable_within_stages(self) -> bool:
        """Return whether each stage has as many forwards as backwards.

        Then the workers of a stage can be compared, even if other stages have other model chunks.
        """
        return bool(self._counts.all() and (self._counts == self._counts[0]).all())

    @cached_property
    def passes(self) -> dict[str, Passes]:
        """Return the computations by type; empty if stages are not `comparable`."""
        return self._by_type(range(self.layout.pp)) if self.comparable else {}

    def passes_of(self, stage: int) -> dict[str, Passes]:
        """Return the computations of a stage by type, as if the job had only this stage."""
        return self._by_type([stage])

    def computations(self, name: str, stage: int) -> list[int]:
        """Return the nodes of a type on a stage."""
        nodes: list[int] = self.layout.of(name, stage).tolist()
        return nodes

    def _by_type(self, stages: Sequence[int]) -> dict[str, Passes]:
        by_type = {name: self._passes(name, stages) for name in COMPUTATIONS}
        return {name: passes for name, passes in by_type.items() if passes.nodes.size}

    def _passes(self, name: str, stages: Sequence[int]) -> Passes:
        nodes, layout = self.layout.nodes, self.layout
        rows = []
        for stage in stages:
            mine = layout.of(name, stage)
            has_microbatch = nodes.mb[mine] != ABSENT
            microbatch = np.where(has_microbatch, nodes.mb[mine], np.arange(len(mine)))
            rows.append(mine[np.lexsort((microbatch, nodes.mc[mine]))])
        table = np.array(rows, dtype=np.int64)
        if not table.size:
            return Passes(table, np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0))
        chunks = nodes.mc[table[0]]
        several = (chunks != chunks[0]).any()
        chunk = (
            np.unique(chunks, return_inverse=True)[1]
            if several
            else np.zeros(len(chunks), np.int64)
        )
        times = np.empty((*table.shape, *self.recorded_ns.shape[1:]), dtype=np.float32)
        for of_stage, stage_nodes in zip(times, table, strict=True):
            of_stage[:] = self.recorded_ns[stage_nodes]
        less_ns = self.explained.computing_ns
        explained = np.isin(table, list(less_ns)) if less_ns else np.zeros((0, 0))
        for stage, place in np.argwhere(explained).tolist():
            times[stage, place] -= less_ns[int(table[stage, place])]
        # A coarse clock may record a duration of 0, which would be a divisor.
        np.maximum(times, 1.0, out=times)
        each = [times]
        if several:
            each = [times[:, chunk == number] for number in range(int(chunk.max()) + 1)]
        own = np.array([_median_over_passes(chosen) for chosen in each]).swapaxes(0, 1)
        return Passes(table, chunk, times, own)


def _median_over_passes(times: SingleArray) -> FloatArray:
    """Return the median over passes and steps, shape (pp, dp); `times` are (pp, passes, …)."""
    pp, passes, steps, dp = times.shape
    flat = times.transpose(0, 3, 1, 2).reshape(pp, dp, passes * steps)
    return median(flat.transpose(2, 0, 1)).astype(np.float64)


def lower_median(values: NDArray[Real], axis: int) -> NDArray[Real]:
    """Return the lower median: the lower of the two middle values of an even number."""
    rows = values if axis == 0 else np.moveaxis(values, axis, 0)
    low, high = np.minimum, np.maximum
    # For few values, sorting along an axis takes ten times as long as comparisons.
    match tuple(rows) if len(rows) <= _FEW else ():
        case (a,):
            middle = a
        case a, b:
            middle = low(a, b)
        case a, b, c:
            middle = high(low(a, b), low(high(a, b), c))
        case a, b, c, d:
            middle = low(high(low(a, b), low(c, d)), low(high(a, b), high(c, d)))
        case _:
            middle = np.sort(rows, axis=0)[(len(rows) - 1) // 2]
    return np.asarray(middle)


def sample(values: NDArray[Real]) -> NDArray[Real]:
    """Return an even sample of values that is large enough to estimate their scatter."""
    flat: NDArray[Real] = values.ravel()
    # An odd stride ensures that the sample contains different steps and ranks.
    return flat if flat.size <= _SAMPLE else flat[:: flat.size // _SAMPLE | 1]


def scatter_of_most(values: NDArray[Real]) -> float:
    """Return the standard deviation estimated from values near the median, as if normal.

    Up to half of the values may be outliers. 0 for fewer than four values.
    """
    if values.size < _FEWEST:
        return 0.0
    distance = np.abs(values - median(values.ravel()))
    # Normal values: a quarter lie within 0.3186 standard deviations of the mean.
    return float(quantile(distance.ravel(), 0.25) / 0.3186)


def robust_deviation(values: NDArray[Real]) -> float:
    """Return the standard deviation of a sample, estimated from the median absolute deviation."""
    values = sample(values)
    return float(1.4826 * median(np.abs(values - median(values))))


_WIDE: Final = 1.96  # half of a 95 % interval, in standard deviations
# Variance of the median of n normal values × n ÷ variance of the values.
_OF_MEDIAN: Final = pi / 2
# A host that waits for its input launches nothing meanwhile: after a transfer the device also waits
# for the launch, on a healthy host too, and no trace shows this time. Assumed times, as shares of
# the launched computation's time: least, typical and most. A replay computes by how much these
# times lengthen a step.
_HEALTHY_LAUNCH: Final = (0.01, 0.04, 0.1)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Uncertainty of the times of healthy workers and hosts, from which intervals are computed."""

    scatter: float = 0.003  # prior standard deviation among healthy workers
    # Weight of the prior as a number of pairs of workers: without the prior, two peers that are
    # equal by accident would give an interval of width 0.
    counts_for: int = 2
    # Half of the relative 95 % interval of a step whose hosts wait for their input, in addition to
    # the uncertainty of launches.
    unsure_waiting: float = 0.005


THRESHOLDS: Final = Thresholds()


def held_against_peers(observation: Observation, workers: Sequence[Worker]) -> Uncertainty:
    """Return the uncertainty of a step in which workers at fault compute like their peers.

    All other workers count as healthy. The slowest DP rank decides a step, and a single rank of
    many is seldom the slowest: a worker's uncertainty is weighted by its share of the DP ranks.
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
    """Return the share of the job that waits for the given workers at fault.

    The share is the share of the other DP ranks or of the other stages, whichever is larger. The
    rest of the job is waited for: its late launches lengthen the step with and without the cause.
    """
    ranks, stages = {dp for dp, _ in workers}, {pp for _, pp in workers}
    layout = observation.layout
    return 1 - min(len(ranks) / layout.dp, len(stages) / layout.pp)


@dataclass(frozen=True, slots=True)
class HealthyLaunches:
    """Assumed launch lags of healthy hosts after transfers, and their uncertainty."""

    lags_ns: dict[tuple[int, int], float]  # by (computation, transfer)
    uncertainty: Uncertainty


def healthy_launches(observation: Observation) -> HealthyLaunches:
    """Return the assumed launch lags of healthy hosts for computations after transfers."""
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

"""Drafts of a replay, and the discrepancy between recorded and replayed step times.

A draft has the adaptations of the dependency model that have been applied so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.clock_alignment import RankClocks, align, one_clock
from app.analysis.replay.engine.executors import executor_of
from app.analysis.replay.engine.replay import Executor
from app.analysis.replay.engine.simulator import Durations, OwnDurations, Simulator, own_durations
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import Graph
from app.analysis.replay.missing_operations import (
    RecreatedOperations,
    arriving_last,
    recreate,
    with_typical_transfers,
)
from app.analysis.trace.model import GRADS_REDUCE_SCATTER, PARAMS_ALL_GATHER

# Smallest reduction of the discrepancy for which an adaptation on trial is kept, as a share of a
# step.
LEAST_GAIN: Final = 0.005
# Number of operation ends computed at a time, which limits the size of temporary arrays.
_AT_A_TIME: Final = 1 << 16


def recorded_times(layout: Layout, graph: Graph, ends: FloatArray | None = None) -> FloatArray:
    """Return the recorded duration of each step, shape (steps,), ns.

    If steps are not chained, a step lasts from its first start to its last end. A chained step
    lasts from the last end of the previous step to its own last end; if the previous step is not
    recorded, it lasts from the time at which the rank that ends the step could begin it.

    Parameters
    ----------
    ends : float64 array, shape (pp, steps, dp), or None
        Result of `stage_ends`, if already computed.
    """
    of_stages = stage_ends(layout) if ends is None else ends
    last = of_stages.max(axis=(0, 2), initial=0.0)
    if not graph.chained:
        return np.asarray(last)
    times = np.diff(layout.begin_ns - layout.begin_ns[0] + last, prepend=0.0)
    for step in np.flatnonzero(opens_window(layout)).tolist():
        node, dp = _closing(layout, step)
        own_ns = layout.start_ns[layout.nodes.pp == layout.nodes.pp[node], step, dp]
        times[step] = last[step] - own_ns.min() + _opened(layout, graph.step_gap_ns)[step, dp]
    return np.asarray(times)


def _closing(layout: Layout, step: int) -> tuple[int, int]:
    """Return the node and the DP rank that determine the end of a step.

    Without a pipeline these are the last collective and the rank that arrived at it last, since
    that rank held up all others. With a pipeline, or without collectives, the operation that ends
    last.
    """
    meets = np.flatnonzero(layout.of_types(PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER))
    if layout.pp == 1 and len(meets):
        node = int(meets[layout.launch[meets].argmax()])
        return node, int(layout.start_ns[node, step].argmax())
    ends_ns = layout.start_ns[:, step] + layout.duration_ns[:, step]
    last, dp = np.unravel_index(int(ends_ns.argmax()), ends_ns.shape)
    return int(last), int(dp)


def opens_window(layout: Layout) -> NDArray[np.bool_]:
    """Return which steps have no recorded step directly before them, shape (steps,)."""
    return np.asarray(np.diff(layout.steps, prepend=layout.steps[0]) != 1)


def stage_begins(layout: Layout, ends: FloatArray, step_gap_ns: float = 0.0) -> FloatArray:
    """Return the earliest begins of chained steps on each stage, shape (pp, steps, dp), ns.

    A stage can begin a step `step_gap_ns` after it ended the previous step. Times count from the
    begin of the same step. If the previous step is not recorded, a step begins with the rank's
    first operation, or with the host operations before it. `ends` is the result of `stage_ends`.
    """
    begins = np.empty(ends.shape)
    begins[:, 1:] = ends[:, :-1] - np.diff(layout.begin_ns)[:, None] + step_gap_ns
    opens = np.flatnonzero(opens_window(layout))
    opened_ns = _opened(layout, step_gap_ns)[opens]
    for stage, of_stage in enumerate(begins):
        own_ns = layout.start_ns[layout.nodes.on(stage)[:, None], opens]
        of_stage[opens] = own_ns.min(axis=0) - opened_ns
    return begins


def _opened(layout: Layout, step_gap_ns: float) -> FloatArray:
    """Return the time from a rank's earliest possible begin of a step to its first start, ns.

    It is used for steps whose previous step is not recorded. The time consists of host operations
    before the step, such as loading the batch, minus the usual gap between steps. A host that runs
    ahead loads while its device still executes the previous step, which all ranks end together: so
    no rank can begin before most ranks can. Shape (steps, dp).
    """
    if layout.opened_ns is None:
        return np.zeros(layout.start_ns.shape[1:])
    opened_ns = np.maximum(layout.opened_ns - step_gap_ns, 0.0)
    first_ns = layout.start_ns.min(axis=0)
    most_ns = np.quantile(first_ns - opened_ns, 0.5, axis=1, keepdims=True, method="higher")
    return np.asarray(np.minimum(opened_ns, np.maximum(first_ns - most_ns, 0.0)))


def stage_ends(layout: Layout) -> FloatArray:
    """Return the end of each stage's last operation of a step, shape (pp, steps, dp), ns."""
    _, steps, dp = layout.start_ns.shape
    latest = np.full((layout.pp, steps, dp), -np.inf)
    block = max(_AT_A_TIME // (steps * dp), 1)
    for stage, ends in enumerate(latest):
        nodes = layout.nodes.on(stage)
        for first in range(0, len(nodes), block):
            some = nodes[first : first + block]
            of_block = layout.start_ns[some] + layout.duration_ns[some]
            np.maximum(ends, of_block.max(axis=0), out=ends)
    return latest


def discrepancy(layouts: Sequence[Layout], graphs: Sequence[Graph]) -> float:
    """Return the discrepancy of the mean step between recording and replay (`Discrepancy.mean`)."""
    own = [own_durations(*pair)[0] for pair in zip(layouts, graphs, strict=True)]
    executors = [
        executor_of(layout, graph, values.min(axis=(1, 2)), values.size)
        for layout, graph, values in zip(layouts, graphs, own, strict=True)
    ]
    return off_recording(zip(layouts, graphs, own, executors, strict=True)).mean


class Discrepancy(NamedTuple):
    """Relative difference between replayed and recorded step times (section 6 of the paper).

    A few steps that begin late bias the mean although the model is right. A wrong model, in which
    all steps take too long, may then be nearer to the recorded mean and further from the typical
    step. So the discrepancies of both the mean and the typical (median) step are kept.
    """

    mean: float  # of the sum of all steps: the discrepancy that reports show
    typical: float  # of the median step

    def moves_away(self, before: Discrepancy) -> bool:
        """Return whether the typical step's discrepancy is clearly larger than in `before`."""
        return self.typical > before.typical + LEAST_GAIN

    def is_nearer_than(self, other: Discrepancy) -> bool:
        """Return whether the typical step's discrepancy, or else the mean's, is clearly smaller."""
        if self.typical <= other.typical - LEAST_GAIN:
            return True
        return self.mean <= other.mean - LEAST_GAIN and not self.moves_away(other)


def off_recording(groups: Iterable[tuple[Layout, Graph, FloatArray, Executor]]) -> Discrepancy:
    """Return the discrepancy over several groups of (layout, graph, own durations, executor)."""
    recorded, simulated = [], []
    for layout, graph, durations, executor in groups:
        simulator = Simulator(layout, Durations(durations, np.zeros(len(durations))), executor)
        simulated.append(simulator.step_times([simulator.keep()])[0])
        recorded.append(recorded_times(layout, graph))
    recorded_ns, simulated_ns = np.concatenate(recorded), np.concatenate(simulated)
    if not simulated_ns.sum() > 0:
        return Discrepancy(float("inf"), float("inf"))
    return Discrepancy(
        abs(float(recorded_ns.sum() / simulated_ns.sum()) - 1),
        abs(float(np.median(recorded_ns / np.maximum(simulated_ns, 1.0))) - 1),
    )


@dataclass(frozen=True, slots=True)
class Recording:
    """Properties of the recording that all drafts of a session share."""

    # Whether starts are readings of clocks, so that times of different steps can be compared.
    absolute: bool
    # Whether all starts are readings of the clock of a single host.
    one_clock: bool = False
    # Whether the recorder shows a collective inside a computation only while the computation waits
    # for it.
    only_waits: bool = False


@dataclass(frozen=True, eq=False)
class Draft:
    """Input of a replay: the steps of each shape, with dependencies and durations."""

    arranged: tuple[Layout, ...]  # as recorded
    layouts: tuple[Layout, ...]  # on one clock, with lost operations re-created
    graphs: tuple[Graph, ...]
    own: tuple[OwnDurations, ...]  # durations without waiting
    clocks: RankClocks
    recreated: RecreatedOperations
    recording: Recording

    @property
    def absolute(self) -> bool:
        """Return whether times of different steps can be compared."""
        return self.recording.absolute

    @cached_property
    def executors(self) -> tuple[Executor, ...]:
        """Return an executor for each shape; it is valid unless an ideal duration is negative."""
        return tuple(
            executor_of(layout, graph, own.min(axis=(1, 2)), own.size)
            for layout, graph, (own, _) in zip(self.layouts, self.graphs, self.own, strict=True)
        )

    @property
    def discrepancy(self) -> float:
        """Return the discrepancy of the mean step between the recording and its replay."""
        return self.off_recording.mean

    @cached_property
    def off_recording(self) -> Discrepancy:
        """Return the discrepancies of the mean step and of the typical step."""
        own = (own for own, _ in self.own)
        return off_recording(zip(self.layouts, self.graphs, own, self.executors, strict=True))

    @classmethod
    def of(cls, arranged: Sequence[Layout], graphs: Sequence[Graph], recording: Recording) -> Draft:
        """Return the draft of a recording: align its clocks and re-create its lost operations."""
        aligned, clocks = (
            one_clock(arranged, absolute=recording.absolute)
            if recording.one_clock
            else align(arranged, graphs, absolute=recording.absolute)
        )
        layouts, recreated = recreate(aligned, graphs)
        layouts = [arriving_last(layout) for layout in layouts]
        own = tuple(
            (with_typical_transfers(layout, graph, own_ns), clamped)
            for layout, graph in zip(layouts, graphs, strict=True)
            for own_ns, clamped in [own_durations(layout, graph)]
        )
        parts = tuple(arranged), tuple(layouts), tuple(graphs), own
        return cls(*parts, clocks, recreated, recording)

    def with_graphs(self, graphs: Sequence[Graph]) -> Draft:
        """Return the draft with other dependencies but the same communication groups."""
        return replace(self, graphs=tuple(graphs))

    def recorded_otherwise(
        self, arranged: Sequence[Layout], graphs: Sequence[Graph] | None = None
    ) -> Draft:
        """Return a draft with the given layouts, and with the given graphs if there are any."""
        return Draft.of(arranged, self.graphs if graphs is None else graphs, self.recording)

    def proposal(self, replacements: Sequence[tuple[Layout, Sign] | None]) -> Proposal | None:
        """Return a proposal with some layouts replaced; None if no layout is replaced.

        Parameters
        ----------
        replacements : sequence of (Layout, Sign) or None
            For each arranged layout, its replacement and the sign of the adaptation; None to keep
            the layout.
        """
        signs = [item[1] for item in replacements if item is not None]
        if not signs:
            return None
        arranged = [
            layout if item is None else item[0]
            for layout, item in zip(self.arranged, replacements, strict=True)
        ]
        return Proposal(signs[0], self.recorded_otherwise(arranged))


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The sign of an adaptation, and the draft with the adaptation applied."""

    sign: Sign
    draft: Draft

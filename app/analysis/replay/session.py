"""Preparation of a session for replay: shapes of steps, dependencies and durations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from app.analysis.memoize import Memoized
from app.analysis.replay.adaptations.candidate import (
    Draft,
    Recording,
    recorded_times,
    stage_begins,
    stage_ends,
)
from app.analysis.replay.adaptations.kind import Adaptation, Name
from app.analysis.replay.adaptations.registry import (
    adapt,
    adapt_laid_out,
    adapt_refused,
    adapt_rows,
)
from app.analysis.replay.clock_alignment import RankClocks
from app.analysis.replay.clock_steps import clock_steps_ns
from app.analysis.replay.engine.executors import executor_of
from app.analysis.replay.engine.replay import Executor
from app.analysis.replay.engine.simulator import Durations, Simulator, ideal_durations
from app.analysis.replay.excluded_steps import find_odd_steps
from app.analysis.replay.impossible_times import (
    ImpossibleDuration,
    without_impossible,
    without_unusable,
)
from app.analysis.replay.layout.arrange import lay_out
from app.analysis.replay.layout.dense import DroppedStep, FloatArray, IntArray, LaidOut, Layout
from app.analysis.replay.layout.dependency_graph import Graph, graph_of
from app.analysis.replay.layout.host_operations import (
    NONE,
    HostOperations,
    host_operations_of,
    with_opened,
    without_host_operations,
)
from app.analysis.replay.layout.step_shapes import filled
from app.analysis.replay.missing_operations import RecreatedOperations, marked, with_stand_ins
from app.analysis.trace.model import Trace
from app.analysis.trace.rank_metadata import recorder_of
from app.errors import UnanalyzableError


@dataclass(frozen=True, slots=True, eq=False)
class ShapeGroup(Memoized):
    """Steps of the same shape, which run the same operations on each worker, with a simulator."""

    layout: Layout
    graph: Graph
    durations: Durations
    simulator: Simulator
    _memo: dict[Callable[[ShapeGroup], Any], Any] = field(init=False, default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A session prepared for replay: its steps by shape, clocks, adaptations and exclusions."""

    groups: tuple[ShapeGroup, ...]  # at least one; the one with most steps first
    dropped: tuple[DroppedStep, ...]  # steps that cannot be replayed, and why
    odd: tuple[DroppedStep, ...]  # complete steps excluded as unlike the others on all ranks
    # Odd step → (first start, last end) over all workers, ns since the epoch
    odd_spans_ns: Mapping[int, tuple[float, float]]
    clamped: int  # number of faulty transfer durations that count as 0
    recreated: RecreatedOperations  # operations that the recorder lost
    clocks: RankClocks
    # Types of sends that are left out because their receives were not recorded.
    unanswered: tuple[str, ...]
    # Adaptations of the paper's dependency model to this job.
    adaptations: tuple[Adaptation, ...] = ()
    # Whether all starts are readings of a single host's clock.
    one_clock: bool = False
    # Whether starts are readings of clocks, so that times of different steps can be compared.
    absolute: bool = True
    host_operations: HostOperations = NONE  # recorded operations between steps
    # Operations whose impossible recorded durations were replaced.
    impossible: tuple[ImpossibleDuration, ...] = ()
    # Workers without any recorded operation, as (DP rank, stage); other workers stand in for them.
    absent: tuple[tuple[int, int], ...] = ()

    @property
    def main(self) -> ShapeGroup:
        """Return the group of the shape with most steps."""
        return self.groups[0]

    @property
    def layout(self) -> Layout:
        """Return the main group's layout."""
        return self.main.layout

    @property
    def graph(self) -> Graph:
        """Return the main group's dependencies."""
        return self.main.graph

    @property
    def durations(self) -> Durations:
        """Return the main group's durations."""
        return self.main.durations

    @property
    def simulator(self) -> Simulator:
        """Return the main group's simulator."""
        return self.main.simulator

    @property
    def steps(self) -> IntArray:
        """Return the numbers of all analyzed steps, ascending."""
        if len(self.groups) == 1:
            return self.layout.steps
        return np.sort(np.concatenate([group.layout.steps for group in self.groups]))

    def over_steps(self, measure: Callable[[ShapeGroup], FloatArray]) -> FloatArray:
        """Return the results of `measure` for each group, concatenated and sorted by step."""
        results = [measure(group) for group in self.groups]
        if len(results) == 1:
            return results[0]
        steps = np.concatenate([group.layout.steps for group in self.groups])
        return np.concatenate(results)[np.argsort(steps)]


def prepare_replay(
    trace: Trace, without: Collection[Name] = (), *, whole_steps: bool = False
) -> Replayed:
    """Return a session prepared for replay: laid out, adapted, with ideal durations.

    Parameters
    ----------
    without : collection of Name
        Adaptations of the dependency model that are switched off.
    whole_steps : bool
        Whether each operation is a whole step, so that a worker of any stage can stand in for a
        missing worker.

    Raises
    ------
    UnanalyzableError
        The trace cannot be replayed; see `with_stand_ins`, `lay_out` and `graph_of`.
    """
    trace, unusable = without_unusable(trace)
    trace, absent = with_stand_ins(trace, of_anyone=whole_steps)
    repeated = tuple(DroppedStep(step, reason) for step, reason in trace.repeated_steps)
    steps, between = without_host_operations(trace)
    rows = adapt_rows(steps, without)
    pads = Name.PADDED_MICROBATCHES not in without
    laid_out = lay_out(rows.trace, rows.routes, pads=pads)
    try:
        arranged, graphs, dropped = _with_graphs(laid_out)
    except UnanalyzableError as refused:
        rows = adapt_refused(rows, refused, without)
        laid_out = lay_out(rows.trace, rows.routes, pads=pads)
        arranged, graphs, dropped = _with_graphs(laid_out)
    arranged, impossible = without_impossible(arranged, graphs)
    arranged = [with_opened(marked(layout, absent), trace, between) for layout in arranged]
    recording = Recording(
        absolute=not trace.step_relative,
        one_clock=not trace.step_relative and trace.meta.on_one_host,
        only_waits=recorder_of(trace.meta.extra).only_waits,
    )
    draft = Draft.of(arranged, graphs, recording)
    torn: tuple[DroppedStep, ...] = ()
    torn_steps = draft.clocks.torn
    if torn_steps and len(torn_steps) < sum(len(layout.steps) for layout in draft.arranged):
        draft = _without_steps(draft, torn_steps)
        torn = tuple(DroppedStep(step, "a clock was set within it") for step in torn_steps)
    draft, odd, odd_spans_ns = _without_odd_steps(draft, trace.meta.odd_steps)
    draft, made = adapt(draft, without)
    layouts, graphs = list(draft.layouts), list(draft.graphs)
    own = [durations for durations, _ in draft.own]
    ideals = ideal_durations(layouts, own)
    groups = []
    for number, (layout, graph) in enumerate(zip(layouts, graphs, strict=True)):
        durations = Durations(own[number], ideals[number])
        executor = None if ideals[number].min() < 0 else draft.executors[number]
        groups.append(_group(layout, graph, durations, executor))
    ahead_ns = draft.clocks.offsets_ns if draft.clocks.aligned else None
    host_operations = host_operations_of(trace, between, ahead_ns)
    clock_steps = draft.clocks.clock_steps
    if clock_steps and len(host_operations):
        on = host_operations
        host_operations = on.earlier(clock_steps_ns(clock_steps, on.step, on.dp, on.pp))
    return Replayed(
        groups=tuple(groups),
        dropped=tuple(sorted((*dropped, *unusable, *repeated, *torn), key=attrgetter("step"))),
        odd=odd,
        odd_spans_ns=odd_spans_ns,
        clamped=sum(clamped for _, clamped in draft.own),
        recreated=draft.recreated,
        clocks=draft.clocks,
        unanswered=laid_out.unanswered,
        adaptations=(*rows.made, *adapt_laid_out(laid_out), *made),
        one_clock=draft.recording.one_clock,
        absolute=draft.absolute,
        host_operations=host_operations,
        impossible=impossible,
        absent=absent.workers,
    )


def _without_odd_steps(
    draft: Draft, named: Mapping[int, str]
) -> tuple[Draft, tuple[DroppedStep, ...], dict[int, tuple[float, float]]]:
    """Return a draft without odd steps, the odd steps, and the (first start, last end) of each.

    Parameters
    ----------
    named : mapping
        Steps that the recorder names as odd, and the reason for each; ignored if it names all
        steps.
    """
    steps = sorted(step for layout in draft.arranged for step in layout.steps.tolist())
    odd = tuple(DroppedStep(step, named[step]) for step in steps if step in named)
    if len(odd) == len(steps):
        odd = ()
    odd += find_odd_steps(_without_steps(draft, [item.step for item in odd]) if odd else draft)
    odd = tuple(sorted(odd, key=attrgetter("step")))
    if not odd:
        return draft, (), {}
    steps = [item.step for item in odd]
    spans_ns: dict[int, tuple[float, float]] = {}
    for layout in draft.layouts:
        kept = np.flatnonzero(np.isin(layout.steps, steps))
        if len(kept):
            ends_ns = stage_ends(layout.of_steps(kept)).max(axis=(0, 2))
            begins_ns = layout.begin_ns[kept]
            numbers, last_ns = layout.steps[kept].tolist(), (begins_ns + ends_ns).tolist()
            spans_ns |= dict(
                zip(numbers, zip(begins_ns.tolist(), last_ns, strict=True), strict=True)
            )
    return _without_steps(draft, steps), odd, spans_ns


def _without_steps(draft: Draft, left_out: Sequence[int]) -> Draft:
    ordinary = [
        (layout if len(kept) == len(layout.steps) else layout.of_steps(kept), graph)
        for layout, graph in zip(draft.arranged, draft.graphs, strict=True)
        for kept in [np.flatnonzero(~np.isin(layout.steps, left_out))]
        if len(kept)
    ]
    ordinary.sort(key=lambda pair: (-len(pair[0].steps), int(pair[0].steps[0])))
    arranged, graphs = zip(*ordinary, strict=True)
    return Draft.of(arranged, graphs, draft.recording)


def _group(
    layout: Layout, graph: Graph, durations: Durations, executor: Executor | None = None
) -> ShapeGroup:
    """Return the steps of a shape with a simulator; the executor is built if none is given."""
    if executor is None:
        values = durations.recorded_ns
        shortest = np.minimum(values.min(axis=(1, 2)), durations.ideal_ns)
        executor = executor_of(layout, graph, shortest, values.size)
    return ShapeGroup(layout, graph, durations, Simulator(layout, durations, executor))


def without_lags(group: ShapeGroup, nodes: Collection[int]) -> ShapeGroup:
    """Return a group without the regular launch delays of the given nodes."""
    if not nodes:
        return group
    lags = {edge: lag for edge, lag in group.graph.lags_ns.items() if edge[0] not in nodes}
    return with_lags(group, lags)


def with_lags(group: ShapeGroup, lags_ns: Mapping[tuple[int, int], float]) -> ShapeGroup:
    """Return a group with only the given regular launch delays, by (node, dependency)."""
    return with_graph(group, replace(group.graph, lags_ns=lags_ns))


def with_shorter_step_gap(group: ShapeGroup, by_ns: float) -> ShapeGroup:
    """Return a group whose regular gap between the steps of a rank is `by_ns` shorter."""
    if not by_ns:
        return group
    return with_graph(group, replace(group.graph, step_gap_ns=group.graph.step_gap_ns - by_ns))


def with_graph(group: ShapeGroup, graph: Graph) -> ShapeGroup:
    """Return a group with other dependencies between its operations."""
    return _group(group.layout, graph, group.durations)


def _with_graphs(
    laid_out: LaidOut,
) -> tuple[list[Layout], list[Graph], tuple[DroppedStep, ...]]:
    """Return layouts with their dependency graphs, and the dropped steps.

    A group of steps is dropped if the dependency model contradicts the order of its operations. If
    no group remains, the refusal of the first group is raised.
    """
    layouts: list[Layout] = []
    graphs: list[Graph] = []
    dropped = list(laid_out.dropped)
    refused: list[UnanalyzableError] = []
    for layout in laid_out.groups:
        try:
            graphs.append(graph_of(layout))
            layouts.append(layout)
        except UnanalyzableError as error:
            refused.append(error)
            dropped += [DroppedStep(int(step), error.message) for step in layout.steps]
    if not layouts:
        raise refused[0]
    return layouts, graphs, tuple(sorted(dropped, key=lambda item: item.step))


def begins_of(group: ShapeGroup, stage: int) -> FloatArray:
    """Return the earliest begins of a stage's steps, shape (steps, dp), ns; see `stage_begins`.

    The array is memoized and shared, so callers must not write to it.
    """
    return np.asarray(group.memoize(_begins)[stage])


def _begins(group: ShapeGroup) -> FloatArray:
    return stage_begins(group.layout, ends_of(group), group.graph.step_gap_ns)


def follows_of(group: ShapeGroup) -> dict[int, tuple[int, ...]]:
    """Return each node's direct dependencies."""
    return {
        node: after
        for unit in group.graph.units
        for node, after in zip(unit.members, unit.after, strict=True)
    }


def recorded_step_times(group: ShapeGroup) -> FloatArray:
    """Return the recorded duration of each step, shape (steps,), ns; see `recorded_times`."""
    return recorded_times(group.layout, group.graph, ends_of(group))


def filled_ns(group: ShapeGroup) -> FloatArray:
    """Return durations without waiting, with empty places filled, shape (nodes, steps, dp), ns.

    See `filled`. The array is memoized and shared, so callers must not write to it.
    """
    return group.memoize(_filled)


def _filled(group: ShapeGroup) -> FloatArray:
    return filled(group.layout, group.durations.recorded_ns)


def ends_of(group: ShapeGroup) -> FloatArray:
    """Return the end of each stage's last operation of a step, shape (pp, steps, dp), ns."""
    return group.memoize(_ends)


def _ends(group: ShapeGroup) -> FloatArray:
    return stage_ends(group.layout)

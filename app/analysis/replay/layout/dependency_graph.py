"""Dependency graph of the operations of one step, shared by all steps of the same shape.

Source: section 3.2 of "Understanding Stragglers in Large Model Training Using What-if Analysis".
Dependencies follow the recorded launch order, so GPipe, 1F1B and interleaved schedules need no
assumption. Sessions of a job have one structure, and deriving the graph takes up to a tenth of an
analysis, so graphs are kept.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from app.analysis.replay.layout.dense import MAX_NAMED_FAULTS, Layout
from app.analysis.replay.layout.pipeline import (
    COMPUTE,
    DIRECTIONS,
    Direction,
    Flow,
    VirtualStage,
    flow_of,
    pair_up,
    transferred,
)
from app.analysis.trace import model as ops
from app.errors import Fault, UnanalyzableError

# ---- Operations of one step that follow one another, as a graph --------------------------------
# It describes one DP rank; the others, and all other steps of the same shape, share it. What
# follows what is told by `app.analysis.replay.layout.dependency_graph`.


__all__ = ["COMPUTE", "DP_COLLECTIVES", "LOCAL", "P2P", "Graph", "Unit"]

# Types that run on the worker itself; every other known type moves data.
LOCAL = COMPUTE | {ops.OPTIMIZER, ops.GC}
# Types that all DP ranks of a stage start together.
DP_COLLECTIVES = frozenset(
    {ops.PARAMS_ALL_GATHER, ops.GRADS_REDUCE_SCATTER, ops.SEPARATE_ALL_REDUCE}
)
# Code of the refusal where transfers and computations do not match.
TRANSFERS_UNMATCHED = "trace.transfers_unmatched"
# Code of the refusal where operations wait for one another.
DEPENDENCY_CYCLE = "trace.dependency_cycle"
P2P = frozenset({ops.FORWARD_SEND, ops.FORWARD_RECV, ops.BACKWARD_SEND, ops.BACKWARD_RECV})


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that complete together: one operation, or one communication group."""

    members: tuple[int, ...]  # node indices
    after: tuple[tuple[int, ...], ...]  # for each member the nodes that end before it is launched
    communication: bool  # no member moves data before all have launched
    across_dp: bool  # the group also spans all DP ranks


@dataclass(frozen=True, slots=True)
class Graph:
    """Units of one step in an order in which each follows what it depends on."""

    units: tuple[Unit, ...]
    last: tuple[int, ...]  # nodes that may end last: nothing follows them
    # A stage, or without a pipeline a rank, begins a step when it has ended the one before, and not
    # when all have…
    chained: bool = False
    # mapping of (node, what it follows) to float: time that regularly passes before a node is
    # launched; 0 where nothing is said
    lags_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # …and when that time has passed since, which it regularly does.
    step_gap_ns: float = 0.0
    # By computation: the collectives that it waits for inside, in their order. Here they precede
    # or follow it; where steps are executed, it is cut at each of them.
    inside: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def lag_ns(self, node: int, before: int) -> float:
        """Return what regularly passes between the end of `before` and the launch of `node`."""
        return self.lags_ns.get((node, before), 0.0)


def with_edges(
    graph: Graph,
    layout: Layout,
    added: Mapping[int, Iterable[int]],
    removed: Mapping[int, Iterable[int]],
) -> Graph:
    """Return a graph in which nodes follow other nodes than before.

    Parameters
    ----------
    added, removed : mapping of int to nodes
        What else each node follows, and what it no longer follows.

    Raises
    ------
    UnanalyzableError
        ``trace.dependency_cycle``.
    """
    changed = added.keys() | removed.keys()
    units = [
        unit
        if changed.isdisjoint(unit.members)
        else replace(
            unit,
            after=tuple(
                tuple(sorted((set(after) - set(removed.get(node, ()))) | set(added.get(node, ()))))
                for node, after in zip(unit.members, unit.after, strict=True)
            ),
        )
        for unit in graph.units
    ]
    changed_graph = sorted_graph(units, layout, chained=graph.chained, lags_ns=graph.lags_ns)
    return replace(changed_graph, inside=graph.inside, step_gap_ns=graph.step_gap_ns)


def sorted_graph(
    units: Sequence[Unit],
    layout: Layout,
    *,
    chained: bool = False,
    lags_ns: Mapping[tuple[int, int], float] | None = None,
) -> Graph:
    """Return the graph of some units; the other arguments are those of `Graph`."""
    ordered = _in_order(units, layout)
    followed = {node for unit in ordered for nodes in unit.after for node in nodes}
    last = tuple(node for unit in ordered for node in unit.members if node not in followed)
    return Graph(tuple(ordered), last, chained, {} if lags_ns is None else lags_ns)


def _in_order(units: Sequence[Unit], layout: Layout) -> list[Unit]:
    """Sort units so that each comes after all that its members wait for (Kahn's algorithm)."""
    unit_of = {node: i for i, unit in enumerate(units) for node in unit.members}
    # What a unit waits for twice is counted twice, here and where it is met: no sets are needed.
    followers: list[list[int]] = [[] for _ in units]
    waiting = [0] * len(units)
    for i, unit in enumerate(units):
        for nodes in unit.after:
            waiting[i] += len(nodes)
            for node in nodes:
                followers[unit_of[node]].append(i)
    ready = deque(i for i, count in enumerate(waiting) if count == 0)
    ordered: list[Unit] = []
    while ready:
        i = ready.popleft()
        ordered.append(units[i])
        for j in followers[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    if len(ordered) < len(units):
        before = [{unit_of[node] for nodes in unit.after for node in nodes} for unit in units]
        _raise_cycle(units, before, waiting, layout)
    return ordered


def _raise_cycle(
    units: Sequence[Unit], before: list[set[int]], waiting: list[int], layout: Layout
) -> None:
    """Name the operations of one cycle."""
    unit = next(i for i, count in enumerate(waiting) if count > 0)
    seen: list[int] = []
    while unit not in seen:
        seen.append(unit)
        unit = next(i for i in sorted(before[unit]) if waiting[i] > 0)
    cycle = seen[seen.index(unit) :][::-1]
    nodes = layout.nodes
    names = [
        f"{layout.op_names[nodes.op[node]]} {nodes.order[node]} on stage {nodes.pp[node]}"
        for i in cycle
        for node in units[i].members
    ]
    raise UnanalyzableError(
        f"{len(names)} operations wait for one another: {' → '.join(names[:MAX_NAMED_FAULTS])}",
        code=DEPENDENCY_CYCLE,
        faults=tuple(Fault("dependency_cycle", name) for name in names[:MAX_NAMED_FAULTS]),
    )


# ---- Dependencies between the operations of one step, as the paper's section 3.2 has them ------
# They are read off the launch order that was recorded, not off an assumed schedule, so GPipe, 1F1B
# and interleaved schedules all come out of the data.


def build_graph(layout: Layout) -> Graph:
    """Derive the dependency graph of a layout's steps.

    Raises
    ------
    UnanalyzableError
        ``trace.dependency_cycle`` with the operations that wait for one another.
    """
    builder = _Builder(layout)
    for stage in range(layout.pp):
        builder.add_stage(stage)
    builder.add_handovers()
    groups = list(builder.groups())
    units = [
        Unit(
            members=members,
            after=tuple(tuple(sorted(builder.after[node])) for node in members),
            communication=communication,
            across_dp=across_dp,
        )
        for members, communication, across_dp in groups
    ]
    return sorted_graph(units, layout)


@dataclass(slots=True)
class _Builder:
    """Collects, stage by stage, what each node comes after."""

    layout: Layout
    after: dict[int, set[int]] = field(init=False)
    _by_kind: dict[tuple[str, int], list[int]] = field(init=False)
    _launch: list[float] = field(init=False)
    _chunk: list[int] = field(init=False)
    # the chunk that a node computes; recorders need not write that of the only one
    _computed: list[int] = field(init=False)
    _microbatch: list[int] = field(init=False)
    _flow: Flow = field(init=False)
    # (direction, stage) → [(receive, what it feeds)], [(send, what it carries away)]
    _fed: dict[tuple[Direction, int], list[tuple[int, int]]] = field(init=False)
    _emptied: dict[tuple[Direction, int], list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.layout.nodes
        self._launch = self.layout.launch.tolist()
        self._chunk = nodes.mc.tolist()
        self._computed = np.maximum(nodes.mc, 0).tolist()
        self._microbatch = nodes.mb.tolist()
        self.after = {node: set() for node in range(len(nodes))}
        self._by_kind = {}
        for node, (op, pp) in enumerate(zip(nodes.op.tolist(), nodes.pp.tolist(), strict=True)):
            self._by_kind.setdefault((self.layout.op_names[op], pp), []).append(node)
        stages = range(self.layout.pp)
        computing = [
            (stage, self._computed[node])
            for stage in stages
            for node in self.of(stage, ops.FORWARD_COMPUTE)
        ]
        self._flow = flow_of(computing, self.layout.routes)
        self._fed, self._emptied = {}, {}
        for direction in DIRECTIONS:
            for stage in stages:
                self._fed[direction, stage] = self._matched(
                    stage, direction, direction.recv, self._flow.source
                )
                self._emptied[direction, stage] = self._matched(
                    stage, direction, direction.send, self._flow.target
                )

    def of(self, stage: int, *names: str) -> list[int]:
        """Return a stage's nodes of the named types in launch order."""
        if len(names) == 1:
            return self._by_kind.get((names[0], stage), [])
        found = [node for name in names for node in self._by_kind.get((name, stage), ())]
        return sorted(found, key=lambda n: (self._launch[n], n))

    def chain(self, nodes: Iterable[int]) -> None:
        """Let each node follow the one before it."""
        before: int | None = None
        for node in nodes:
            if before is not None:
                self.after[node].add(before)
            before = node

    def add_stage(self, stage: int) -> None:
        """Add the dependencies within one stage."""
        compute = self.of(stage, *COMPUTE)
        self.chain(compute)
        for name in P2P:
            self.chain(self.of(stage, name))
        self._add_transfers(stage, compute)
        self._add_parameters(stage)
        self._add_end_of_step(stage, compute)

    def _add_transfers(self, stage: int, compute: list[int]) -> None:
        """Tie sends and receives to the computations that they feed or carry away."""
        for direction in DIRECTIONS:
            computes = self.of(stage, direction.compute)
            position = {node: i for i, node in enumerate(computes)}
            for receive, node in self._fed[direction, stage]:
                self.after[node].add(receive)
                if position[node] > 0:
                    self.after[receive].add(computes[position[node] - 1])
            for send, node in self._emptied[direction, stage]:
                self.after[send].add(node)
        # While the pipeline fills, backward transfers wait for the next to last forward.
        backwards = set(self.of(stage, ops.BACKWARD_COMPUTE))
        first_backward = next((i for i, node in enumerate(compute) if node in backwards), 0)
        if first_backward > 1:
            for name in (ops.BACKWARD_SEND, ops.BACKWARD_RECV):
                for node in self.of(stage, name)[:1]:
                    self.after[node].add(compute[first_backward - 2])

    def _matched(
        self,
        stage: int,
        direction: Direction,
        name: str,
        neighbor: Callable[[Direction, VirtualStage], VirtualStage | None],
    ) -> list[tuple[int, int]]:
        """Match a stage's transfers of one type with its computations, in order."""
        transfers = self.of(stage, name)
        if not transfers:
            return []
        computes = self.of(stage, direction.compute)
        neighbors = [neighbor(direction, (stage, self._computed[node])) for node in computes]
        options = transferred(stage, neighbors)
        for places in options:
            if len(transfers) == len(places):
                return list(zip(transfers, (computes[i] for i in places), strict=True))
        message = (
            f"Stage {stage} has {len(transfers)} {name} for {len(options[0])} computations "
            "in every step"
        )
        raise UnanalyzableError(
            message,
            code=TRANSFERS_UNMATCHED,
            faults=(Fault("transfers_unmatched", message, column=name),),
        )

    def _on(self, matched: Iterable[tuple[int, int]], stage: VirtualStage) -> dict[int, int]:
        """Return (computation → its transfer) of one virtual stage."""
        chunk = stage[1]
        return {node: transfer for transfer, node in matched if self._computed[node] == chunk}

    def _add_parameters(self, stage: int) -> None:
        """Let a chunk's last params-all-gather gate its first forward."""
        gathers = self.of(stage, ops.PARAMS_ALL_GATHER)
        forwards = self.of(stage, ops.FORWARD_COMPUTE)
        for chunk, gather in self._by_chunk(gathers).items():
            gated = [n for n in forwards if chunk in (ops.ABSENT, self._computed[n])]
            if gated:
                self.after[gated[0]].add(gather[-1])

    def _by_chunk(self, nodes: list[int]) -> dict[int, list[int]]:
        chunks: dict[int, list[int]] = {}
        for node in nodes:
            chunks.setdefault(self._chunk[node], []).append(node)
        return chunks

    def _add_end_of_step(self, stage: int, compute: list[int]) -> None:
        """Chain what a step ends with, and the data-parallel stream."""
        gathers = self.of(stage, ops.PARAMS_ALL_GATHER)
        scatters = self.of(stage, ops.GRADS_REDUCE_SCATTER)
        reduces = self.of(stage, ops.SEPARATE_ALL_REDUCE)
        overlapped = bool(reduces)
        self.chain(self.of(stage, *DP_COLLECTIVES) if overlapped else [*gathers, *scatters])
        ends: list[list[int]] = [compute[-1:], self.of(stage, ops.GC)]
        ends += [self.of(stage, ops.LAYERNORM_ALL_REDUCE), self.of(stage, ops.EMBEDDING_ALL_REDUCE)]
        ends += [reduces if overlapped else scatters]
        ends += [self.of(stage, ops.OPTIMIZER_CLIP), self.of(stage, ops.OPTIMIZER)]
        tail = [node for nodes in ends for node in nodes]
        self.chain(tail)
        if overlapped:
            gradients = self.of(stage, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE)
            for chunk, scatter in self._by_chunk(scatters).items():
                done = [n for n in gradients if chunk in (ops.ABSENT, self._computed[n])]
                if done:
                    self.after[scatter[0]].add(done[-1])
            after_backward = [node for nodes in ends[2:] for node in nodes]
            if after_backward and scatters:
                self.after[after_backward[0]].add(scatters[-1])

    def groups(self) -> Iterator[tuple[tuple[int, ...], bool, bool]]:
        """Yield (members, is communication, spans DP ranks) so that each node occurs once."""
        grouped: set[int] = set()
        for members, across_dp in (*self._p2p_groups(), *self._step_end_groups()):
            if not grouped.isdisjoint(members):
                continue
            grouped.update(members)
            yield members, True, across_dp
        for (name, _), nodes in self._by_kind.items():
            for node in nodes:
                if node not in grouped:
                    yield (node,), name not in LOCAL, name in DP_COLLECTIVES

    def _p2p_groups(self) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Pair the sends of a virtual stage with the receives of the next one."""
        for direction in DIRECTIONS:
            for sender, receiver in self._flow.links(direction):
                if sender[0] == receiver[0]:
                    continue
                sends = self._on(self._emptied[direction, sender[0]], sender)
                receives = self._on(self._fed[direction, receiver[0]], receiver)
                for one, other in pair_up(list(sends), list(receives), self._microbatch):
                    yield (sends[one], receives[other]), False

    def add_handovers(self) -> None:
        """Let computations follow one another directly where no transfer is recorded."""
        for direction in DIRECTIONS:
            computes = {
                stage: [
                    node
                    for node in self.of(stage[0], direction.compute)
                    if self._computed[node] == stage[1]
                ]
                for stage in self._flow.stages
            }
            for sender, receiver in self._flow.links(direction):
                recorded = self._emptied[direction, sender[0]] or self._fed[direction, receiver[0]]
                if recorded or sender[0] == receiver[0]:
                    continue
                pairs = pair_up(computes[sender], computes[receiver], self._microbatch)
                for one, other in pairs:
                    self.after[other].add(one)

    def _step_end_groups(self) -> Iterator[tuple[tuple[int, ...], bool]]:
        ends = [self.of(stage, ops.EMBEDDING_ALL_REDUCE) for stage in range(self.layout.pp)]
        for members in zip(*(nodes for nodes in ends if nodes), strict=False):
            yield members, False
        clips = [self.of(stage, ops.OPTIMIZER_CLIP) for stage in range(self.layout.pp)]
        for members in zip(*(nodes for nodes in clips if nodes), strict=False):
            yield members, True


# ---- Graphs of structures that were met before -------------------------------------------------
# The sessions of a job have one structure, and a worker meets it again with each of them: deriving
# the graph anew takes up to a tenth of an analysis.


# What is kept takes about half a kilobyte a node: 16 MiB at most.
MOST_GRAPHS: Final = 16
MOST_NODES: Final = 1 << 11


class _Structure(NamedTuple):
    """All that a graph is derived from."""

    op_names: tuple[str, ...]
    nodes: tuple[bytes, ...]
    # of computations, and of collectives over DP ranks, on each stage
    launch_order: bytes
    ranks: tuple[int, int]
    routes: tuple[tuple[tuple[int, int], ...], ...]


_known: OrderedDict[_Structure, Graph] = OrderedDict()
_lock: Final = Lock()


def graph_of(layout: Layout) -> Graph:
    """Return the dependency graph of a layout's steps.

    Raises
    ------
    UnanalyzableError
        As `build_graph`.
    """
    if len(layout.nodes) > MOST_NODES:
        return build_graph(layout)
    structure = _structure_of(layout)
    with _lock:
        known = _known.get(structure)
        if known is not None:
            _known.move_to_end(structure)
            return known
    graph = build_graph(layout)
    with _lock:
        _known[structure] = graph
        if len(_known) > MOST_GRAPHS:
            _known.popitem(last=False)
    return graph


def _structure_of(layout: Layout) -> _Structure:
    nodes = layout.nodes
    ordered = np.array(
        [(name in COMPUTE) + 2 * (name in DP_COLLECTIVES) for name in layout.op_names], np.int8
    )[nodes.op]
    chosen = ordered.nonzero()[0]
    order = chosen[np.lexsort((layout.launch[chosen], nodes.pp[chosen], ordered[chosen]))]
    columns = (nodes.op, nodes.pp, nodes.mb, nodes.mc)
    return _Structure(
        layout.op_names,
        tuple(column.tobytes() for column in columns),
        order.tobytes(),
        (layout.dp, layout.pp),
        layout.routes,
    )

"""Dependency graph of the operations of a step, shared by all steps of the same shape.

Source: section 3.2 of "Understanding Stragglers in Large Model Training Using What-if Analysis". A
graph describes a single DP rank, and is the same for all DP ranks. Dependencies follow the recorded
launch order, so GPipe, 1F1B and interleaved schedules need no assumption.

From the paper are the streams, the gathering before the first forward and the scattering after the
last backward, the order of receive, computation and send, and the groups. Added, since the program
of its authors or the results of its traces need them:

- A receive follows the previous computation of its own direction, and the first backward transfers
  of a stage follow the forward before the last one of its warm-up.
- Model chunks: each has its own first forward, last backward and neighbors.
- The end of a step: garbage collection, all-reduces of layer norms and embeddings, clipping, and
  optimizer follow one another. Scatters overlap with the backward only where separate all-reduces
  of gradients are recorded; elsewhere they are part of this chain.

Added for jobs that the paper does not have: gathering at the end of a step follows the optimizer,
computations hand over directly where no transfer is recorded.

All sessions of a job have the same structure, and deriving the graph takes up to a tenth of an
analysis, so graphs are cached.
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

__all__ = ["COMPUTE", "DP_COLLECTIVES", "LOCAL", "P2P", "Graph", "Unit", "gathers_at_end"]

# Types that run on the worker itself; all other known types move data between workers.
LOCAL = COMPUTE | {ops.OPTIMIZER, ops.GC}
# Types of collectives in which all DP ranks of a stage take part.
DP_COLLECTIVES = frozenset(
    {ops.PARAMS_ALL_GATHER, ops.GRADS_REDUCE_SCATTER, ops.SEPARATE_ALL_REDUCE}
)
# Error code for transfers that cannot be matched with computations.
TRANSFERS_UNMATCHED = "trace.transfers_unmatched"
# Error code for operations that depend on one another in a cycle.
DEPENDENCY_CYCLE = "trace.dependency_cycle"
P2P = frozenset({ops.FORWARD_SEND, ops.FORWARD_RECV, ops.BACKWARD_SEND, ops.BACKWARD_RECV})


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that end together: a single operation, or a communication group."""

    members: tuple[int, ...]  # nodes
    after: tuple[tuple[int, ...], ...]  # for each member the nodes that it depends on
    communication: bool  # whether members transfer data once all are launched
    across_dp: bool  # whether the group also spans all DP ranks


@dataclass(frozen=True, slots=True)
class Graph:
    """Dependency graph of the operations of a step: units in topological order."""

    units: tuple[Unit, ...]
    last: tuple[int, ...]  # nodes without dependents, which may end last
    # Whether each stage (in jobs without a pipeline each rank) begins a step when it has itself
    # ended the previous step, instead of when all stages have.
    chained: bool = False
    # (node, dependency) → regular launch delay, ns; 0 for pairs that are not listed
    lags_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # Regular gap between two chained steps of a stage, ns
    step_gap_ns: float = 0.0
    # Computation → the collectives inside it for which it waits, in order. In the graph these
    # collectives precede or follow the computation; executors cut the computation at each of them.
    inside: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def lag_ns(self, node: int, before: int) -> float:
        """Return the regular delay from the end of `before` to the launch of `node`, ns."""
        return self.lags_ns.get((node, before), 0.0)


def with_edges(
    graph: Graph,
    layout: Layout,
    added: Mapping[int, Iterable[int]],
    removed: Mapping[int, Iterable[int]],
) -> Graph:
    """Return a graph with dependencies added and removed.

    Parameters
    ----------
    added, removed : mapping of int to nodes
        Dependencies of each node to add, and to remove.

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
    """Return the graph of units given in any order; for the other arguments see `Graph`."""
    unit_of = {node: i for i, unit in enumerate(units) for node in unit.members}
    # Kahn's algorithm. A repeated dependency is added to the count twice and subtracted twice, so
    # no sets are needed.
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
    followed = {node for unit in ordered for nodes in unit.after for node in nodes}
    last = tuple(node for unit in ordered for node in unit.members if node not in followed)
    return Graph(tuple(ordered), last, chained, {} if lags_ns is None else lags_ns)


def _raise_cycle(
    units: Sequence[Unit], before: list[set[int]], waiting: list[int], layout: Layout
) -> None:
    """Raise ``trace.dependency_cycle`` with the operations of a cycle."""
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


def gathers_at_end(layout: Layout) -> frozenset[int]:
    """Return the params-all-gathers that end a step: they gather parameters for the next step.

    Megatron's distributed optimizer does so unless it overlaps the gathering with forwards. Such a
    gather is launched after all computations, gradient reductions and optimizers of its stage.
    """
    others = layout.of_types(
        *COMPUTE, *(DP_COLLECTIVES - {ops.PARAMS_ALL_GATHER}), ops.OPTIMIZER_CLIP, ops.OPTIMIZER
    )
    late: list[int] = []
    for stage in range(layout.pp):
        gathers = layout.of(ops.PARAMS_ALL_GATHER, stage)
        before = layout.nodes.on(stage)
        before = before[others[before]]
        if len(gathers) and len(before):
            last = layout.launch[before].max()
            late += gathers[layout.launch[gathers] > last].tolist()
    return frozenset(late)


def build_graph(layout: Layout) -> Graph:
    """Return the dependency graph of a layout's steps: that of the paper, with the additions above.

    Raises
    ------
    UnanalyzableError
        ``trace.dependency_cycle``, with the operations that depend on one another.
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
    """Collector of the dependencies of each node, stage by stage."""

    layout: Layout
    after: dict[int, set[int]] = field(init=False)  # node → its dependencies
    _by_kind: dict[tuple[str, int], list[int]] = field(init=False)  # (op type, stage) → nodes
    _launch: list[float] = field(init=False)
    _chunk: list[int] = field(init=False)
    # Model chunk of each node; 0 if no chunk is recorded
    _computed: list[int] = field(init=False)
    _microbatch: list[int] = field(init=False)
    _flow: Flow = field(init=False)
    _late: frozenset[int] = field(init=False)  # result of `gathers_at_end`
    # (direction, stage) → [(receive, computation that uses the received data)]
    _fed: dict[tuple[Direction, int], list[tuple[int, int]]] = field(init=False)
    # (direction, stage) → [(send, computation whose result the send transfers)]
    _emptied: dict[tuple[Direction, int], list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.layout.nodes
        self._launch = self.layout.launch.tolist()
        self._chunk = nodes.mc.tolist()
        self._computed = np.maximum(nodes.mc, 0).tolist()
        self._microbatch = nodes.mb.tolist()
        self._late = gathers_at_end(self.layout)
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
        nodes = [node for name in names for node in self._by_kind.get((name, stage), ())]
        return sorted(nodes, key=lambda n: (self._launch[n], n))

    def chain(self, nodes: Iterable[int]) -> None:
        """Make each node depend on the previous node of the sequence."""
        before: int | None = None
        for node in nodes:
            if before is not None:
                self.after[node].add(before)
            before = node

    def add_stage(self, stage: int) -> None:
        """Add the dependencies between operations of the same stage."""
        compute = self.of(stage, *COMPUTE)
        self.chain(compute)
        for name in P2P:
            self.chain(self.of(stage, name))
        self._add_transfers(stage, compute)
        # The first forward of each chunk waits for the chunk's last gathering of parameters. A
        # gathering at the end of a step is for the next step, which begins after this step's end.
        gathers = [n for n in self.of(stage, ops.PARAMS_ALL_GATHER) if n not in self._late]
        forwards = self.of(stage, ops.FORWARD_COMPUTE)
        for chunk, gather in self._by_chunk(gathers).items():
            gated = [n for n in forwards if chunk in (ops.ABSENT, self._computed[n])]
            if gated:
                self.after[gated[0]].add(gather[-1])
        self._add_end_of_step(stage, compute)

    def _add_transfers(self, stage: int, compute: list[int]) -> None:
        """Add the dependencies between computations and their sends and receives."""
        for direction in DIRECTIONS:
            computes = self.of(stage, direction.compute)
            position = {node: i for i, node in enumerate(computes)}
            for receive, node in self._fed[direction, stage]:
                self.after[node].add(receive)
                if position[node] > 0:
                    self.after[receive].add(computes[position[node] - 1])
            for send, node in self._emptied[direction, stage]:
                self.after[send].add(node)
        # While the pipeline fills, the first backward transfers follow the forward before the last
        # forward.
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
        """Return the transfers of a type on a stage, each with its computation, in launch order."""
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
        """Return a map of the computations of a virtual stage to their transfers."""
        chunk = stage[1]
        return {node: transfer for transfer, node in matched if self._computed[node] == chunk}

    def _by_chunk(self, nodes: list[int]) -> dict[int, list[int]]:
        chunks: dict[int, list[int]] = {}
        for node in nodes:
            chunks.setdefault(self._chunk[node], []).append(node)
        return chunks

    def _add_end_of_step(self, stage: int, compute: list[int]) -> None:
        """Chain the operations at the end of a step, and the data-parallel collectives."""
        every = self.of(stage, ops.PARAMS_ALL_GATHER)
        late = [node for node in every if node in self._late]
        gathers = [node for node in every if node not in self._late]
        scatters = self.of(stage, ops.GRADS_REDUCE_SCATTER)
        reduces = self.of(stage, ops.SEPARATE_ALL_REDUCE)
        overlapped = bool(reduces)
        self.chain(self.of(stage, *DP_COLLECTIVES) if overlapped else [*gathers, *scatters, *late])
        ends: list[list[int]] = [compute[-1:], self.of(stage, ops.GC)]
        ends += [self.of(stage, ops.LAYERNORM_ALL_REDUCE), self.of(stage, ops.EMBEDDING_ALL_REDUCE)]
        ends += [reduces if overlapped else scatters]
        ends += [self.of(stage, ops.OPTIMIZER_CLIP), self.of(stage, ops.OPTIMIZER), late]
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
        """Yield (members, is communication, spans DP ranks) of groups; each node is in one."""
        groups: list[tuple[tuple[int, ...], bool]] = []
        for direction in DIRECTIONS:
            for sender, receiver in self._flow.links(direction):
                if sender[0] == receiver[0]:
                    continue
                sends = self._on(self._emptied[direction, sender[0]], sender)
                receives = self._on(self._fed[direction, receiver[0]], receiver)
                pairs = pair_up(list(sends), list(receives), self._microbatch)
                groups += [((sends[source], receives[target]), False) for source, target in pairs]
        for name, spans_dp in ((ops.EMBEDDING_ALL_REDUCE, False), (ops.OPTIMIZER_CLIP, True)):
            of_stages = [self.of(stage, name) for stage in range(self.layout.pp)]
            meeting = zip(*(nodes for nodes in of_stages if nodes), strict=False)
            groups += [(members, spans_dp) for members in meeting]
        grouped: set[int] = set()
        for members, across_dp in groups:
            if not grouped.isdisjoint(members):
                continue
            grouped.update(members)
            yield members, True, across_dp
        for (name, _), nodes in self._by_kind.items():
            for node in nodes:
                if node not in grouped:
                    yield (node,), name not in LOCAL, name in DP_COLLECTIVES

    def add_handovers(self) -> None:
        """Add direct dependencies between computations whose transfers are not recorded."""
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
                for before, node in pairs:
                    self.after[node].add(before)


# Number of graphs in the cache: a graph takes about half a kilobyte a node, so the cache takes 16
# MiB at most.
MOST_GRAPHS: Final = 16
MOST_NODES: Final = 1 << 11


class _Structure(NamedTuple):
    """Key of the cache: all properties of a layout from which its graph is derived."""

    op_names: tuple[str, ...]
    nodes: tuple[bytes, ...]
    launch_order: bytes  # of computations, and of DP collectives, on each stage
    late: frozenset[int]  # result of `gathers_at_end`
    ranks: tuple[int, int]
    routes: tuple[tuple[tuple[int, int], ...], ...]


_cached_graphs: OrderedDict[_Structure, Graph] = OrderedDict()
_lock: Final = Lock()


def graph_of(layout: Layout) -> Graph:
    """Return the dependency graph of a layout's steps, cached by structure.

    Raises
    ------
    UnanalyzableError
        See `build_graph`.
    """
    if len(layout.nodes) > MOST_NODES:
        return build_graph(layout)
    nodes = layout.nodes
    ordered = np.array(
        [(name in COMPUTE) + 2 * (name in DP_COLLECTIVES) for name in layout.op_names], np.int8
    )[nodes.op]
    chosen = ordered.nonzero()[0]
    order = chosen[np.lexsort((layout.launch[chosen], nodes.pp[chosen], ordered[chosen]))]
    columns = (nodes.op, nodes.pp, nodes.mb, nodes.mc)
    structure = _Structure(
        layout.op_names,
        tuple(column.tobytes() for column in columns),
        order.tobytes(),
        gathers_at_end(layout),
        (layout.dp, layout.pp),
        layout.routes,
    )
    with _lock:
        cached = _cached_graphs.get(structure)
        if cached is not None:
            _cached_graphs.move_to_end(structure)
            return cached
    graph = build_graph(layout)
    with _lock:
        _cached_graphs[structure] = graph
        if len(_cached_graphs) > MOST_GRAPHS:
            _cached_graphs.popitem(last=False)
    return graph

"""Operations of one step that follow one another, as a graph.

It describes one DP rank; the others, and all other steps of the same shape, share it. What follows
what is told by `app.analysis.replay.layout.dependencies`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.analysis.replay.layout.dense import MAX_NAMED_FAULTS, Layout
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.trace import model as ops
from app.errors import Fault, UnanalyzableError

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
    turn_ns: float = 0.0
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
    return replace(changed_graph, inside=graph.inside, turn_ns=graph.turn_ns)


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

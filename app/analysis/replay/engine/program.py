"""A graph prepared for replay, by either executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.layout.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A graph prepared for replay: what to read, what to write, what to forget."""

    # For each unit its members, for each member what it follows, whether the group spans the DP
    # ranks, and the nodes whose end nothing needs after it.
    units: tuple[tuple[tuple[int, ...], tuple[tuple[int, ...], ...], bool, tuple[int, ...]], ...]
    ends_last: frozenset[int]  # nodes that may end last
    # mapping of (node, what it follows) to float: as `Graph.lags_ns`
    lags_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # How steps follow one another where their stages do not begin them together.
    chain: Chain | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps that follow one another stage by stage."""

    stages: int
    # Stage of each node that begins a step: it follows the stage's last end in the step before.
    begins: Mapping[int, int]
    closes: Mapping[int, int]  # stage of each node that nothing of its stage follows
    turn_ns: float  # what regularly passes between two steps of a stage


def prepare(graph: Graph, stage: NDArray[np.int32], shortest_ns: FloatArray) -> Program:
    """Prepare a graph for replay.

    Parameters
    ----------
    stage : int32 array, shape (nodes,)
        The pipeline stage of each node.
    shortest_ns : float64 array, shape (nodes,)
        The shortest duration of each node in any variant. Where it is negative (clock noise), what
        the node follows may end after it and can be the step's last end.
    """
    ends_last = set(graph.last)
    last_use: dict[int, int] = {}
    for index, unit in enumerate(graph.units):
        for node in unit.members:
            last_use[node] = index
        for after in unit.after:
            for node in after:
                last_use[node] = index
    for unit in graph.units if (shortest_ns < 0).any() else ():
        for node, after in zip(unit.members, unit.after, strict=True):
            if shortest_ns[node] < 0:
                ends_last.update(after)
    finished: list[list[int]] = [[] for _ in graph.units]
    for node, index in last_use.items():
        finished[index].append(node)
    units = tuple(
        (unit.members, unit.after, unit.across_dp, tuple(nodes))
        for unit, nodes in zip(graph.units, finished, strict=True)
    )
    chain = _chain(graph, stage.tolist()) if graph.chained else None
    return Program(units, frozenset(ends_last), graph.lags_ns, chain)


def _chain(graph: Graph, stage: Sequence[int]) -> Chain:
    follows = [
        (node, after)
        for unit in graph.units
        for node, after in zip(unit.members, unit.after, strict=True)
    ]
    followed = {
        before for node, after in follows for before in after if stage[before] == stage[node]
    }
    return Chain(
        stages=max(stage) + 1,
        # what follows nothing of its own stage is held up by the stage's last step all the same
        begins={
            node: stage[node]
            for node, after in follows
            if not any(stage[before] == stage[node] for before in after)
        },
        closes={node: stage[node] for node, _ in follows if node not in followed},
        turn_ns=graph.turn_ns,
    )

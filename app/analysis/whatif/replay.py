"""Replay of a step's operations under changed durations, many variants at once.

An operation is launched when the last operation that it depends on has ended. A computation ends
after its duration; a communication when the last member of its group was launched plus its own
transfer duration (section 3.2 of the paper).

The kernel walks the graph once and handles all variants, steps and DP ranks of a node in one NumPy
call. Only ends that are still needed are alive, so the working set stays in the cache.
`app.analysis.whatif.reference` is its slow twin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from app.analysis.whatif.graph import Graph, Unit
from app.analysis.whatif.layout import FloatArray

# [lane or partner, variant, step, DP rank]
_STEP_START: FloatArray = np.zeros((1, 1, 1, 1))

Couple = Callable[[FloatArray], FloatArray]


class Variants(Protocol):
    """Durations of one or several variants of the same steps."""

    def end(self, node: int, begin: FloatArray) -> FloatArray:
        """Return when the node ends, given when it begins to compute or to transfer."""
        ...


@runtime_checkable
class LateVariants(Variants, Protocol):
    """Variants whose operations may be launched late."""

    def launch(self, node: int, ready: FloatArray, *, shared: bool) -> FloatArray:
        """Return when the node is launched, given when what it depends on has ended.

        `ready` may be changed in place unless it is shared.
        """
        ...


def across_dp(launch: FloatArray) -> FloatArray:
    """Return the latest launch over the DP ranks, which are the last axis."""
    return launch.max(axis=-1, keepdims=True)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A graph prepared for replay: what to read, what to write, what to forget."""

    graph: Graph
    # for each unit the nodes whose end nobody needs after it
    finished: tuple[tuple[int, ...], ...]
    ends_last: frozenset[int]
    # for each node the place of its unit
    place: NDArray[np.int64]


def prepare(graph: Graph, shortest_ns: FloatArray) -> Program:
    """Prepare a graph for replay.

    Parameters
    ----------
    graph : Graph
    shortest_ns : float64 array, shape (nodes,)
        The shortest duration of each node in any variant. Where it is negative (clock noise), what
        the node follows may end after it and can be the step's last end.
    """
    ends_last = set(graph.last)
    last_use: dict[int, int] = {}
    for index, unit in enumerate(graph.units):
        for node, after in zip(unit.members, unit.after, strict=True):
            for other in after:
                last_use[other] = index
                if shortest_ns[node] < 0:
                    ends_last.add(other)
    finished: list[list[int]] = [[] for _ in graph.units]
    for node, index in last_use.items():
        finished[index].append(node)
    place = np.empty(len(shortest_ns), dtype=np.int64)
    for index, unit in enumerate(graph.units):
        place[list(unit.members)] = index
    return Program(graph, tuple(tuple(nodes) for nodes in finished), frozenset(ends_last), place)


def replay(
    program: Program,
    variants: Variants | LateVariants,
    couple: Couple = across_dp,
    observe: Callable[[int, FloatArray, FloatArray], None] | None = None,
) -> FloatArray:
    """Execute the steps and return when they end.

    Parameters
    ----------
    program : Program
    variants : Variants or LateVariants
    couple : callable
        Joins the launches of the DP ranks of a collective.
    observe : callable, optional
        Is given (node, launch, end) of each node.

    Returns
    -------
    float64 array
        Latest end of each lane, ns since the step's start; broadcasts against ``[lane or partner,
        variant, step, DP rank]``.
    """
    ends: dict[int, FloatArray] = {}
    launch_of = variants.launch if isinstance(variants, LateVariants) else None
    step_end = _STEP_START
    for unit, finished in zip(program.graph.units, program.finished, strict=True):
        launches = _launches(unit, ends, launch_of)
        begin = launches[0]
        for launch in launches[1:]:
            begin = np.maximum(begin, launch)
        if unit.across_dp:
            begin = couple(begin)
        for node, launch in zip(unit.members, launches, strict=True):
            end = ends[node] = variants.end(node, begin)
            if node in program.ends_last:
                step_end = np.maximum(step_end, end)
            if observe is not None:
                observe(node, launch, end)
        for node in finished:
            del ends[node]
    return step_end


def _launches(
    unit: Unit, ends: Mapping[int, FloatArray], launch_of: Callable[..., FloatArray] | None
) -> list[FloatArray]:
    """Return when each member of a unit is launched."""
    launches = []
    for node, after in zip(unit.members, unit.after, strict=True):
        ready = ends[after[0]] if after else _STEP_START
        for other in after[1:]:
            ready = np.maximum(ready, ends[other])
        if launch_of is not None:
            is_new = len(after) > 1
            ready = launch_of(node, ready, shared=not is_new)
        launches.append(ready)
    return launches

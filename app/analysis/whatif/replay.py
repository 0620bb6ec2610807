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

from app.analysis.whatif.graph import Graph
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
    latest: FloatArray = launch.max(axis=-1, keepdims=True)
    return latest


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A graph prepared for replay: what to read, what to write, what to forget.

    Parameters
    ----------
    units : tuple
        For each unit its members, for each member what it follows, whether the group spans the DP
        ranks, and the nodes whose end nobody needs after it.
    ends_last : frozenset of int
        Nodes that may end last.
    place : int64 array, shape (nodes,)
        Index of each node's unit.
    """

    units: tuple[tuple[tuple[int, ...], tuple[tuple[int, ...], ...], bool, tuple[int, ...]], ...]
    ends_last: frozenset[int]
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
    place = np.empty(len(shortest_ns), dtype=np.int64)
    is_negative = (shortest_ns < 0).tolist()
    for index, unit in enumerate(graph.units):
        place[list(unit.members)] = index
        for node, after in zip(unit.members, unit.after, strict=True):
            for other in after:
                last_use[other] = index
            if is_negative[node]:
                ends_last.update(after)
    finished: list[list[int]] = [[] for _ in graph.units]
    for node, index in last_use.items():
        finished[index].append(node)
    units = tuple(
        (unit.members, unit.after, unit.across_dp, tuple(nodes))
        for unit, nodes in zip(graph.units, finished, strict=True)
    )
    return Program(units, frozenset(ends_last), place)


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
    # For short steps this loop is what replay costs, so names are bound once.
    ends: dict[int, FloatArray] = {}
    end_of, maximum, ends_last = variants.end, np.maximum, program.ends_last
    launch_of = variants.launch if isinstance(variants, LateVariants) else None
    step_end = _STEP_START
    for members, afters, spans_dp, finished in program.units:
        launches = []
        for node, after in zip(members, afters, strict=True):
            ready = _latest(after, ends)
            if launch_of is not None:
                is_new = len(after) > 1
                ready = launch_of(node, ready, shared=not is_new)
            launches.append(ready)
        begin = launches[0]
        for launch in launches[1:]:
            begin = maximum(begin, launch)
        if spans_dp:
            begin = couple(begin)
        for node, launch in zip(members, launches, strict=True):
            end = ends[node] = end_of(node, begin)
            if node in ends_last:
                step_end = maximum(step_end, end)
            if observe is not None:
                observe(node, launch, end)
        for node in finished:
            del ends[node]
    return step_end


def _latest(after: tuple[int, ...], ends: Mapping[int, FloatArray]) -> FloatArray:
    """Return the latest end of what a node follows; the step's start where that is nothing."""
    if not after:
        return _STEP_START
    latest = ends[after[0]]
    for other in after[1:]:
        latest = np.maximum(latest, ends[other])
    return latest

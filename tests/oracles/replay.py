"""A readable implementation of the replay and its preparation, with which the kernels are compared.

It handles one step and one operation at a time, with dictionaries instead of arrays. Only tests use
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from app.analysis.replay.engine.simulator import FAULT_NS
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependency_graph import Graph, Unit
from app.analysis.trace.model import GC

# (node, DP rank)
Operation = tuple[int, int]


def transfer_durations(layout: Layout, graph: Graph, step: int) -> dict[Operation, float]:
    """Return the duration of each operation of the step at index `step` without waiting, ns."""
    result = {}
    for unit in graph.units:
        for dp in range(layout.dp):
            for node in unit.members:
                start = layout.start_ns[node, step, dp]
                duration = layout.duration_ns[node, step, dp]
                if unit.communication:
                    latest = max(layout.start_ns[n, step, d] for n, d in _group(unit, dp, layout))
                    transfer = start + duration - latest
                    duration = 0.0 if transfer < FAULT_NS else transfer
                result[node, dp] = float(duration)
    return result


def launch_delays(layout: Layout, graph: Graph, step: int) -> dict[Operation, float]:
    """Return the launch delay of each operation of the step at index `step`, in ns."""
    result = {}
    for unit in graph.units:
        for node, after in zip(unit.members, unit.after, strict=True):
            for dp in range(layout.dp):
                ready = max((sum(_recorded(layout, (n, dp), step)) for n in after), default=0.0)
                delay = _recorded(layout, (node, dp), step)[0] - ready
                result[node, dp] = 0.0 if delay <= FAULT_NS else delay
    return result


def replay_step(
    layout: Layout,
    graph: Graph,
    durations: Mapping[Operation, float],
    delays: Mapping[Operation, float] | None = None,
) -> float:
    """Return the end of the last operation of a step, in ns after the step's start.

    Parameters
    ----------
    durations : mapping of (node, DP rank) to ns
        Computation, or transfer, without waiting.
    delays : mapping of (node, DP rank) to ns, optional
        Launch delays; 0 where absent.
    """
    ends: dict[Operation, float] = {}
    for unit in graph.units:
        launches = {}
        for dp in range(layout.dp):
            for node, after in zip(unit.members, unit.after, strict=True):
                ready = max((ends[other, dp] for other in after), default=0.0)
                launches[node, dp] = ready + (delays[node, dp] if delays else 0.0)
        for operation in launches:
            begin = max(launches[peer] for peer in _group(unit, operation[1], layout))
            ends[operation] = begin + durations[operation]
    return max(ends.values())


def _group(unit: Unit, dp: int, layout: Layout) -> list[Operation]:
    """Return the members that start moving data together with the unit's members on a DP rank."""
    ranks = range(layout.dp) if unit.across_dp else [dp]
    return [(node, rank) for node in unit.members for rank in ranks]


def recreated_times(
    layout: Layout, graph: Graph, step: int
) -> dict[Operation, tuple[float, float]]:
    """Return start and duration of each operation of a step in ns, with re-created operations.

    For sessions of one layout, whose own medians replace missing operations.
    """
    assert layout.missing is not None
    usual = _usual_durations(layout, graph)
    times: dict[Operation, tuple[float, float]] = {}
    for unit in graph.units:
        for node, after in zip(unit.members, unit.after, strict=True):
            for dp in range(layout.dp):
                if not layout.missing[node, step, dp]:
                    times[node, dp] = _recorded(layout, (node, dp), step)
                    continue
                ready = max((sum(times[other, dp]) for other in after), default=0.0)
                name = layout.op_names[layout.nodes.op[node]]
                times[node, dp] = max(ready, 0.0), 0.0 if name == GC else usual[node, dp]
        if unit.communication:
            for dp in [0] if unit.across_dp else range(layout.dp):
                _transfer_anew(layout, _group(unit, dp, layout), step, usual, times)
    begin = min(start for start, _ in times.values())
    return {operation: (start - begin, length) for operation, (start, length) in times.items()}


def _transfer_anew(
    layout: Layout,
    group: list[Operation],
    step: int,
    usual: Mapping[Operation, float],
    times: dict[Operation, tuple[float, float]],
) -> None:
    """Re-create a missing communication: it ends a transfer duration after the last launch."""
    assert layout.missing is not None
    lost = [(node, dp) for node, dp in group if layout.missing[node, step, dp]]
    # A re-created launch is only an estimate, so it is at most the recorded end of another member.
    bound = min((sum(times[member]) for member in group if member not in lost), default=math.inf)
    for member in lost:
        times[member] = min(times[member][0], bound), 0.0
    latest = max(times[member][0] for member in group)
    for node, dp in lost:
        transfer = usual[node, dp]
        if layout.free is not None and layout.free[node] and math.isfinite(bound):
            transfer = bound - latest
        start = times[node, dp][0]
        times[node, dp] = start, latest + transfer - start


def _recorded(layout: Layout, operation: Operation, step: int) -> tuple[float, float]:
    node, dp = operation
    return float(layout.start_ns[node, step, dp]), float(layout.duration_ns[node, step, dp])


def _usual_durations(layout: Layout, graph: Graph) -> dict[Operation, float]:
    """Return the median duration without waiting of each node's type on each worker.

    A worker without any gets the median of its stage, or else of the stages' workers.
    """
    assert layout.missing is not None
    found: dict[tuple[int, int, int], list[float]] = {}
    for unit in graph.units:
        for step in range(len(layout.steps)):
            for dp in range(layout.dp):
                group = _group(unit, dp, layout)
                if any(layout.missing[node, step, rank] for node, rank in group):
                    continue
                latest = max(_recorded(layout, member, step)[0] for member in group)
                for node in unit.members:
                    start, duration = _recorded(layout, (node, dp), step)
                    waiting = latest - start if unit.communication else 0.0
                    kind = (int(layout.nodes.op[node]), int(layout.nodes.pp[node]), dp)
                    found.setdefault(kind, []).append(duration - waiting)
    usual: dict[Operation, float] = {}
    for node, (op, stage) in enumerate(
        zip(layout.nodes.op.tolist(), layout.nodes.pp.tolist(), strict=True)
    ):
        for dp in range(layout.dp):
            usual[node, dp] = _first_known(found, op, stage, dp, layout)
    return usual


def _first_known(
    found: Mapping[tuple[int, int, int], list[float]],
    op: int,
    stage: int,
    dp: int,
    layout: Layout,
) -> float:
    if own := found.get((op, stage, dp)):
        return median(own)
    everyone = range(layout.dp)
    peers = [value for rank in everyone for value in found.get((op, stage, rank), ())]
    if peers:
        return median(peers)
    medians = []
    for pp in range(layout.pp):
        of_stage = [value for rank in everyone for value in found.get((op, pp, rank), ())]
        medians += [median(found.get((op, pp, rank), of_stage)) for rank in everyone if of_stage]
    return median(medians) if medians else 0.0

"""The replay and its preparation once more, slow and readable: what the kernels are held against.

One step at a time, one operation at a time, dictionaries instead of arrays. Tests compare; nothing
else uses it.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.analysis.whatif.durations import FAULT_NS
from app.analysis.whatif.graph import Graph, Unit
from app.analysis.whatif.layout import Layout

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


def replay_step(
    layout: Layout,
    graph: Graph,
    durations: Mapping[Operation, float],
    delays: Mapping[Operation, float] | None = None,
) -> float:
    """Return when the last operation of a step ends, ns after its start.

    Parameters
    ----------
    durations : mapping of (node, DP rank) to ns
        Computation, or transfer, without waiting.
    delays : mapping of (node, DP rank) to ns, optional
        Launch delays; none where not given.
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
    """Return who starts moving data together with the unit's members on a DP rank."""
    ranks = range(layout.dp) if unit.across_dp else [dp]
    return [(node, rank) for node in unit.members for rank in ranks]

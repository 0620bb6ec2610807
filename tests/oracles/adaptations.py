"""Readable implementations of the adaptations, with which the program's are compared.

They handle one lane and one operation at a time, with plain numbers instead of arrays. Only tests
use them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, pairwise
from statistics import mean, median

import numpy as np

from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependency_graph import Graph, Unit
from app.analysis.trace import model as ops
from app.analysis.trace.model import Trace
from tests.factories import select

# (node, DP rank)
Operation = tuple[int, int]

COMPUTE = {ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE}
TRANSFERS = {ops.FORWARD_SEND, ops.FORWARD_RECV, ops.BACKWARD_SEND, ops.BACKWARD_RECV}


def name_of(layout: Layout, node: int) -> str:
    return str(layout.op_names[layout.nodes.op[node]])


def chained_step_times(
    layout: Layout, graph: Graph, durations: Sequence[Mapping[Operation, float]]
) -> list[float]:
    """Replay steps in which a stage begins after the end of its previous step, with regular delays.

    Returns the times between the ends of successive steps, the first from 0.
    """
    ended: dict[tuple[int, int], float] = {}
    step_ends = [0.0]
    for of_step in durations:
        ends: dict[Operation, float] = {}
        for unit in graph.units:
            launches = {
                (node, dp): _ready(layout, graph, (node, dp), after, (ends, ended))
                for node, after in zip(unit.members, unit.after, strict=True)
                for dp in range(layout.dp)
            }
            for node, dp in launches:
                begin = max(launches[peer] for peer in _group(unit, dp, layout))
                ends[node, dp] = begin + of_step[node, dp]
        now = dict(ended)
        for (node, dp), end in ends.items():
            worker = int(layout.nodes.pp[node]), dp
            now[worker] = max(now.get(worker, 0.0), end)
        ended = now
        step_ends.append(max(ends.values()))
    return [b - a for a, b in pairwise(step_ends)]


def _ready(
    layout: Layout,
    graph: Graph,
    operation: Operation,
    after: tuple[int, ...],
    known: tuple[Mapping[Operation, float], Mapping[tuple[int, int], float]],
) -> float:
    ends, ended = known
    node, dp = operation
    stage = layout.nodes.pp[node]
    times = [ends[other, dp] + graph.lag_ns(node, other) for other in after]
    if graph.chained and all(layout.nodes.pp[other] != stage for other in after):
        times.append(ended.get((int(stage), dp), 0.0))
    return max(times, default=0.0)


def _group(unit: Unit, dp: int, layout: Layout) -> list[Operation]:
    ranks = range(layout.dp) if unit.across_dp else [dp]
    return [(node, rank) for node in unit.members for rank in ranks]


def blocking_types(layout: Layout, posted: Sequence[Sequence[int]]) -> set[str]:
    """Return the types of a stage during whose operations nothing later is launched.

    `posted` are the nodes of the stage that are launched together, in the order of launch.
    """
    shares: dict[str, list[float]] = {}
    for number, group in enumerate(posted):
        later = [node for other in posted[number + 1 :] for node in other]
        for node in group:
            clear = [
                all(
                    layout.start_ns[other, step, dp]
                    >= layout.start_ns[node, step, dp] + layout.duration_ns[node, step, dp]
                    for other in later
                )
                for step in range(len(layout.steps))
                for dp in range(layout.dp)
            ]
            shares.setdefault(name_of(layout, node), []).append(mean(clear))
    return {name for name, values in shares.items() if mean(values) >= 0.98}


def holding_up_types(layout: Layout, graph: Graph, posted: Sequence[Sequence[int]]) -> set[str]:
    """Return the types of a stage that other launches wait for, though these could be earlier.

    They do so in every second step at least.
    """
    ends = layout.start_ns + layout.duration_ns
    follows = {
        node: after
        for unit in graph.units
        for node, after in zip(unit.members, unit.after, strict=True)
    }
    times: dict[str, int] = {}
    for number, group in enumerate(posted):
        later = [node for other in posted[number + 1 :] for node in other if follows[node]]
        for node in group:
            for step, dp in np.ndindex(*ends.shape[1:]):
                ready = [
                    max(ends[before, step, dp] for before in follows[other]) for other in later
                ]
                name = name_of(layout, node)
                times[name] = times.get(name, 0) + any(
                    moment < ends[node, step, dp] for moment in ready
                )
    lanes = ends[0].size
    return {name for name, count in times.items() if count >= lanes / 2}


def containing_computation(layout: Layout, node: int, step: int, dp: int) -> int | None:
    """Return the recorded computation of the same rank that contains an operation, if any."""
    if layout.missing is not None and layout.missing[node, step, dp]:
        return None
    start = layout.start_ns[node, step, dp]
    end = start + layout.duration_ns[node, step, dp]
    for other in range(len(layout.nodes)):
        if name_of(layout, other) not in COMPUTE:
            continue
        if layout.nodes.pp[other] != layout.nodes.pp[node]:
            continue
        begin = layout.start_ns[other, step, dp]
        length = layout.duration_ns[other, step, dp]
        longer = length > layout.duration_ns[node, step, dp]
        if begin <= start + 1000 and end <= begin + length + 1000 and longer:
            return other
    return None


def cheapest_choice(costs: Sequence[Sequence[float]]) -> float:
    """Return the least cost of an assignment of a column to each row, in ascending order."""
    return min(
        sum(costs[row][column] for row, column in enumerate(columns))
        for columns in combinations(range(len(costs[0])), len(costs))
    )


def usual_delay(late: Sequence[float]) -> float:
    """Return the mean, with stalls beyond Tukey's outer fence set to the fence; at least 0."""
    ordered = sorted(late)

    def quantile(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    fence = quantile(0.75) + 3 * (quantile(0.75) - quantile(0.25))
    return max(0.0, mean(min(value, fence) for value in ordered))


def arrival(begin: float, end: float, computed: Sequence[float]) -> float:
    """Return the time in ns at which the data of an awaited receive has arrived.

    `begin` is when both sides were ready, `computed` are the ends of the rank's computations.
    """
    busy = max((value for value in computed if value <= end), default=begin)
    return end - max(busy - begin, 0.0)


def paused(layout: Layout, collections: Sequence[int], step: int, dp: int) -> dict[int, float]:
    """Return the pause inside each computation of a lane."""
    found: dict[int, float] = {}
    for node in collections:
        host = containing_computation(layout, node, step, dp)
        if host is not None and layout.duration_ns[node, step, dp] > 0:
            found[host] = found.get(host, 0.0) + float(layout.duration_ns[node, step, dp])
    return found


def routes_of_v(pp: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the virtual stages of a V in the order of a forward pass."""
    down = [(stage, 0) for stage in range(pp)]
    return (tuple(down + [(stage, 1) for stage in reversed(range(pp))]),)


def routes_of_two_ways(pp: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the orders of microbatches that enter at the first stage, and at the last one."""
    (v,) = routes_of_v(pp)
    return v[:pp], v[pp:]


def without_types(trace: Trace, names: Collection[str]) -> Trace:
    """Return the trace as if operations of the named types had not been recorded."""
    kept = [row for row in range(len(trace)) if trace.op_names[trace.op[row]] not in names]
    return select(trace, np.array(kept))


def taken_out(
    layout: Layout, waited: Mapping[int, Sequence[int]], step: int, dp: int
) -> dict[int, float]:
    """Return the durations of a lane's computations without the collectives inside them.

    `waited` are the collectives that each computation waits for.
    """
    return {
        host: float(layout.duration_ns[host, step, dp])
        - sum(float(layout.duration_ns[node, step, dp]) for node in inside)
        for host, inside in waited.items()
    }


def overlaps(layout: Layout) -> list[float]:
    """Return by how much each step ends after the begin of the next one, in ns."""
    found = []
    for step in range(len(layout.steps) - 1):
        ends = [
            layout.start_ns[node, step, dp] + layout.duration_ns[node, step, dp]
            for node in range(len(layout.nodes))
            for dp in range(layout.dp)
        ]
        found.append(float(max(ends) - (layout.begin_ns[step + 1] - layout.begin_ns[step])))
    return found


# (stage, op type of the computation, number of collectives before it in the same computation)
Place = tuple[int, str, int]


def waited_for(layout: Layout, hosts: Mapping[int, int], places: Mapping[int, Place]) -> set[Place]:
    """Return the places of collectives inside computations that wait for them.

    These are the collectives that take about as long as the shortest of their type. If some passes
    contain no collective, it is the set of the first four places that brings the other passes
    nearest to them, if it does so by a quarter of a pass.
    """
    found: set[Place] = set()
    for stage, name in {place[:2] for place in places.values()}:
        alike = sorted({place for place in places.values() if place[:2] == (stage, name)})
        usual = {place for place in alike if _is_short(layout, places, place)}
        ways = [set(c) for n in range(5) for c in combinations(alike[:4], n)]
        nearest = min(ways, key=lambda way: _distance(layout, hosts, places, (stage, name), way))
        gained = _distance(layout, hosts, places, (stage, name), usual) - _distance(
            layout, hosts, places, (stage, name), nearest
        )
        found |= nearest if gained > 0.25 else usual
    return found


def _is_short(layout: Layout, places: Mapping[int, Place], place: Place) -> bool:
    nodes = [node for node, other in places.items() if other == place]
    return any(
        _usual_transfer(layout, places, place, op)
        <= 3 * max(0.0, min(_usual_transfer(layout, places, p, op) for p in set(places.values())))
        for op in {int(layout.nodes.op[node]) for node in nodes}
    )


def _usual_transfer(layout: Layout, places: Mapping[int, Place], place: Place, op: int) -> float:
    """Return the median over nodes of the median over lanes; infinity where there is none."""
    medians = []
    for node, other in places.items():
        if other != place or layout.nodes.op[node] != op:
            continue
        transfers = []
        for step in range(len(layout.steps)):
            begins = [float(layout.start_ns[node, step, dp]) for dp in range(layout.dp)]
            for dp in range(layout.dp):
                end = begins[dp] + float(layout.duration_ns[node, step, dp])
                transfers.append(end - max(begins))
        medians.append(median(transfers))
    return median(medians) if medians else float("inf")


def _distance(
    layout: Layout,
    hosts: Mapping[int, int],
    places: Mapping[int, Place],
    kind: tuple[int, str],
    waited: Collection[Place],
) -> float:
    """Return the difference between passes with and without collectives, on the worst DP rank."""
    passes = [
        node
        for node in range(len(layout.nodes))
        if (int(layout.nodes.pp[node]), name_of(layout, node)) == kind
    ]
    worst = 0.0
    for chunk in {int(layout.nodes.mc[node]) for node in passes}:
        for dp in range(layout.dp):
            bare: list[float] = []
            held: list[float] = []
            for node in (node for node in passes if layout.nodes.mc[node] == chunk):
                inside = [n for n, host in hosts.items() if host == node]
                out = [n for n in inside if places[n] in waited]
                for step in range(len(layout.steps)):
                    own = float(layout.duration_ns[node, step, dp])
                    own -= sum(float(layout.duration_ns[n, step, dp]) for n in out)
                    (held if inside else bare).append(own)
            if bare and held:
                usual = max(median(bare), 1.0)
                worst = max(worst, abs(median(held) - usual) / usual)
    return worst

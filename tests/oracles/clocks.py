"""A readable implementation of the alignment of clocks, with which `alignment` is compared.

It handles one match, one step and one clock at a time, with dictionaries instead of tables. Only
tests use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

from app.analysis.replay.clock_alignment import (
    BOUNDARY_NS,
    CORRECTED_NS,
    CORRECTED_RESIDUALS,
    FEW_STEPS_NS,
    LEAST_STEPS,
    WINDOW_STEPS,
    clocks_apart_ns,
)
from app.analysis.replay.clock_steps import MATCHES
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, Graph
from app.analysis.replay.robust_statistics import MAD_TO_SD
from app.analysis.trace.model import OPTIMIZER_CLIP
from tests.oracles.fits import (
    Clock,
    Pair,
    connected,
    potentials,
    robust_line,
    spread_of,
)

# By step over all layouts: by how much each end of the first clock is ahead of the second, ns.
Ahead = dict[int, list[float]]

Item = TypeVar("Item")

COLLECTIVES = "collectives"
BOUNDARIES: Clock = ("boundaries", 0)


@dataclass(frozen=True, slots=True)
class ReadClocks:
    """The values of `alignment.Clocks` by clock, and each clock's offset and rate in each step."""

    aligned: bool
    offset_ns: dict[Clock, float]
    residual_ns: dict[Clock, float]
    drift_ppm: dict[Clock, float]
    of_step: list[dict[Clock, tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Offsets and rates of a window of steps."""

    middle_ns: float
    offset_ns: Mapping[Clock, float]
    rate: Mapping[Clock, float]


def read_clocks(
    layouts: Sequence[Layout], graphs: Sequence[Graph], *, absolute: bool
) -> ReadClocks:
    """Return the differences of the clocks of all ranks, like `alignment.align`."""
    ranks: list[Clock] = [(d, p) for d in range(layouts[0].dp) for p in range(layouts[0].pp)]
    begins = [float(begin) for layout in layouts for begin in layout.begin_ns]
    matches = matched_ends(layouts, graphs)
    part = connected(ranks, matches)
    apart = sorted({part[rank] for rank in ranks})
    if len(apart) > 1:
        matches |= boundaries(layouts, apart)
    few = len(begins) < LEAST_STEPS
    windows = windows_of(begins) if absolute else [list(range(len(begins)))]
    fitted: dict[int, Fitted] = {}
    for window in windows:
        fit = fit_window(window, begins, matches, absolute=absolute)
        fitted |= dict.fromkeys(window, fit)

    def offset(clock: Clock, step: int) -> float:
        fit = fitted[step]
        since = begins[step] - fit.middle_ns
        return fit.offset_ns.get(clock, 0.0) + fit.rate.get(clock, 0.0) * since

    within, of_boundary = residuals_of(matches, offset)
    residual = {
        rank: max(within.get(rank, 0.0), of_boundary.get(part[rank], 0.0)) for rank in ranks
    }
    of_window = [fitted[window[0]] for window in windows]
    furthest = {
        rank: max((fit.offset_ns.get(rank, 0.0) for fit in of_window), key=abs) for rank in ranks
    }
    wrong = any(
        beyond_peers(fit, rank, part) > max(CORRECTED_NS, CORRECTED_RESIDUALS * within.get(rank, 0))
        for fit in of_window
        for rank in ranks
    )
    if few:
        wrong &= any(
            clocks_apart_ns(layout, graph)
            > max(FEW_STEPS_NS, CORRECTED_RESIDUALS * max(residual.values()))
            for layout, graph in zip(layouts, graphs, strict=True)
        )
    elif len(apart) > 1:
        wrong |= any(
            abs(furthest[rank]) > max(BOUNDARY_NS, CORRECTED_RESIDUALS * residual[rank])
            for rank in ranks
        )
    return ReadClocks(
        aligned=wrong,
        offset_ns=furthest,
        residual_ns=residual,
        drift_ppm={r: 1e6 * median(fit.rate.get(r, 0.0) for fit in of_window) for r in ranks},
        of_step=[
            {rank: (offset(rank, step), fitted[step].rate.get(rank, 0.0)) for rank in ranks}
            for step in range(len(begins))
        ],
    )


def residuals_of(
    matches: Mapping[Pair, Ahead], offset: Callable[[Clock, int], float]
) -> tuple[dict[Clock, float], dict[Clock, float]]:
    """Return the residuals of ends and step boundaries after the offsets: medians, by clock."""
    left: dict[Clock, list[float]] = {}
    of_boundary: dict[Clock, float] = {}
    for (one, other), ahead in matches.items():
        middles = {step: median(values) for step, values in ahead.items()}
        off = [abs(m - offset(one, step) + offset(other, step)) for step, m in middles.items()]
        spreads = [spread_of(values) for values in ahead.values()]
        residual = MAD_TO_SD * math.hypot(median(off), median(spreads))
        if other == BOUNDARIES:
            of_boundary[one] = residual
        else:
            for clock in (one, other):
                left.setdefault(clock, []).append(residual)
    return {clock: median(values) for clock, values in left.items()}, of_boundary


def beyond_peers(fit: Fitted, rank: Clock, part: Mapping[Clock, Clock]) -> float:
    """Return the difference of a rank's clock from the median of the clocks connected with it."""
    peers = [
        fit.offset_ns.get(peer, 0.0)
        for peer, first in part.items()
        if first == part[rank] and not isinstance(peer[0], str)
    ]
    return abs(fit.offset_ns.get(rank, 0.0) - median(peers))


def corrected_starts(layouts: Sequence[Layout], clocks: ReadClocks) -> list[FloatArray]:
    """Return the starts of each layout, relative to their step's first, on a common clock."""
    corrected = []
    of_step = iter(clocks.of_step)
    for layout in layouts:
        start = np.zeros_like(layout.start_ns)
        for step in range(len(layout.steps)):
            shown = next(of_step)
            there = []
            for node, stage in enumerate(layout.nodes.pp.tolist()):
                for dp in range(layout.dp):
                    read = float(layout.start_ns[node, step, dp])
                    offset, rate = shown[dp, stage]
                    start[node, step, dp] = read - offset - rate * read
                    if layout.missing is None or not layout.missing[node, step, dp]:
                        there.append(start[node, step, dp])
            start[:, step] -= min(there)
        corrected.append(start)
    return corrected


# ---- what is compared ---------------------------------------------------------------------------


def matched_ends(layouts: Sequence[Layout], graphs: Sequence[Graph]) -> dict[Pair, Ahead]:
    """Return the differences between the ends of operations that end together."""
    matches: dict[Pair, Ahead] = {}
    first = 0
    for layout, graph in zip(layouts, graphs, strict=True):
        pairs, collectives = ending_together(layout, graph)
        for step in range(len(layout.steps)):
            for dp in range(layout.dp):
                for (lower, higher), found in pairs.items():
                    apart = [
                        end_of(layout, one, step, dp) - end_of(layout, other, step, dp)
                        for one, other in chosen(found)
                    ]
                    note(matches, ((dp, lower), (dp, higher)), first + step, apart)
            if layout.dp == 1:
                continue
            for stage, nodes in collectives.items():
                apart_of: dict[int, list[float]] = {dp: [] for dp in range(layout.dp)}
                for node in chosen(nodes):
                    ends = {dp: end_of(layout, node, step, dp) for dp in range(layout.dp)}
                    known = [end for end in ends.values() if not math.isnan(end)]
                    for dp, end in ends.items():
                        apart_of[dp].append(end - median(known) if known else math.nan)
                for dp, apart in apart_of.items():
                    note(matches, ((dp, stage), (COLLECTIVES, stage)), first + step, apart)
        first += len(layout.steps)
    return matches


def ending_together(
    layout: Layout, graph: Graph
) -> tuple[dict[tuple[int, int], list[tuple[int, int]]], dict[int, list[int]]]:
    """Return transfers between two stages, by stages, and collectives of DP ranks, by stage."""
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    collectives: dict[int, list[int]] = {}
    for unit in graph.units:
        by_stage = sorted((int(layout.nodes.pp[node]), node) for node in unit.members)
        names = {layout.op_names[layout.nodes.op[node]] for node in unit.members}
        stages = [stage for stage, _ in by_stage]
        nodes = [node for _, node in by_stage]
        free = layout.free is not None and layout.free[nodes].any()
        if len(nodes) == 1 and names <= DP_COLLECTIVES:
            collectives.setdefault(stages[0], []).append(nodes[0])
        elif len(set(stages)) > 1 and not unit.across_dp and not free:
            pairs.setdefault((stages[0], stages[1]), []).append((nodes[0], nodes[1]))
    return pairs, collectives


def chosen(found: Sequence[Item]) -> list[Item]:
    """Return up to `MATCHES` of them, evenly spread from the first to the last."""
    if len(found) <= MATCHES:
        return list(found)
    return [found[i * (len(found) - 1) // (MATCHES - 1)] for i in range(MATCHES)]


def end_of(layout: Layout, node: int, step: int, dp: int) -> float:
    """Return the recorded end, NaN where it is missing."""
    if layout.missing is not None and layout.missing[node, step, dp]:
        return math.nan
    return float(layout.start_ns[node, step, dp] + layout.duration_ns[node, step, dp])


def note(matches: dict[Pair, Ahead], pair: Pair, step: int, apart: Iterable[float]) -> None:
    """Add the differences of a pair in a step."""
    known = [value for value in apart if not math.isnan(value)]
    if known:
        matches.setdefault(pair, {})[step] = known


def boundaries(layouts: Sequence[Layout], firsts: Sequence[Clock]) -> dict[Pair, Ahead]:
    """Return by how much unconnected parts reach step boundaries before or after the others."""
    matches: dict[Pair, Ahead] = {}
    one_stage = len({stage for _, stage in firsts}) == 1
    number = 0
    for layout in layouts:
        for step in range(len(layout.steps)):
            reached = {
                clock: boundary(layout, step, clock, one_stage=one_stage) for clock in firsts
            }
            known = [mark for mark in reached.values() if not math.isnan(mark)]
            for clock, mark in reached.items():
                note(matches, (clock, BOUNDARIES), number, [mark - median(known or [0.0])])
            number += 1
    return matches


def boundary(layout: Layout, step: int, clock: Clock, *, one_stage: bool) -> float:
    """Return the end of gradient clipping; else a step's begin, or its end if there are stages."""
    dp, stage = int(clock[0]), clock[1]
    nodes = [node for node, pp in enumerate(layout.nodes.pp.tolist()) if pp == stage]
    clips = [n for n in nodes if layout.op_names[layout.nodes.op[n]] == OPTIMIZER_CLIP]
    there = [n for n in clips or nodes if not math.isnan(end_of(layout, n, step, dp))]
    if not there:
        return math.nan
    if not clips and one_stage:
        return min(float(layout.start_ns[n, step, dp]) for n in there)
    return max(end_of(layout, n, step, dp) for n in there)


# ---- what follows from it -----------------------------------------------------------------------


def windows_of(begins: Sequence[float]) -> list[list[int]]:
    """Return steps in order of time, divided into windows of about equal length."""
    count = -(-len(begins) // WINDOW_STEPS)
    windows: list[list[int]] = [[] for _ in range(count)]
    in_order = sorted(range(len(begins)), key=lambda step: begins[step])
    for place, step in enumerate(in_order):
        windows[place * count // len(begins)].append(step)
    return windows


def fit_window(
    window: Sequence[int],
    begins: Sequence[float],
    matches: Mapping[Pair, Ahead],
    *,
    absolute: bool,
) -> Fitted:
    """Solve for the offsets, and rates, of one window of steps."""
    middle = median(begins[step] for step in window)
    values: dict[Pair, tuple[float, float]] = {}
    slopes: dict[Pair, tuple[float, float]] = {}
    times = [begins[step] - middle if absolute else 0.0 for step in window]
    for pair, ahead in matches.items():
        if any(step in ahead for step in window):
            series = [median(ahead.get(step, [math.nan])) for step in window]
            values[pair], slopes[pair] = robust_line(times, series)
    return Fitted(middle, potentials(values), potentials(slopes) if absolute else {})

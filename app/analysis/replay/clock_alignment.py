"""Clock alignment: offsets and rates of the clocks of ranks, and starts on a common clock.

Operations that move data together end together: a send and its receive, or a collective of the DP
ranks. Clocks are compared by these ends, not by starts, and not by `optimizer-clip-main-grad`,
whose ends spread by 10 ms. Offsets are fitted by robust least squares. Only offsets above 1 ms and
three residuals are corrected, because ends on equal clocks differ by 0.03 to 0.3 ms. If only the
ends of one type differ, the clocks agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.clock_steps import (
    ClockStep,
    Matches,
    matches_of,
    remove_clock_steps,
    without_offsets,
)
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, Graph
from app.analysis.replay.robust_statistics import (
    MAD_TO_SD,
    connected_parts,
    median,
    median_of_known,
    robust_lines,
    robust_potentials,
)
from app.analysis.trace.model import OPTIMIZER_CLIP


def clocks_apart_ns(layout: Layout, graph: Graph, offsets_ns: FloatArray | None = None) -> float:
    """Return the largest typical difference between clocks on which all types of ends agree, ns.

    A wrong clock moves all ends that its rank records. If a recorder takes the ends of one type at
    other moments, only the ends of this type differ, or types differ in opposite directions.

    Parameters
    ----------
    offsets_ns : float64 array, shape (dp, pp), optional
        Clock offsets that were subtracted from the layout's times, and that the result should
        include.
    """
    offsets_ns = np.zeros((layout.dp, layout.pp)) if offsets_ns is None else offsets_ns
    # Pair of stages → op type → pairs of nodes whose ends coincide. The pair of stages is (stage,
    # stage) for collectives and (lower stage, higher stage) for transfers.
    together: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    op, stage = layout.nodes.op.tolist(), layout.nodes.pp.tolist()
    spanning = layout.of_types(*DP_COLLECTIVES).tolist()
    for unit in graph.units:
        match unit.members:
            case (first, second) if not unit.across_dp and stage[first] != stage[second]:
                pair = (first, second) if stage[first] < stage[second] else (second, first)
                # Pairs are grouped by the op type on the lower stage, because forward and backward
                # transfers have different types.
                of_link = together[stage[pair[0]], stage[pair[1]]]
                of_link.setdefault(op[pair[0]], []).append(pair)
            case (node,) if spanning[node] and layout.dp > 1:
                together[stage[node], stage[node]].setdefault(op[node], []).append((node, node))
            case _:
                pass
    apart = []
    for (low, high), of_link in together.items():
        ahead = offsets_ns[:, low] - (
            np.median(offsets_ns[:, low]) if low == high else offsets_ns[:, high]
        )
        by_type = [_apart(layout, pairs) + ahead for pairs in of_link.values()]
        # Smallest absolute difference if the differences of all types have the same sign, else 0
        least, most = np.min(by_type, axis=0), np.max(by_type, axis=0)
        apart.append(np.maximum(least, 0.0) + np.minimum(most, 0.0))
    return max((float(median_of_known(np.abs(values)).max()) for values in apart), default=0.0)


def _apart(layout: Layout, pairs: Sequence[tuple[int, int]]) -> FloatArray:
    """Return the median difference between paired ends in each step, shape (steps, dp), ns."""
    first, second = (list(side) for side in zip(*pairs, strict=True))
    ends = layout.start_ns[first] + layout.duration_ns[first]
    if first == second:
        return np.asarray(median_of_known(ends - np.median(ends, axis=2, keepdims=True)))
    return median_of_known(ends - layout.start_ns[second] - layout.duration_ns[second])


CORRECTED_NS: Final = 1e6
CORRECTED_RESIDUALS: Final = 3.0
# Reweighting stops when no offset changes by more than this: a thousandth of the smallest offset
# that is corrected.
SETTLED_NS: Final = 1e3
# In sessions of fewer steps than this, an offset below `FEW_STEPS_NS` may be chance and is not
# corrected.
LEAST_STEPS: Final = 5
FEW_STEPS_NS: Final = 10e6
# Unless there are at least this many steps, and all matched ends agree on the offset within this
# share of it, as those of NCCL's kernels do.
AGREEING_STEPS: Final = 3
AGREEING: Final = 0.1
# Ranks that are compared only by the boundaries of steps, since they share no transfers or
# collectives, may begin a step this far apart.
BOUNDARY_NS: Final = 10e6
# Number of steps over which the rate of a clock is taken as constant.
WINDOW_STEPS: Final = 16
PPM: Final = 1e6
# Least squares resolve offsets to a relative 1e-6, so offsets above this size are corrected in two
# rounds.
COARSE_NS: Final = 1000e9


@dataclass(frozen=True, slots=True, eq=False)
class RankClocks:
    """Offsets and rates of the clocks of the analyzed ranks."""

    aligned: bool  # whether starts were corrected
    # Shape (dp, pp): offset from the median clock, in the window in which it is largest
    offsets_ns: FloatArray
    residual_ns: FloatArray  # (dp, pp): median distance of matched ends from the fitted offsets
    # Shape (dp, pp): rate relative to the median clock; None if times are not absolute
    drift_ppm: FloatArray | None
    # (DP rank, stage) of the first rank in each group of ranks without transfers and collectives to
    # other groups; empty if transfers and collectives connect all ranks
    unconnected: tuple[tuple[int, int], ...]
    # Clock steps that were subtracted from starts.
    clock_steps: tuple[ClockStep, ...] = ()
    # Training steps during which a clock jumped: the caller drops these steps and aligns again.
    torn: tuple[int, ...] = ()


def align(
    layouts: Sequence[Layout], graphs: Sequence[Graph], *, absolute: bool
) -> tuple[list[Layout], RankClocks]:
    """Put all starts on a common clock; return layouts without clock errors unchanged.

    Parameters
    ----------
    layouts, graphs : sequences
        The layout and the graph of each group of steps.
    absolute : bool
        Whether starts are readings of clocks. Otherwise starts count from the begin of their step.
    """
    aligned, clocks = _align_once(layouts, graphs, absolute=absolute)
    if not clocks.aligned or np.abs(clocks.offsets_ns).max() <= COARSE_NS:
        return aligned, clocks
    aligned, rest = _align_once(aligned, graphs, absolute=absolute)
    drifts = (clocks.drift_ppm, rest.drift_ppm)
    return aligned, replace(
        rest,
        aligned=True,
        offsets_ns=clocks.offsets_ns + rest.offsets_ns,
        drift_ppm=None if drifts[0] is None or drifts[1] is None else drifts[0] + drifts[1],
        clock_steps=(*clocks.clock_steps, *rest.clock_steps),
    )


def _align_once(
    layouts: Sequence[Layout], graphs: Sequence[Graph], *, absolute: bool
) -> tuple[list[Layout], RankClocks]:
    """Put all starts on a common clock with a single fit of offsets and rates; see `align`."""
    dp, pp = layouts[0].dp, layouts[0].pp
    ranks = dp * pp
    matches = _joined([matches_of(*pair) for pair in zip(layouts, graphs, strict=True)])
    stepless = remove_clock_steps(layouts, matches, absolute=absolute)
    if stepless.clock_steps:
        layouts = stepless.layouts
        matches = _joined([matches_of(*pair) for pair in zip(layouts, graphs, strict=True)])
    count = ranks + pp + 1
    part = connected_parts(matches.first, matches.second, count)[:ranks]
    parts = np.unique(part)
    if len(parts) > 1:
        boundaries = [_boundaries(layout, part, count - 1) for layout in layouts]
        between_parts = _joined(boundaries)
        matches = Matches(
            np.concatenate([matches.first, between_parts.first]),
            np.concatenate([matches.second, between_parts.second]),
            np.concatenate([matches.ahead_ns, between_parts.ahead_ns], axis=1),
            np.concatenate([matches.spread_ns, between_parts.spread_ns], axis=1),
        )
    begin = np.concatenate([layout.begin_ns for layout in layouts])
    few = len(begin) < LEAST_STEPS
    fit = _fit(matches, begin, count, absolute=absolute)
    offsets = fit.offsets_ns[:, :ranks]
    residual, of_boundary = _residuals(matches, fit, part)
    furthest = np.take_along_axis(offsets, np.abs(offsets).argmax(axis=0)[None], axis=0)[0]
    within_parts = offsets.copy()
    for label in parts:
        inside = part == label
        within_parts[:, inside] -= median(within_parts[:, inside].T)[:, None]
    within = np.abs(within_parts).max(axis=0)
    wrong = (within > np.maximum(CORRECTED_NS, CORRECTED_RESIDUALS * residual)).any()
    if len(parts) > 1:
        residual = np.maximum(residual, of_boundary)
        limit = np.maximum(BOUNDARY_NS, CORRECTED_RESIDUALS * residual)
        if (np.abs(furthest) > limit).any():
            wrong |= not few and any(map(_contradicts, layouts, graphs))
    if few and wrong:
        apart_ns = max(map(clocks_apart_ns, layouts, graphs))
        least_ns = CORRECTED_NS if _agree(matches, apart_ns) else FEW_STEPS_NS
        wrong = apart_ns > max(least_ns, CORRECTED_RESIDUALS * residual.max())
    clocks = RankClocks(
        aligned=bool(wrong),
        offsets_ns=furthest.reshape(dp, pp),
        residual_ns=residual.reshape(dp, pp),
        drift_ppm=None if fit.rates is None else median(fit.rates[:, :ranks]).reshape(dp, pp) * PPM,
        unconnected=()
        if len(parts) == 1
        else tuple(divmod(int(np.flatnonzero(part == p)[0]), pp) for p in parts),
        clock_steps=stepless.clock_steps,
        torn=stepless.torn,
    )
    if not wrong:
        return list(layouts), clocks
    rates = None if fit.rates is None else fit.rates[fit.window, :ranks]
    return without_offsets(layouts, fit.at_begin()[:, :ranks], rates), clocks


def _agree(matches: Matches, apart_ns: float) -> bool:
    """Return whether the matched ends of a few steps agree on offsets of up to `apart_ns`."""
    if len(matches.ahead_ns) < AGREEING_STEPS or np.isnan(matches.ahead_ns).any():
        return False
    scatter_ns = np.ptp(matches.ahead_ns, axis=0) + matches.spread_ns.max(axis=0)
    return bool(scatter_ns.max() <= AGREEING * apart_ns)


def one_clock(layouts: Sequence[Layout], *, absolute: bool) -> tuple[list[Layout], RankClocks]:
    """Return layouts recorded by a single clock, without its clock steps, and offsets of 0."""
    exact = np.zeros((layouts[0].dp, layouts[0].pp))
    stepless = remove_clock_steps(layouts, None, absolute=absolute)
    return stepless.layouts, RankClocks(
        aligned=False,
        offsets_ns=exact,
        residual_ns=exact,
        drift_ppm=exact if absolute else None,
        unconnected=(),
        clock_steps=stepless.clock_steps,
    )


def _contradicts(layout: Layout, graph: Graph) -> bool:
    """Return whether dependencies between stages contradict the aligned clocks.

    The test is for clocks that were compared only by step boundaries. If the clocks of two stages
    disagree, then in one direction at least, computations begin before their dependencies on the
    other stage have ended. If no computation does, the clocks agree and the stages only end their
    steps at different times. Without such dependencies the result is True.
    """
    stage = layout.nodes.pp
    delays = [
        layout.start_ns[node] - layout.start_ns[before] - layout.duration_ns[before]
        for unit in graph.units
        for node, after in zip(unit.members, unit.after, strict=True)
        for before in after
        if stage[node] != stage[before]
    ]
    if not delays or layout.missing is not None:
        return True
    return bool((np.median(delays, axis=1) < -CORRECTED_NS).any())


def _boundaries(layout: Layout, part: NDArray[np.int64], node: int) -> Matches:
    """Compare clocks of ranks without common communication by the boundaries of steps."""
    first = np.array([int(np.flatnonzero(part == label)[0]) for label in np.unique(part)])
    marks = np.stack([_boundary(layout, first, rank) for rank in first.tolist()], axis=1)
    marks[~np.isfinite(marks)] = np.nan
    marks -= median_of_known(marks.T)[:, None]
    return Matches(first, np.full(len(first), node), marks, np.zeros_like(marks))


def _boundary(layout: Layout, first: NDArray[np.int64], rank: int) -> FloatArray:
    """Return the time in each step by which a rank's clock is compared, shape (steps,), ns.

    It is the end of gradient clipping, which ends on all ranks within some milliseconds. If
    clipping is not recorded, it is the rank's first start if all compared ranks are of one stage,
    since DP ranks begin steps together. Otherwise it is the rank's last end, since stages begin one
    after another and end together.
    """
    dp, stage = divmod(rank, layout.pp)
    nodes = layout.nodes.on(stage)
    clips = nodes[layout.nodes.op[nodes] == layout.codes(OPTIMIZER_CLIP)[0]]
    by_begin = len(clips) == 0 and len(np.unique(first % layout.pp)) == 1
    nodes = clips if len(clips) else nodes
    start, duration = layout.start_ns[nodes, :, dp], layout.duration_ns[nodes, :, dp]
    lost = False if layout.missing is None else layout.missing[nodes, :, dp]
    if by_begin:
        return np.asarray(np.where(lost, np.inf, start).min(axis=0, initial=np.inf))
    return np.asarray(np.where(lost, -np.inf, start + duration).max(axis=0, initial=-np.inf))


def _joined(parts: Sequence[Matches]) -> Matches:
    """Concatenate the matches of groups of steps, which may compare different pairs of clocks."""
    if len(parts) == 1:
        return parts[0]
    keys = sorted({key for part in parts for key in part.pairs()})
    column = {key: i for i, key in enumerate(keys)}
    tables: list[list[FloatArray]] = [[], []]
    for part in parts:
        own = [column[key] for key in part.pairs()]
        for table, values in zip(tables, (part.ahead_ns, part.spread_ns), strict=True):
            table.append(np.full((len(values), len(keys)), np.nan))
            table[-1][:, own] = values
    ends = np.array(keys, dtype=np.int64).reshape(-1, 2)
    return Matches(ends[:, 0], ends[:, 1], *(np.concatenate(table) for table in tables))


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """Fitted offsets and rates of the clocks of all nodes; see `Matches`."""

    window: NDArray[np.int64]  # (steps,): window of each step
    center_ns: FloatArray  # (windows,): time at which the offsets hold
    offsets_ns: FloatArray  # (windows, nodes)
    # Shape (windows, nodes): time that a clock gains on the median clock, ns per ns
    rates: FloatArray | None
    begin_ns: FloatArray  # (steps,)

    def at_begin(self) -> FloatArray:
        """Return the clock offsets at the begin of each step, shape (steps, nodes), ns."""
        offsets = self.offsets_ns[self.window]
        if self.rates is None:
            return offsets
        since = self.begin_ns - self.center_ns[self.window]
        return np.asarray(offsets + self.rates[self.window] * since[:, None])


def _fit(matches: Matches, begin_ns: FloatArray, count: int, *, absolute: bool) -> _Fit:
    """Solve for the clock offsets of each window, and for the rates."""
    steps = len(begin_ns)
    windows = -(-steps // WINDOW_STEPS) if absolute else 1
    window = np.empty(steps, dtype=np.int64)
    window[np.argsort(begin_ns, kind="stable")] = np.arange(steps) * windows // steps
    center = np.array([median(begin_ns[window == w]) for w in range(windows)])
    offsets, rates = np.zeros((windows, count)), np.zeros((windows, count))
    for w in range(windows):
        inside = window == w
        since = begin_ns[inside] - center[w] if absolute else np.zeros(int(inside.sum()))
        lines = robust_lines(since, matches.ahead_ns[inside])
        offsets[w] = robust_potentials(
            matches.first, matches.second, lines.value, lines.error, count, enough=SETTLED_NS
        )
        if absolute:
            rates[w] = robust_potentials(
                matches.first, matches.second, lines.slope, lines.slope_error, count
            )
    return _Fit(window, center, offsets, rates if absolute else None, begin_ns)


def _residuals(
    matches: Matches, fit: _Fit, part: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Return the typical distances of recorded ends from the fitted offsets, ns.

    Parameters
    ----------
    part : int64 array, shape (ranks,)
        Lowest rank with which each rank is connected by transfers and collectives.

    Returns
    -------
    residual, of_boundary : float64 arrays, shape (ranks,)
        Typical distance, ns, of the rank's matched ends, and of the step boundaries of the ranks
        with which it is connected.
    """
    ranks = len(part)
    offsets = fit.at_begin()
    residual = np.abs(matches.ahead_ns - offsets[:, matches.first] + offsets[:, matches.second])
    of_match = MAD_TO_SD * np.hypot(median_of_known(residual), median_of_known(matches.spread_ns))
    boundary = matches.second == fit.offsets_ns.shape[1] - 1
    of_part = np.zeros(ranks)
    of_part[matches.first[boundary]] = np.nan_to_num(of_match[boundary])
    ends = np.concatenate([matches.first[~boundary], matches.second[~boundary]])
    values = np.concatenate([of_match[~boundary], of_match[~boundary]])
    measured = (ends < ranks) & ~np.isnan(values)
    ends, values = ends[measured], values[measured]
    order = np.lexsort((values, ends))
    ends, values = ends[order], values[order]
    residual = np.zeros(ranks)
    matched, first, number = np.unique(ends, return_index=True, return_counts=True)
    residual[matched] = (values[first + (number - 1) // 2] + values[first + number // 2]) / 2
    return residual, of_part[part]

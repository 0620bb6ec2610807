"""Clock alignment: offsets and rates of the clocks of ranks, and starts on one common clock.

Operations that move data together end together: a send and its receive, a collective of the DP
ranks. (Ends, not starts; and not `optimizer-clip-main-grad`, whose ends spread by 10 ms.) Offsets
follow from robust least squares; only those above 1 ms and three residuals are corrected, because
ends on equal clocks differ by 0.03 to 0.3 ms. Where only ends of one type are apart, clocks
agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.clock_steps import ClockSetting, Matches, matches_of, put_back
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

# ---- Whether clocks disagree, or only some ends are taken at other moments ---------------------
# A clock that is off moves all that its rank records. Ends of one type that are taken when a job
# hands a transfer over, or comes to wait for it, are apart as well, but those of other types are
# not, or the other way around.


def clocks_apart_ns(layout: Layout, graph: Graph, offsets_ns: FloatArray | None = None) -> float:
    """Return how far clocks are usually apart: as far as all types of ends agree upon.

    Parameters
    ----------
    offsets_ns : float64 array, shape (dp, pp), optional
        What has been taken out of the layout's times, and is to be counted.
    """
    offsets_ns = np.zeros((layout.dp, layout.pp)) if offsets_ns is None else offsets_ns
    # (the stage of both, or of the lower one and the other) → type of the end → pairs of nodes
    together: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    op, stage = layout.nodes.op.tolist(), layout.nodes.pp.tolist()
    spanning = layout.of_types(*DP_COLLECTIVES).tolist()
    for unit in graph.units:
        match unit.members:
            case (one, other) if not unit.across_dp and stage[one] != stage[other]:
                pair = (one, other) if stage[one] < stage[other] else (other, one)
                # a send and the receive of what comes back are of different types
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
        apart.append(_agreed([_apart(layout, pairs) + ahead for pairs in of_link.values()]))
    return max((float(median_of_known(np.abs(values)).max()) for values in apart), default=0.0)


def _apart(layout: Layout, pairs: Sequence[tuple[int, int]]) -> FloatArray:
    """Return how far ends that belong together are apart in each step, shape (steps, dp)."""
    one, other = (list(side) for side in zip(*pairs, strict=True))
    ends = layout.start_ns[one] + layout.duration_ns[one]
    if one == other:
        return np.asarray(median_of_known(ends - np.median(ends, axis=2, keepdims=True)))
    return median_of_known(ends - layout.start_ns[other] - layout.duration_ns[other])


def _agreed(apart: Sequence[FloatArray]) -> FloatArray:
    """Return the least of what types say where all say it is ahead, or all that it is behind."""
    low, high = np.min(apart, axis=0), np.max(apart, axis=0)
    return np.asarray(np.maximum(low, 0.0) + np.minimum(high, 0.0))


# ---- How far the clocks of the ranks are apart, and starts as one common clock would show them ---
# Operations that move data together end together: a send and its receive, a collective of the DP
# ranks. (Ends, not starts; and not `optimizer-clip-main-grad`, whose ends spread by 10 ms.) Each
# such pair of ends says how far two clocks are apart. Offsets of all ranks follow by robust least
# squares; where times are absolute, so do the clocks' rates, window by window.
#
# Clean recordings stay as they are: ends that belong together differ by 0.03 to 0.3 ms even on
# equal clocks, so only offsets above 1 ms and three residuals are corrected.


CORRECTED_NS: Final = 1e6
CORRECTED_RESIDUALS: Final = 3.0
# Offsets that move by less need no further round: a thousandth of what is corrected.
SETTLED_NS: Final = 1e3
# Fewer steps do not tell a clock from chance where it is off by less than that.
LEAST_STEPS: Final = 5
FEW_STEPS_NS: Final = 10e6
# What only step boundaries connect: a rank's step begins up to this much after another's.
BOUNDARY_NS: Final = 10e6
# Steps that a clock is taken to run evenly for.
WINDOW_STEPS: Final = 16
PPM: Final = 1e6
# Least squares resolve a part in a million of the offsets: larger ones are taken out twice.
COARSE_NS: Final = 1000e9


@dataclass(frozen=True, slots=True, eq=False)
class RankClocks:
    """What the clocks of the analyzed ranks show."""

    aligned: bool  # whether starts were corrected
    # offsets_ns, residual_ns: (dp, pp): the clock ahead of the median one, in the window
    # where it is furthest; how far matched ends are from what the offsets say
    offsets_ns: FloatArray
    residual_ns: FloatArray
    # (dp, pp): how much faster the clock runs than the median one; None where times are not
    # absolute
    drift_ppm: FloatArray | None
    # tuple of (DP rank, stage): the first rank of each group of ranks that nothing but step
    # boundaries connects with the others; empty where all are connected
    unconnected: tuple[tuple[int, int], ...]
    # Clocks that were set between steps; starts are as if they had not been.
    settings: tuple[ClockSetting, ...] = ()
    # Steps within which a clock was set: the others are to be looked at without them.
    torn: tuple[int, ...] = ()


def align(
    layouts: Sequence[Layout], graphs: Sequence[Graph], *, absolute: bool
) -> tuple[list[Layout], RankClocks]:
    """Put all starts on one clock; layouts of clean recordings stay the same objects.

    Parameters
    ----------
    layouts, graphs : sequences
        One of each group of steps.
    absolute : bool
        Whether starts are readings of clocks; else they count from their step's begin.
    """
    aligned, clocks = _align_once(layouts, graphs, absolute=absolute)
    if not clocks.aligned or np.abs(clocks.offsets_ns).max() <= COARSE_NS:
        return aligned, clocks
    finer, rest = _align_once(aligned, graphs, absolute=absolute)
    return finer, _together(clocks, rest)


def _align_once(
    layouts: Sequence[Layout], graphs: Sequence[Graph], *, absolute: bool
) -> tuple[list[Layout], RankClocks]:
    """Put all starts on one clock as nearly as one fit can."""
    dp, pp = layouts[0].dp, layouts[0].pp
    ranks = dp * pp
    matches = _joined([matches_of(*pair) for pair in zip(layouts, graphs, strict=True)])
    put = put_back(layouts, matches, absolute=absolute)
    if put.settings:
        layouts = put.layouts
        matches = _joined([matches_of(*pair) for pair in zip(layouts, graphs, strict=True)])
    count = ranks + pp + 1
    part = connected_parts(matches.one, matches.other, count)[:ranks]
    parts = np.unique(part)
    if len(parts) > 1:
        boundaries = [_boundaries(layout, part, count - 1) for layout in layouts]
        matches = _concatenated(matches, _joined(boundaries))
    begin = np.concatenate([layout.begin_ns for layout in layouts])
    few = len(begin) < LEAST_STEPS
    fit = _fit(matches, begin, count, absolute=absolute)
    offsets = fit.offsets_ns[:, :ranks]
    residual, of_boundary = _residuals(matches, fit, part)
    furthest = np.take_along_axis(offsets, np.abs(offsets).argmax(axis=0)[None], axis=0)[0]
    within = _within_parts(offsets, part)
    wrong = (within > np.maximum(CORRECTED_NS, CORRECTED_RESIDUALS * residual)).any()
    if len(parts) > 1:
        residual = np.maximum(residual, of_boundary)
        limit = np.maximum(BOUNDARY_NS, CORRECTED_RESIDUALS * residual)
        if (np.abs(furthest) > limit).any():
            wrong |= not few and any(map(_contradicts, layouts, graphs))
    if few and wrong:
        apart_ns = max(map(clocks_apart_ns, layouts, graphs))
        wrong = apart_ns > max(FEW_STEPS_NS, CORRECTED_RESIDUALS * residual.max())
    clocks = RankClocks(
        aligned=bool(wrong),
        offsets_ns=furthest.reshape(dp, pp),
        residual_ns=residual.reshape(dp, pp),
        drift_ppm=None if fit.rates is None else _typical_rate(fit.rates[:, :ranks], (dp, pp)),
        unconnected=()
        if len(parts) == 1
        else tuple(divmod(int(np.flatnonzero(part == p)[0]), pp) for p in parts),
        settings=put.settings,
        torn=put.torn,
    )
    if not wrong:
        return list(layouts), clocks
    return _corrected(layouts, fit, ranks), clocks


def _together(coarse: RankClocks, fine: RankClocks) -> RankClocks:
    """Return what two alignments of the same clocks, one after the other, have shown."""
    drifts = (coarse.drift_ppm, fine.drift_ppm)
    return replace(
        fine,
        aligned=True,
        offsets_ns=coarse.offsets_ns + fine.offsets_ns,
        drift_ppm=None if drifts[0] is None or drifts[1] is None else drifts[0] + drifts[1],
        settings=(*coarse.settings, *fine.settings),
    )


def one_clock(layouts: Sequence[Layout], *, absolute: bool) -> tuple[list[Layout], RankClocks]:
    """Return layouts whose starts are readings of one clock, as they are."""
    exact = np.zeros((layouts[0].dp, layouts[0].pp))
    put = put_back(layouts, None, absolute=absolute)
    return put.layouts, RankClocks(
        aligned=False,
        offsets_ns=exact,
        residual_ns=exact,
        drift_ppm=exact if absolute else None,
        unconnected=(),
        settings=put.settings,
    )


def _contradicts(layout: Layout, graph: Graph) -> bool:
    """Return whether starts cannot be right where only the boundaries of steps compare clocks.

    Where stages hand over and no transfer is recorded, what takes over begins before the other has
    ended, in one of the two directions at least, if their clocks are apart. Where they hand over
    in order the stages just do not end their steps together. Without a hand-over nothing tells.
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


def _within_parts(offsets: FloatArray, part: NDArray[np.int64]) -> FloatArray:
    """Return the largest offset of each rank against the median of what it is connected with."""
    within = offsets.copy()
    for label in np.unique(part):
        inside = part == label
        within[:, inside] -= median(within[:, inside].T)[:, None]
    return np.asarray(np.abs(within).max(axis=0))


def _typical_rate(rates: FloatArray, shape: tuple[int, int]) -> FloatArray:
    return np.asarray(median(rates).reshape(shape) * PPM)


def _boundaries(layout: Layout, part: NDArray[np.int64], node: int) -> Matches:
    """Compare when groups of ranks that nothing connects reach the boundaries of steps."""
    first = np.array([int(np.flatnonzero(part == label)[0]) for label in np.unique(part)])
    marks = np.stack([_boundary(layout, first, rank) for rank in first.tolist()], axis=1)
    marks[~np.isfinite(marks)] = np.nan
    marks -= median_of_known(marks.T)[:, None]
    return Matches(first, np.full(len(first), node), marks, np.zeros_like(marks))


def _boundary(layout: Layout, first: NDArray[np.int64], rank: int) -> FloatArray:
    """Return a rank's boundary of each step, shape (steps,).

    What clips gradients ends on all ranks within some milliseconds. Where it is not recorded, DP
    ranks begin their steps together, and stages, which begin one after another, end them together.
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
    """Join the steps of groups whose matches may differ."""
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


def _concatenated(one: Matches, other: Matches) -> Matches:
    return Matches(
        np.concatenate([one.one, other.one]),
        np.concatenate([one.other, other.other]),
        np.concatenate([one.ahead_ns, other.ahead_ns], axis=1),
        np.concatenate([one.spread_ns, other.spread_ns], axis=1),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """Offsets of all nodes."""

    window: NDArray[np.int64]  # (steps,): window of each step
    center_ns: FloatArray  # (windows,): when the offsets hold
    offsets_ns: FloatArray  # (windows, nodes)
    # (windows, nodes): ns by which a clock gains on the median one, each ns
    rates: FloatArray | None
    begin_ns: FloatArray  # (steps,)

    def at_begin(self) -> FloatArray:
        """Return the offsets at the begin of each step, shape (steps, nodes)."""
        offsets = self.offsets_ns[self.window]
        if self.rates is None:
            return offsets
        since = self.begin_ns - self.center_ns[self.window]
        return np.asarray(offsets + self.rates[self.window] * since[:, None])


def _fit(matches: Matches, begin_ns: FloatArray, count: int, *, absolute: bool) -> _Fit:
    """Solve for the offsets, and the rates, of each window."""
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
            matches.one, matches.other, lines.value, lines.error, count, enough=SETTLED_NS
        )
        if absolute:
            rates[w] = robust_potentials(
                matches.one, matches.other, lines.slope, lines.slope_error, count
            )
    return _Fit(window, center, offsets, rates if absolute else None, begin_ns)


def _residuals(
    matches: Matches, fit: _Fit, part: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Return how far ends are from what the offsets say.

    Parameters
    ----------
    fit : _Fit
    part : int64 array, shape (ranks,)
        The lowest rank that each is connected with.

    Returns
    -------
    residual, of_boundary : float64 arrays, shape (ranks,)
        Of the ends that a rank is matched by; of the step boundaries of what it is connected with.
    """
    ranks = len(part)
    offsets = fit.at_begin()
    residual = np.abs(matches.ahead_ns - offsets[:, matches.one] + offsets[:, matches.other])
    of_match = MAD_TO_SD * np.hypot(median_of_known(residual), median_of_known(matches.spread_ns))
    boundary = matches.other == fit.offsets_ns.shape[1] - 1
    of_part = np.zeros(ranks)
    of_part[matches.one[boundary]] = np.nan_to_num(of_match[boundary])
    ends = np.concatenate([matches.one[~boundary], matches.other[~boundary]])
    values = np.concatenate([of_match[~boundary], of_match[~boundary]])
    known = (ends < ranks) & ~np.isnan(values)
    ends, values = ends[known], values[known]
    order = np.lexsort((values, ends))
    ends, values = ends[order], values[order]
    residual = np.zeros(ranks)
    found, first, number = np.unique(ends, return_index=True, return_counts=True)
    residual[found] = (values[first + (number - 1) // 2] + values[first + number // 2]) / 2
    return residual, of_part[part]


def _corrected(layouts: Sequence[Layout], fit: _Fit, ranks: int) -> list[Layout]:
    """Return the layouts as one clock would have shown them."""
    offsets = fit.at_begin()[:, :ranks]
    corrected = []
    done = 0
    for layout in layouts:
        steps = slice(done, done + len(layout.steps))
        done = steps.stop
        shift = offsets[steps].reshape(-1, layout.dp, layout.pp)
        start = layout.start_ns - np.moveaxis(shift, 2, 0)[layout.nodes.pp]
        if fit.rates is not None:
            rate = fit.rates[fit.window[steps], :ranks].reshape(shift.shape)
            start -= layout.start_ns * np.moveaxis(rate, 2, 0)[layout.nodes.pp]
        present = start if layout.missing is None else np.where(layout.missing, np.inf, start)
        begin = present.min(axis=(0, 2))
        start -= begin[:, None]
        corrected.append(replace(layout, start_ns=start, begin_ns=layout.begin_ns + begin))
    return corrected

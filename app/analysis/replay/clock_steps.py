"""Clock steps: jumps of a host clock during a session, found and removed.

A time service sets a clock forward or back if it is too far off to be slewed, by milliseconds or
minutes. The ends of transfers and collectives that end together show such a jump; the time between
steps by each rank's own clock shows which clock jumped. Clock steps are removed before the clocks
are aligned (`clock_alignment`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, Graph
from app.analysis.replay.robust_statistics import (
    MAD_TO_SD,
    median,
    median_of_known,
    robust_potentials,
)

Item = TypeVar("Item")

# Number of ends in each step by which the clocks of two stages are compared. More ends would not
# make the comparison more accurate.
MATCHES: Final = 6


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Pairs of clocks, compared by recorded ends of operations that end together.

    The clock of node `first` is `ahead_ns` ahead of the clock of node `second`, shape (steps,
    matches), NaN if nothing was recorded. `spread_ns`, of the same shape, is the median deviation
    of the ends of a step from `ahead_ns`. Nodes are numbered: first the ranks (DP rank × PP +
    stage), then a node for the collectives of each stage, then a node for the boundaries of steps.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    ahead_ns: FloatArray
    spread_ns: FloatArray

    def pairs(self) -> list[tuple[int, int]]:
        """Return the pair of clocks (`first`, `second`) of each match."""
        return list(zip(self.first.tolist(), self.second.tolist(), strict=True))


def matches_of(layout: Layout, graph: Graph) -> Matches:
    """Compare the clocks of ranks by the ends of sends and receives, and of collectives."""
    dp, pp = layout.dp, layout.pp
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    collectives: dict[int, list[int]] = {}
    stage = layout.nodes.pp.tolist()
    spanning = layout.of_types(*DP_COLLECTIVES).tolist()
    for unit in graph.units:
        match unit.members:
            case (sender, receiver) if not unit.across_dp and stage[sender] != stage[receiver]:
                if layout.free is not None and (layout.free[sender] or layout.free[receiver]):
                    continue
                if stage[sender] > stage[receiver]:
                    sender, receiver = receiver, sender
                pairs.setdefault((stage[sender], stage[receiver]), []).append((sender, receiver))
            case (node,) if spanning[node]:
                collectives.setdefault(stage[node], []).append(node)
            case _:
                pass
    ranks = np.arange(dp) * pp
    first_nodes, second_nodes, apart = [], [], []
    for (first, second), nodes_of_link in sorted(pairs.items()):
        ends = [_ends(layout, list(side)) for side in zip(*_sample(nodes_of_link), strict=True)]
        first_nodes.append(ranks + first)
        second_nodes.append(ranks + second)
        apart.append(ends[0] - ends[1])
    if dp > 1:
        for stage, nodes in sorted(collectives.items()):
            end = _ends(layout, _sample(nodes))
            median = median_of_known(end.transpose(2, 0, 1))
            first_nodes.append(ranks + stage)
            second_nodes.append(np.full(dp, dp * pp + stage))
            apart.append(end - median[:, :, None])
    nothing = np.zeros((len(layout.steps), 0))
    ahead = _medians(apart)
    spread = _medians(
        [np.abs(values - median) for values, median in zip(apart, ahead, strict=True)]
    )
    return Matches(
        np.concatenate([np.zeros(0, dtype=np.int64), *first_nodes]),
        np.concatenate([np.zeros(0, dtype=np.int64), *second_nodes]),
        np.concatenate([nothing, *ahead], axis=1),
        np.concatenate([nothing, *spread], axis=1),
    )


def _medians(series: Sequence[FloatArray]) -> list[FloatArray]:
    """Return the median of each series without its NaN; series of equal length share a call."""
    alike: dict[int, list[int]] = {}
    for index, values in enumerate(series):
        alike.setdefault(len(values), []).append(index)
    medians: dict[int, FloatArray] = {}
    for places in alike.values():
        stacked = np.array([series[index] for index in places]).swapaxes(0, 1)
        medians.update(zip(places, median_of_known(stacked), strict=True))
    return [medians[index] for index in range(len(series))]


def _sample(items: list[Item]) -> list[Item]:
    """Return at most `MATCHES` of the items, evenly spread over the step."""
    if len(items) <= MATCHES:
        return items
    return [items[i * (len(items) - 1) // (MATCHES - 1)] for i in range(MATCHES)]


def _ends(layout: Layout, nodes: list[int]) -> FloatArray:
    """Return recorded ends of nodes, shape (nodes, steps, dp), ns; NaN where missing."""
    ends = layout.start_ns[nodes] + layout.duration_ns[nodes]
    if layout.missing is not None:
        ends[layout.missing[nodes]] = np.nan
    return ends


IntArray = NDArray[np.intp]

# Smallest clock step. Without a clock step, ends of a session vary by less than this from step to
# step.
LEAST_NS: Final = 5e6
# Largest drift of a clock without a jump, as a share of the elapsed time.
DRIFT: Final = 2e-4
# A clock step exceeds the usual differences from step to step by this many standard deviations.
ABOVE_NOISE: Final = 10.0
# Measurements of a clock step by ends, and by begins of steps, may deviate by this share of its
# size…
AGREED: Final = 0.25
# …except for at most this share of the ends.
MOST_ODD: Final = 0.1
# In sessions with fewer steps than this the usual difference between steps is unknown, so no clock
# step is searched.
LEAST_STEPS: Final = 4
NS_A_SECOND: Final = 1e9


@dataclass(frozen=True, slots=True)
class ClockStep:
    """A jump of the clocks of some workers between two training steps."""

    step: int
    """The first analyzed step after it."""
    workers: tuple[tuple[int, int], ...]
    """The workers whose clocks jumped: (DP rank, stage)."""
    by_s: float
    """Size of the jump, seconds; positive where clocks were put forward."""


@dataclass(frozen=True, slots=True, eq=False)
class WithoutClockSteps:
    """Layouts without clock steps, and the clock steps that were removed."""

    layouts: list[Layout]
    clock_steps: tuple[ClockStep, ...]
    # Training steps during which a clock jumped, so that their times are wrong. If there are any,
    # no clock step is removed.
    torn: tuple[int, ...] = ()


def clock_steps_ns(
    clock_steps: Sequence[ClockStep], step: IntArray, dp: IntArray, pp: IntArray
) -> FloatArray:
    """Return the sum of the clock steps before each clock reading, ns.

    Parameters
    ----------
    step, dp, pp : int64 arrays, shape (readings,)
        Training step, DP rank and stage of each reading.
    """
    by_ns = np.zeros(len(step))
    for clock_step in clock_steps:
        affected = np.zeros(len(step), dtype=bool)
        for rank, stage in clock_step.workers:
            affected |= (dp == rank) & (pp == stage)
        by_ns[affected & (step >= clock_step.step)] += clock_step.by_s * NS_A_SECOND
    return by_ns


def remove_clock_steps(
    layouts: Sequence[Layout], matches: Matches | None, *, absolute: bool
) -> WithoutClockSteps:
    """Find clock steps and subtract them from starts; layouts without any are returned unchanged.

    Parameters
    ----------
    layouts : sequence of Layout
        The layout of each group of steps.
    matches : Matches or None
        Compared clocks, with the steps in the order of the layouts; None if a single clock recorded
        all.
    absolute : bool
        Whether starts are readings of clocks. Otherwise starts count from the begin of their step.
    """
    steps = np.concatenate([layout.steps for layout in layouts])
    order = np.argsort(steps)
    jumps: FloatArray | None = None  # (boundaries, ranks)
    if matches is not None and len(steps) >= LEAST_STEPS:
        begin = np.concatenate([layout.begin_ns for layout in layouts])[order]
        moves = _moves(matches.ahead_ns[order], np.abs(np.diff(begin)))
        torn = [] if moves is None else _torn(layouts, order, matches, moves)
        if torn:
            return WithoutClockSteps(list(layouts), (), tuple(steps[order][torn].tolist()))
        if moves is not None:
            jumps = _jumps(layouts, order, matches, moves, absolute=absolute)
    if absolute and len(steps) >= LEAST_STEPS:
        jumps = _with_common_jumps(layouts, order, jumps)
    if jumps is None:
        return WithoutClockSteps(list(layouts), ())
    total = np.zeros((len(steps), jumps.shape[1]))
    total[order[1:]] = np.cumsum(jumps, axis=0)
    return WithoutClockSteps(
        without_offsets(layouts, total), _clock_steps(layouts[0], steps[order], jumps)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Moves:
    """Large changes of the differences between clocks from one step to the next."""

    noise_ns: FloatArray  # (matches,): standard deviation of the usual changes
    boundaries: IntArray  # steps between which and the next the change is far larger


def _moves(ahead: FloatArray, passed_ns: FloatArray) -> _Moves | None:
    """Return the changes between steps that exceed drift and noise; None if there are none.

    Parameters
    ----------
    ahead : float64 array, shape (steps, matches)
        Differences between clocks, ns; see `Matches`.
    passed_ns : float64 array, shape (steps - 1,)
        Time from the begin of each step to the begin of the next.
    """
    moved = np.diff(ahead, axis=0)
    if not moved.size:
        return None
    noise = MAD_TO_SD * median_of_known(np.abs(moved))
    with np.errstate(invalid="ignore"):
        least = np.maximum(LEAST_NS, DRIFT * passed_ns)[:, None]
        far = np.abs(moved) > np.maximum(least, ABOVE_NOISE * noise)
    boundaries = np.flatnonzero(far.any(axis=1))
    return _Moves(noise, boundaries) if len(boundaries) else None


def _torn(layouts: Sequence[Layout], order: IntArray, matches: Matches, moves: _Moves) -> list[int]:
    """Return the indices of steps during which a clock jumped.

    Such a step is longer or shorter than usual by the clocks of only a few ranks, and the ends of
    these ranks stay shifted after the step.
    """
    ahead = matches.ahead_ns[order]
    lengths = np.concatenate([_lengths(layout) for layout in layouts])[order]
    longer = lengths - median(lengths)
    noise = np.maximum(LEAST_NS, ABOVE_NOISE * MAD_TO_SD * median(np.abs(longer)))
    torn = []
    for step in np.unique([moves.boundaries, moves.boundaries + 1]).tolist():
        off = np.abs(longer[step])
        which = np.flatnonzero(off > noise)
        if not len(which) or float(median(off)) > AGREED * float(off[which].max()):
            continue
        before = median_of_known(ahead[max(step - 2, 0) : step])
        last = step + 1 == len(ahead)
        after = ahead[step] if last else median_of_known(ahead[step + 1 : step + 3])
        stays = np.nan_to_num(np.abs(after - before))
        mine = np.isin(matches.first, which) | np.isin(matches.second, which)
        if mine.any() and float(stays[mine].max()) > AGREED * float(off[which].max()):
            torn.append(step)
    return torn


def _lengths(layout: Layout) -> FloatArray:
    """Return the time from each rank's first to its last start in a step, (steps, ranks), ns."""
    starts = layout.start_ns
    if layout.missing is not None:
        starts = np.where(layout.missing, np.nan, starts)
    stages = [starts[layout.nodes.on(stage)] for stage in range(layout.pp)]
    lengths = [np.nanmax(mine, axis=0) - np.nanmin(mine, axis=0) for mine in stages]
    return np.stack(lengths, axis=-1).reshape(len(layout.steps), -1)


def _jumps(
    layouts: Sequence[Layout],
    order: IntArray,
    matches: Matches,
    moves: _Moves,
    *,
    absolute: bool,
) -> FloatArray | None:
    """Return each rank's clock step between two steps, shape (steps - 1, ranks), ns; 0 if none."""
    ahead, noise = matches.ahead_ns[order], moves.noise_ns
    first = layouts[0]
    ranks = first.dp * first.pp
    own = _own_intervals(layouts, order, absolute=absolute)
    jumps: FloatArray | None = None
    edges = [0, *(moves.boundaries + 1).tolist(), len(ahead)]
    for k, boundary in enumerate(moves.boundaries.tolist()):
        before = median_of_known(ahead[edges[k] : edges[k + 1]])
        after = median_of_known(ahead[edges[k + 1] : edges[k + 2]])
        jump = _jump(matches, after - before, noise, ranks, first.pp)
        by_rank = None if jump is None else _absolute_jump(jump, own, boundary)
        if by_rank is not None:
            jumps = np.zeros((len(ahead) - 1, ranks)) if jumps is None else jumps
            jumps[boundary] = by_rank
    return jumps


def _jump(
    matches: Matches, apart: FloatArray, noise: FloatArray, ranks: int, pp: int
) -> FloatArray | None:
    """Return each rank's jump relative to others, shape (ranks,), ns; None if ends disagree."""
    measured = ~np.isnan(apart)
    if not measured.any():
        return None
    error = np.maximum(np.nan_to_num(noise), 1.0)
    count = ranks + pp + 1
    potential = robust_potentials(matches.first, matches.second, apart, error, count)
    left = apart - potential[matches.first] + potential[matches.second]
    largest = float(np.ptp(potential[:ranks]))
    within = np.maximum(AGREED * largest, ABOVE_NOISE * np.nan_to_num(noise))
    if largest < LEAST_NS or (np.abs(left) > within)[measured].mean() > MOST_ODD:
        return None
    return potential[:ranks]


def _absolute_jump(jump: FloatArray, own: _Intervals, boundary: int) -> FloatArray | None:
    """Return the absolute jump of each clock, shape (ranks,), ns; 0 for clocks that did not jump.

    Ends show only how clocks move relative to one another. The time between two steps by a rank's
    own clock shows which clocks jumped, because it is longer by the jump. Return None if these
    times do not agree with the ends: something other than a clock then moved the ends.
    """
    longer = own.longer_ns[boundary] - jump
    common = float(median(longer))
    largest = float(np.ptp(jump))
    if (np.abs(longer - common) > AGREED * largest).mean() > AGREED:
        return None
    groups = _groups(jump, AGREED * largest)
    if own.noise_ns > AGREED * largest:
        # The times between steps vary too much to show which clocks jumped, so the clocks of the
        # largest group that moves together are taken as right.
        most = max(map(len, groups))
        groups = [group for group in groups if len(group) == most]
    unmoved = min(groups, key=lambda group: abs(common + float(jump[group].mean())))
    moved = jump - float(jump[unmoved].mean())
    moved[unmoved] = 0.0
    return moved


def _groups(values: FloatArray, apart: float) -> list[IntArray]:
    """Return groups of indices, such that sorted neighbors in a group differ by at most `apart`."""
    order = np.argsort(values)
    return np.split(order, np.flatnonzero(np.diff(values[order]) > apart) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Intervals:
    """Times from the begin of a step to the begin of the next, by each rank's own clock."""

    longer_ns: FloatArray  # (steps - 1, ranks): excess over the usual time
    noise_ns: float  # standard deviation of the common time of all ranks


def _own_intervals(layouts: Sequence[Layout], order: IntArray, *, absolute: bool) -> _Intervals:
    begins = np.concatenate([_begins(layout, absolute=absolute) for layout in layouts])[order]
    intervals = np.diff(begins, axis=0)
    # Pauses between sampled steps have any length, but are equal on all ranks, so the median over
    # ranks is subtracted.
    together = median(intervals.T)
    apart = intervals - together[:, None]
    passed = np.diff(np.concatenate([layout.steps for layout in layouts])[order])
    together -= median(together / passed) * passed
    longer = apart - median(apart) + together[:, None]
    return _Intervals(longer, MAD_TO_SD * float(median(np.abs(together))))


def _begins(layout: Layout, *, absolute: bool) -> FloatArray:
    """Return the first start of each step by each rank's own clock, shape (steps, ranks), ns."""
    start = layout.start_ns
    if layout.missing is not None:
        start = np.where(layout.missing, np.inf, start)
    begins = np.stack(
        [start[layout.nodes.on(stage)].min(axis=0) for stage in range(layout.pp)], axis=-1
    )
    if absolute:
        begins = begins + layout.begin_ns[:, None, None]
    return begins.reshape(len(layout.steps), -1)


def _with_common_jumps(
    layouts: Sequence[Layout], order: IntArray, jumps: FloatArray | None
) -> FloatArray | None:
    """Add jumps by which all clocks were set back: a step begins before the previous step."""
    begin = np.concatenate([layout.begin_ns for layout in layouts])[order]
    if jumps is not None:
        begin = np.concatenate([_begins(layout, absolute=True) for layout in layouts])[order]
        begin[1:] -= np.cumsum(jumps, axis=0)
        begin = begin.min(axis=1)
    interval = np.diff(begin)
    back = np.flatnonzero(interval < 0)
    forward = interval[interval >= 0]
    if not len(back) or not len(forward):
        return jumps
    first = layouts[0]
    jumps = np.zeros((len(interval), first.dp * first.pp)) if jumps is None else jumps
    jumps[back] += (interval[back] - float(median(forward)))[:, None]
    return jumps


def without_offsets(
    layouts: Sequence[Layout], offsets_ns: FloatArray, rates: FloatArray | None = None
) -> list[Layout]:
    """Return layouts with clock offsets, and the drift of clocks, subtracted from starts.

    Parameters
    ----------
    offsets_ns : float64 array, shape (steps, ranks)
        Offset of each clock, with the steps in the order of the layouts.
    rates : float64 array, shape (steps, ranks), optional
        Rate of each clock, in ns per ns.
    """
    shifted = []
    done = 0
    for layout in layouts:
        steps = slice(done, done + len(layout.steps))
        done = steps.stop
        offset = offsets_ns[steps].reshape(-1, layout.dp, layout.pp)
        start = layout.start_ns - np.moveaxis(offset, 2, 0)[layout.nodes.pp]
        if rates is not None:
            rate = rates[steps].reshape(offset.shape)
            start -= layout.start_ns * np.moveaxis(rate, 2, 0)[layout.nodes.pp]
        present = start if layout.missing is None else np.where(layout.missing, np.inf, start)
        begin = present.min(axis=(0, 2))
        start -= begin[:, None]
        shifted.append(replace(layout, start_ns=start, begin_ns=layout.begin_ns + begin))
    return shifted


def _clock_steps(
    layout: Layout, steps: NDArray[np.int64], jumps: FloatArray
) -> tuple[ClockStep, ...]:
    """Return the jumps, shape (steps - 1, ranks), as clock steps; equal jumps are joined."""
    clock_steps = []
    for boundary in np.flatnonzero(jumps.any(axis=1)).tolist():
        by_rank = jumps[boundary]
        largest = float(np.abs(by_rank).max())
        for group in _groups(by_rank, AGREED * largest):
            by_ns = float(by_rank[group].mean())
            if abs(by_ns) >= LEAST_NS / 2:
                workers = tuple(sorted(divmod(rank, layout.pp) for rank in group.tolist()))
                seconds = by_ns / NS_A_SECOND
                clock_steps.append(ClockStep(int(steps[boundary + 1]), workers, seconds))
    return tuple(clock_steps)

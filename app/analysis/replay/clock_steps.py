"""Clock steps: jumps of a host clock during a session, found and removed.

A time service sets a clock that is off by more than it slews, by milliseconds or minutes. Ends of
transfers and collectives that belong together show the jump; a rank's own time between steps
shows whose clock it is. Steps are removed before the clocks are aligned (`clock_alignment`).
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

# ---- Ends that belong together, by which clocks are compared -----------------------------------


Item = TypeVar("Item")

# Ends that one pair of stages is matched by in each step; more say nothing new.
MATCHES: Final = 6


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Clocks that are compared: node `one` shows `ahead_ns` more than node `other`.

    Nodes are ranks (DP rank × PP + stage), then one for each stage's collectives, then one for the
    boundaries of steps. `ahead_ns` has the shape (steps, matches), NaN where nothing was recorded;
    `spread_ns`, of the same shape, is how far single ends of a step are from it.
    """

    one: NDArray[np.int64]
    other: NDArray[np.int64]
    ahead_ns: FloatArray
    spread_ns: FloatArray

    def pairs(self) -> list[tuple[int, int]]:
        """Return (one, other) of each match."""
        return list(zip(self.one.tolist(), self.other.tolist(), strict=True))


def matches_of(layout: Layout, graph: Graph) -> Matches:
    """Compare the ends of what moves data together."""
    dp, pp = layout.dp, layout.pp
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    collectives: dict[int, list[int]] = {}
    stage = layout.nodes.pp.tolist()
    spanning = layout.of_types(*DP_COLLECTIVES).tolist()
    for unit in graph.units:
        match unit.members:
            case (one_of, other_of) if not unit.across_dp and stage[one_of] != stage[other_of]:
                if layout.free is not None and (layout.free[one_of] or layout.free[other_of]):
                    continue
                if stage[one_of] > stage[other_of]:
                    one_of, other_of = other_of, one_of
                pairs.setdefault((stage[one_of], stage[other_of]), []).append((one_of, other_of))
            case (node,) if spanning[node]:
                collectives.setdefault(stage[node], []).append(node)
            case _:
                pass
    ranks = np.arange(dp) * pp
    one, other, apart = [], [], []
    for (first, second), found in sorted(pairs.items()):
        ends = [_ends(layout, list(side)) for side in zip(*_sample(found), strict=True)]
        one.append(ranks + first)
        other.append(ranks + second)
        apart.append(ends[0] - ends[1])
    if dp > 1:
        for stage, nodes in sorted(collectives.items()):
            end = _ends(layout, _sample(nodes))
            median = median_of_known(end.transpose(2, 0, 1))
            one.append(ranks + stage)
            other.append(np.full(dp, dp * pp + stage))
            apart.append(end - median[:, :, None])
    nothing = np.zeros((len(layout.steps), 0))
    ahead = _medians(apart)
    spread = _medians(
        [np.abs(values - median) for values, median in zip(apart, ahead, strict=True)]
    )
    return Matches(
        np.concatenate([np.zeros(0, dtype=np.int64), *one]),
        np.concatenate([np.zeros(0, dtype=np.int64), *other]),
        np.concatenate([nothing, *ahead], axis=1),
        np.concatenate([nothing, *spread], axis=1),
    )


def _medians(series: Sequence[FloatArray]) -> list[FloatArray]:
    """Return `median_of_known` of each; those that are equally long are looked at together."""
    alike: dict[int, list[int]] = {}
    for index, values in enumerate(series):
        alike.setdefault(len(values), []).append(index)
    found: dict[int, FloatArray] = {}
    for places in alike.values():
        together = np.array([series[index] for index in places]).swapaxes(0, 1)
        found.update(zip(places, median_of_known(together), strict=True))
    return [found[index] for index in range(len(series))]


def _sample(found: list[Item]) -> list[Item]:
    """Choose a few, evenly spread over the whole step."""
    if len(found) <= MATCHES:
        return found
    return [found[i * (len(found) - 1) // (MATCHES - 1)] for i in range(MATCHES)]


def _ends(layout: Layout, nodes: list[int]) -> FloatArray:
    """Return recorded ends, shape (nodes, steps, dp); NaN where missing."""
    ends = layout.start_ns[nodes] + layout.duration_ns[nodes]
    if layout.missing is not None:
        ends[layout.missing[nodes]] = np.nan
    return ends


# ---- Clocks that are set while a session is recorded -------------------------------------------
# A time service that finds a clock wrong by more than it slews sets it: by milliseconds or minutes,
# several times an hour where it fails. What a rank records is then apart from the others by one
# constant before, and by another after. The ends of transfers and collectives say so, and the
# rank's own time between steps says whose clock it was: that of the others goes on evenly. Offsets
# are taken out piece by piece before clocks are compared any further (`alignment`).


IntArray = NDArray[np.intp]

# Ends move by less from step to step without any clock being set.
LEAST_NS: Final = 5e6
# Clocks that are not set drift by less, as a share of the time that passes.
DRIFT: Final = 2e-4
# A jump is at least that many times what ends move by from step to step.
ABOVE_NOISE: Final = 10.0
# All that shows a jump agrees on it within this share of it: ends, and begins of steps.
AGREED: Final = 0.25
# Up to this share of the ends may say something else.
MOST_ODD: Final = 0.1
# Fewer steps do not tell what is usual.
LEAST_STEPS: Final = 4
NS_A_SECOND: Final = 1e9


@dataclass(frozen=True, slots=True)
class ClockSetting:
    """Clocks that were set between two steps."""

    step: int
    """The first analyzed step after it."""
    workers: tuple[tuple[int, int], ...]
    """Whose clocks: (DP rank, stage)."""
    by_s: float
    """By how much, seconds; above 0 where they were put forward."""


@dataclass(frozen=True, slots=True, eq=False)
class PutBack:
    """Layouts as if no clock had been set, and what was taken out."""

    layouts: list[Layout]
    settings: tuple[ClockSetting, ...]
    # Steps within which a clock was set: no times of theirs are right. Nothing else is taken out
    # as long as there are any.
    torn: tuple[int, ...] = ()


def set_by_ns(
    settings: Sequence[ClockSetting], step: IntArray, dp: IntArray, pp: IntArray
) -> FloatArray:
    """Return what clocks were set by before some times of workers were read, ns.

    Parameters
    ----------
    step, dp, pp : int64 arrays, shape (times,)
        In which step each was read, and on which worker.
    """
    by_ns = np.zeros(len(step))
    for one in settings:
        whose = np.zeros(len(step), dtype=bool)
        for rank, stage in one.workers:
            whose |= (dp == rank) & (pp == stage)
        by_ns[whose & (step >= one.step)] += one.by_s * NS_A_SECOND
    return by_ns


def put_back(layouts: Sequence[Layout], matches: Matches | None, *, absolute: bool) -> PutBack:
    """Take out of starts what clocks were set by; layouts without that stay the same objects.

    Parameters
    ----------
    layouts : sequence of Layout
        One of each group of steps.
    matches : Matches or None
        Ends that belong together, steps in the order of the layouts; None of one clock.
    absolute : bool
        Whether starts are readings of clocks; else they count from their step's begin.
    """
    steps = np.concatenate([layout.steps for layout in layouts])
    order = np.argsort(steps)
    jumps: FloatArray | None = None  # (boundaries, ranks)
    if matches is not None and len(steps) >= LEAST_STEPS:
        begin = np.concatenate([layout.begin_ns for layout in layouts])[order]
        moves = _moves(matches.ahead_ns[order], np.abs(np.diff(begin)))
        torn = [] if moves is None else _torn(layouts, order, matches, moves)
        if torn:
            return PutBack(list(layouts), (), tuple(steps[order][torn].tolist()))
        if moves is not None:
            jumps = _jumps(layouts, order, matches, moves, absolute=absolute)
    if absolute and len(steps) >= LEAST_STEPS:
        jumps = _with_set_back(layouts, order, jumps)
    if jumps is None:
        return PutBack(list(layouts), ())
    total = np.zeros((len(steps), jumps.shape[1]))
    total[order[1:]] = np.cumsum(jumps, axis=0)
    return PutBack(_shifted(layouts, total), _settings(layouts[0], steps[order], jumps))


@dataclass(frozen=True, slots=True, eq=False)
class _Moves:
    """Where ends that belong together move against one another from one step to the next."""

    noise_ns: FloatArray  # (matches,): what they usually move by
    boundaries: IntArray  # between this step and the next they move by far more


def _moves(ahead: FloatArray, passed_ns: FloatArray) -> _Moves | None:
    """Return where ends move by more than clocks drift in the time that passes, (steps - 1,)."""
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
    """Return the places of steps within which a clock was set.

    Such a step is longer or shorter than usual by the clock of a few ranks, not by that of the
    others, and the ends of these ranks stay moved after it.
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
        mine = np.isin(matches.one, which) | np.isin(matches.other, which)
        if mine.any() and float(stays[mine].max()) > AGREED * float(off[which].max()):
            torn.append(step)
    return torn


def _lengths(layout: Layout) -> FloatArray:
    """Return what passes from each rank's first start of a step to its last, (steps, ranks)."""
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
    """Return what the clock of each rank is set by between two steps, (steps - 1, ranks)."""
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
        by_rank = None if jump is None else _whose(jump, own, boundary)
        if by_rank is not None:
            jumps = np.zeros((len(ahead) - 1, ranks)) if jumps is None else jumps
            jumps[boundary] = by_rank
    return jumps


def _jump(
    matches: Matches, apart: FloatArray, noise: FloatArray, ranks: int, pp: int
) -> FloatArray | None:
    """Return by how much each rank's clock jumps against the others; None where ends disagree."""
    known = ~np.isnan(apart)
    if not known.any():
        return None
    error = np.maximum(np.nan_to_num(noise), 1.0)
    count = ranks + pp + 1
    potential = robust_potentials(matches.one, matches.other, apart, error, count)
    left = apart - potential[matches.one] + potential[matches.other]
    largest = float(np.ptp(potential[:ranks]))
    within = np.maximum(AGREED * largest, ABOVE_NOISE * np.nan_to_num(noise))
    if largest < LEAST_NS or (np.abs(left) > within)[known].mean() > MOST_ODD:
        return None
    return potential[:ranks]


def _whose(jump: FloatArray, own: _Intervals, boundary: int) -> FloatArray | None:
    """Return the same with the clocks that were not set at 0.

    Ends only tell how far clocks move against one another. The rank's own time between its steps is
    longer by what its clock was put forward. None where it does not follow the ends: then something
    else than clocks moves them.
    """
    longer = own.longer_ns[boundary] - jump
    common = float(median(longer))
    largest = float(np.ptp(jump))
    if (np.abs(longer - common) > AGREED * largest).mean() > AGREED:
        return None
    groups = _groups(jump, AGREED * largest)
    if own.noise_ns > AGREED * largest:
        # No step is like another: most clocks are right.
        most = max(map(len, groups))
        groups = [group for group in groups if len(group) == most]
    unmoved = min(groups, key=lambda group: abs(common + float(jump[group].mean())))
    moved = jump - float(jump[unmoved].mean())
    moved[unmoved] = 0.0
    return moved


def _groups(values: FloatArray, apart: float) -> list[IntArray]:
    """Return the places of values that are close to one another."""
    order = np.argsort(values)
    return np.split(order, np.flatnonzero(np.diff(values[order]) > apart) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Intervals:
    """Times from one step's begin to the next, by each rank's own clock."""

    longer_ns: FloatArray  # (steps - 1, ranks): above what is usual
    noise_ns: float  # how much those of all ranks together differ from one another


def _own_intervals(layouts: Sequence[Layout], order: IntArray, *, absolute: bool) -> _Intervals:
    begins = np.concatenate([_begins(layout, absolute=absolute) for layout in layouts])[order]
    intervals = np.diff(begins, axis=0)
    # Steps may be sampled with pauses of any length, but these are the same of all ranks.
    together = median(intervals.T)
    apart = intervals - together[:, None]
    passed = np.diff(np.concatenate([layout.steps for layout in layouts])[order])
    together -= median(together / passed) * passed
    longer = apart - median(apart) + together[:, None]
    return _Intervals(longer, MAD_TO_SD * float(median(np.abs(together))))


def _begins(layout: Layout, *, absolute: bool) -> FloatArray:
    """Return when each rank begins each step, (steps, ranks), by its own clock."""
    start = layout.start_ns
    if layout.missing is not None:
        start = np.where(layout.missing, np.inf, start)
    begins = np.stack(
        [start[layout.nodes.on(stage)].min(axis=0) for stage in range(layout.pp)], axis=-1
    )
    if absolute:
        begins = begins + layout.begin_ns[:, None, None]
    return begins.reshape(len(layout.steps), -1)


def _with_set_back(
    layouts: Sequence[Layout], order: IntArray, jumps: FloatArray | None
) -> FloatArray | None:
    """Add what the clock of all ranks was set back by: a step that begins before the last one."""
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


def _shifted(layouts: Sequence[Layout], total_ns: FloatArray) -> list[Layout]:
    """Return layouts with something taken off the starts of each rank and step."""
    shifted = []
    done = 0
    for layout in layouts:
        steps = slice(done, done + len(layout.steps))
        done = steps.stop
        off = total_ns[steps].reshape(-1, layout.dp, layout.pp)
        start = layout.start_ns - np.moveaxis(off, 2, 0)[layout.nodes.pp]
        present = start if layout.missing is None else np.where(layout.missing, np.inf, start)
        begin = present.min(axis=(0, 2))
        start -= begin[:, None]
        shifted.append(replace(layout, start_ns=start, begin_ns=layout.begin_ns + begin))
    return shifted


def _settings(
    layout: Layout, steps: NDArray[np.int64], jumps: FloatArray
) -> tuple[ClockSetting, ...]:
    found = []
    for boundary in np.flatnonzero(jumps.any(axis=1)).tolist():
        by_rank = jumps[boundary]
        largest = float(np.abs(by_rank).max())
        for group in _groups(by_rank, AGREED * largest):
            by_ns = float(by_rank[group].mean())
            if abs(by_ns) >= LEAST_NS / 2:
                workers = tuple(sorted(divmod(rank, layout.pp) for rank in group.tolist()))
                found.append(ClockSetting(int(steps[boundary + 1]), workers, by_ns / NS_A_SECOND))
    return tuple(found)

"""Causes of a discrepancy between replay and recording: late launches, clocks, recorded ends.

Source: section 6 of "Understanding Stragglers in Large Model Training Using What-if Analysis",
which this module calls "the paper".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.adaptations.candidate import LEAST_GAIN, Draft, Recording, discrepancy
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.adaptations.late_ends import end_with_receives
from app.analysis.replay.adaptations.nested_collectives import find_nested
from app.analysis.replay.adaptations.signs import sampled
from app.analysis.replay.clock_alignment import clocks_apart_ns
from app.analysis.replay.host_delays import launch_delays
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.replay.metrics import Metrics, merge_types, present_types
from app.analysis.replay.session import Replayed, ShapeGroup
from app.analysis.wording import percent

# Clocks disagree if paired ends are apart by more than this share of a step.
CLOCKS: Final = 0.01
# Smallest share of the discrepancy that the likeliest cause has to explain.
_MOSTLY: Final = 0.5
# A recorder takes the ends of a type of sends late if at least this share of the sends ends late.
_MANY: Final = 0.5
# A launch is late if its delay exceeds `_LATE_NS` and also the share `_LATE_SHARE` of a
# computation. It is regularly late if it is late in at least the share `_REGULARLY` of cases, since
# hosts that are late by chance delay different launches.
_LATE_NS: Final = 1e6
_LATE_SHARE: Final = 0.03
_REGULARLY: Final = 0.8
# A launch waits for an operation if it comes at most `_AT_ONCE_NS`, or the share `_AT_ONCE_SHARE`
# of a computation, after the operation's end, and at most `_BEFORE_NS` (clock noise) before it.
_AT_ONCE_NS: Final = 1.5e6
_AT_ONCE_SHARE: Final = 0.03
_BEFORE_NS: Final = 0.3e6
# Number of steps whose launch delays are analyzed, which limits the time of the analysis.
_STEPS: Final = 64
_NAMED: Final = 3

CLOCKS_DISAGREE: Final = (
    "Likeliest: clocks disagree, ends that belong together are up to {ms:.1f} ms apart; "
    "synchronize the hosts."
)
STEPS_OVERLAP: Final = (
    "Likeliest: steps overlap, and not all of them are comparable; record consecutive steps of one "
    "shape with absolute times."
)
ENDS_AT_WAIT: Final = (
    "Likeliest: ends of transfers are taken when the job waits for them; take them when the "
    "transfer is done."
)
COLLECTIVES_INSIDE: Final = (
    "Likeliest: computations wait inside for collectives; record all of these, with their own "
    "start and end."
)
FALSE_DEPENDENCY: Final = (
    "Likeliest: kernels wait for others that they do not need, {where} always for the end of "
    "{behind}; keep them apart (a larger CUDA_DEVICE_MAX_CONNECTIONS), or record what they do wait "
    "for."
)
HELD_UP: Final = (
    "Likeliest: something that is not recorded holds up the same launches in every step ({where}); "
    "record what runs before them, with its own start and end."
)
POSTED_LATE: Final = (
    "Likeliest: the job posts transfers later than it could, in every step alike ({where}); record "
    "what its hosts wait for before that."
)
HOST_NOISE: Final = (
    "Likeliest: host noise, launches come late by chance; leave the hosts to the job, or record "
    "what runs between its operations."
)


def likeliest_mismatch(
    replayed: Replayed,
    late_types: Sequence[str],
    late_share: float,
    gap: float,
    explained: str | None = None,
) -> str | None:
    """Return the likeliest cause of a discrepancy, and what to change in the recording.

    Parameters
    ----------
    replayed : Replayed
        Session, of which the steps of the most frequent shape are analyzed.
    late_types : sequence of str
        Op types whose late launches cost most.
    late_share : float
        Share of the step time that these late launches add.
    gap : float
        Ratio of recorded to simulated step time, minus 1.
    explained : str, optional
        Sentence on the reason for late launches; it is returned if the recorded times are right.

    Returns
    -------
    str or None
        None if no known cause applies.
    """
    elsewhere = recorded_otherwise(replayed, gap) or explained
    if elsewhere is not None:
        return elsewhere
    group = replayed.main
    if find_nested(sampled(group.layout)) is not None:
        return COLLECTIVES_INSIDE
    if gap > 0 and late_share >= _MOSTLY * gap:
        return _held_up(group, late_types) or HOST_NOISE
    nested = any(item.name is Name.NESTED_COLLECTIVES for item in replayed.adaptations)
    return COLLECTIVES_INSIDE if nested else None


def recorded_otherwise(replayed: Replayed, gap: float) -> str | None:
    """Return the fault of recorded times that makes launches seem late; None if there is no fault.

    `gap` is the ratio of recorded to simulated step time, minus 1.
    """
    group = replayed.main
    if _ends_at_wait(group):
        return ENDS_AT_WAIT
    apart_ns = 0.0 if replayed.one_clock else clocks_apart_ns(group.layout, group.graph)
    step_ns = (group.layout.start_ns + group.layout.duration_ns).max(axis=(0, 2)).mean()
    if apart_ns > CLOCKS * float(step_ns):
        return CLOCKS_DISAGREE.format(ms=apart_ns * 1e-6)
    return STEPS_OVERLAP if _steps_overlap(replayed, gap) else None


def _ends_at_wait(group: ShapeGroup) -> bool:
    """Return whether ending late sends with their receives reduces the discrepancy."""
    layout, graph = group.layout, group.graph
    adapted = end_with_receives(layout, graph, _MANY)
    if adapted is None:
        return False
    draft = Draft.of([adapted[0]], [graph], Recording(absolute=False))
    before, after = discrepancy([layout], [graph]), discrepancy(draft.layouts, [graph])
    return before - after >= LEAST_GAIN


def _steps_overlap(replayed: Replayed, gap: float) -> bool:
    """Return whether the discrepancy may come from steps that overlap in the recording.

    This is so if steps overlap by about as much as the discrepancy and, if steps can be chained, a
    replay of chained steps is nearer to the recording.
    """
    layout, graph = replayed.layout, replayed.graph
    absolute = replayed.clocks.drift_ppm is not None
    next_to = np.diff(layout.steps) == 1
    if graph.chained or not absolute or not next_to.any():
        return False
    period = np.diff(layout.begin_ns)
    overlap = (layout.start_ns + layout.duration_ns).max(axis=(0, 2))[:-1] - period
    least = max(LEAST_GAIN, _MOSTLY * gap) * np.median(period[next_to])
    if np.median(overlap[next_to]) < least:
        return False
    if len(replayed.groups) > 1 or not next_to.all():
        return True
    chained = replace(graph, chained=True)
    gain = discrepancy([layout], [graph]) - discrepancy([layout], [chained])
    return gain >= LEAST_GAIN


def _held_up(group: ShapeGroup, types: Sequence[str]) -> str | None:
    """Return the cause of regularly late launches; None if launches are late by chance."""
    layout = group.layout
    delays, _ = launch_delays(group, slice(0, _STEPS))
    typical_ns = float(np.median(layout.duration_ns[layout.of_types(*COMPUTE)]))
    least = max(_LATE_NS, _LATE_SHARE * typical_ns)
    of_types = layout.of_types(*types)
    late = (delays > least) & of_types[:, None, None]
    held = np.flatnonzero(late.mean(axis=(1, 2)) >= _REGULARLY)
    costs = np.where(late, delays, 0.0).sum(axis=(1, 2))
    if costs[held].sum() < _MOSTLY * costs.sum() or not len(held):
        return None
    kinds = Counter(
        f"{layout.op_names[layout.nodes.op[node]]} on stage {layout.nodes.pp[node]}"
        for node in held.tolist()
    )
    where = ", ".join(name for name, _ in kinds.most_common(_NAMED))
    where += " and others" if len(kinds) > _NAMED else ""
    computes = layout.of_types(*COMPUTE)
    if not computes[held].all():
        return POSTED_LATE.format(where=where)
    within = max(_AT_ONCE_NS, _AT_ONCE_SHARE * typical_ns)
    behind = _behind(group, held, late[held], within)
    if behind is None:
        return HELD_UP.format(where=where)
    return FALSE_DEPENDENCY.format(where=where, behind=behind)


def _behind(
    group: ShapeGroup, held: NDArray[np.int64], late: NDArray[np.bool_], within_ns: float
) -> str | None:
    """Return the op type after whose ends, on the same rank, late computations begin; None if none.

    Parameters
    ----------
    held : int64 array, shape (held,)
        Late computations.
    late : bool array, shape (held, some steps, dp)
        Where each of these computations is late.
    """
    layout = group.layout
    steps = slice(0, late.shape[1])
    ends = layout.start_ns[:, steps] + layout.duration_ns[:, steps]
    others = ~layout.of_types(*COMPUTE)
    matches: Counter[str] = Counter()
    for node, when in zip(held.tolist(), late, strict=True):
        parallel = np.flatnonzero(others & (layout.nodes.pp == layout.nodes.pp[node]))
        after = layout.start_ns[node, steps] - ends[parallel]
        near = (after > -_BEFORE_NS) & (after < within_ns) & when
        for code in np.unique(layout.nodes.op[parallel]).tolist():
            of_type = near[layout.nodes.op[parallel] == code]
            matches[layout.op_names[code]] += int(of_type.any(axis=0).sum())
    if not matches:
        return None
    name, count = matches.most_common(1)[0]
    return name if count >= _REGULARLY * late.sum() else None


# Largest discrepancy between replay and recording with which a report gives a verdict (paper,
# section 6).
DISCREPANCY_LIMIT: Final = 0.05
NS: Final = 1e-9
# Largest number of late op types that a report names, and of ranks for each op type.
MOST_TYPES: Final = 3
MOST_WORKERS: Final = 4
# Smallest cost of late launches that a report names, as a share of a step.
WORTH_NAMING: Final = 0.005
# Number of steps whose launch delays are computed at a time, which limits memory.
BLOCK_STEPS: Final = 64

DELAYED: Final = (
    "Likeliest: {causes}. Replayed with the launches that this makes late, the difference is "
    "{off}: the recording lacks nothing, mend the cause."
)


@dataclass(frozen=True, slots=True)
class Late:
    """An op type with late launches, and the ranks whose late launches cost most."""

    op_type: str
    share: float  # share of the recorded step time that its late launches add
    # ((DP rank, stage), share of the recorded step time that late launches of this rank alone add)
    workers: tuple[tuple[tuple[int, int], float], ...]


def late_launches(replayed: Replayed, metrics: Metrics) -> list[Late]:
    """Return the op types whose late launches cost most, and the costliest ranks of each."""
    types = merge_types(present_types(replayed))
    costly = sorted(metrics.launch_by_optype.items(), key=lambda item: -item[1])[:MOST_TYPES]
    return [
        Late(name, share, _late_workers(replayed, metrics, types[name]))
        for name, share in costly
        if share >= WORTH_NAMING
    ]


def _late_workers(
    replayed: Replayed, metrics: Metrics, types: Sequence[str]
) -> tuple[tuple[tuple[int, int], float], ...]:
    """Return the ranks with the longest launch delays, and the cost of each if it alone is late."""
    delay_ns = np.zeros((replayed.layout.dp, replayed.layout.pp))
    for group in replayed.groups:
        layout = group.layout
        of_types = layout.of_types(*types)
        of_group_ns = np.zeros(delay_ns.shape)
        for first in range(0, len(layout.steps), BLOCK_STEPS):
            delays, _ = launch_delays(group, slice(first, first + BLOCK_STEPS))
            for stage in range(layout.pp):
                chosen = of_types & (layout.nodes.pp == stage)
                of_group_ns[:, stage] += np.maximum(delays[chosen], 0.0).sum(axis=(0, 1))
        delay_ns += of_group_ns
    order = np.argsort(-delay_ns.ravel(), kind="stable")[:MOST_WORKERS]
    recorded, simulated = metrics.recorded_step_s, metrics.simulated_step_s
    late = []
    for dp, stage in (divmod(int(i), replayed.layout.pp) for i in order):
        times = replayed.over_steps(
            lambda group, dp=dp, stage=stage: group.simulator.delayed_step_times(  # type: ignore[misc]
                [types], _only(group, dp, stage)
            )[0]
        )
        share = (float(np.mean(times)) * NS - simulated) / recorded
        if share >= WORTH_NAMING:
            late.append(((dp, stage), share))
    return tuple(sorted(late, key=lambda item: -item[1]))


def _only(group: ShapeGroup, dp: int, stage: int) -> Callable[[slice], FloatArray]:
    """Return a function of a slice of steps that returns launch delays of a single rank, ns.

    The delays of all other ranks are 0.
    """
    elsewhere: NDArray[np.bool_] = group.layout.nodes.pp != stage

    def delays(steps: slice) -> FloatArray:
        values, _ = launch_delays(group, steps)
        values[elsewhere] = 0.0
        values[:, :, np.arange(group.layout.dp) != dp] = 0.0
        return values

    return delays


@dataclass(frozen=True, slots=True)
class Delaying:
    """Titles of causes of late launches, and the discrepancy of a replay with late launches.

    If this discrepancy is small, the recording is right and these causes explain it.
    """

    titles: tuple[str, ...]
    discrepancy: float


def distrust(
    replayed: Replayed,
    metrics: Metrics,
    late: Sequence[Late],
    limit: float,
    delaying: Delaying | None = None,
) -> str:
    """Return sentences on the discrepancy: its size, late launches, and the likeliest cause."""
    merged = merge_types(present_types(replayed))
    hint = likeliest_mismatch(
        replayed,
        [name for item in late for name in merged[item.op_type]],
        sum(item.share for item in late),
        metrics.recorded_step_s / metrics.simulated_step_s - 1,
        explained=None
        if delaying is None or delaying.discrepancy > limit
        else DELAYED.format(
            causes=" and ".join(title.lower() for title in delaying.titles),
            off=percent(delaying.discrepancy),
        ),
    )
    difference = _difference(metrics, late, limit)
    return f"{difference} {hint}" if hint else difference


def _difference(metrics: Metrics, late: Sequence[Late], limit: float) -> str:
    opening = (
        f"The replay differs from the recording by {percent(metrics.discrepancy)}, "
        f"the limit is {percent(limit, 0)}."
    )
    if metrics.recorded_step_s < metrics.simulated_step_s:
        return (
            f"{opening} The recording is the shorter one: operations that the dependency model "
            "runs one after another overlap in it."
        )
    if not late:
        return f"{opening} No op type alone is launched late: delays add up along each step."
    first = late[0]
    where = ", ".join(f"worker ({dp}, {pp}) {percent(share)}" for (dp, pp), share in first.workers)
    others = ", ".join(f"{item.op_type} {percent(item.share)}" for item in late[1:])
    return (
        f"{opening} Most of it: launches of {first.op_type} come late, "
        f"{percent(first.share)} of a step"
        + (f"; alone, on {where}" if where else "")
        + (f". Also {others}" if others else "")
        + "."
    )

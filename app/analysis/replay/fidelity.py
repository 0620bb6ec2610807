"""Where the time went that a replay does not account for (section 6 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.launched import launch_delays
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.metrics import Metrics, merge_types, present_types
from app.analysis.replay.mismatch import likeliest_mismatch
from app.analysis.replay.session import Replayed, ShapeGroup
from app.analysis.wording import percent

# A replay further than this from the recording says nothing about the recording (paper, section 6).
DISCREPANCY_LIMIT: Final = 0.05
NS: Final = 1e-9
# Op types, and ranks of each, that are named.
MOST_TYPES: Final = 3
MOST_WORKERS: Final = 4
# A smaller share of a step is not worth a word.
WORTH_NAMING: Final = 0.005
# Steps whose launch delays are in memory at a time.
BLOCK_STEPS: Final = 64

DELAYED: Final = (
    "Likeliest: {causes}. Replayed with the launches that this makes late, the difference is "
    "{off}: the recording lacks nothing, mend the cause."
)


@dataclass(frozen=True, slots=True)
class Late:
    """An op type that is launched late, and the ranks that do so most."""

    op_type: str
    share: float  # what its late launches add to a step, as a share of the recorded step time
    # tuple of ((DP rank, stage), share): the same, of single ranks
    workers: tuple[tuple[tuple[int, int], float], ...]


def late_launches(replayed: Replayed, metrics: Metrics) -> list[Late]:
    """Name the op types, and for each the ranks, whose late launches cost most."""
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
    """Replay the ranks with the longest delays as the only ones that are late."""
    delay = sum(_delays_by_worker(group, types) for group in replayed.groups)
    order = np.argsort(-np.ravel(delay), kind="stable")[:MOST_WORKERS]
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


def _delays_by_worker(group: ShapeGroup, types: Sequence[str]) -> FloatArray:
    """Return the sum of the launch delays of some types on each rank, shape (dp, pp)."""
    layout = group.layout
    of_types = layout.of_types(*types)
    total = np.zeros((layout.dp, layout.pp))
    for first in range(0, len(layout.steps), BLOCK_STEPS):
        delays, _ = launch_delays(group, slice(first, first + BLOCK_STEPS))
        for stage in range(layout.pp):
            chosen = of_types & (layout.nodes.pp == stage)
            total[:, stage] += np.maximum(delays[chosen], 0.0).sum(axis=(0, 1))
    return total


def _only(group: ShapeGroup, dp: int, stage: int) -> Callable[[slice], FloatArray]:
    """Return the launch delays of one rank; all others launch at once."""
    elsewhere: NDArray[np.bool_] = group.layout.nodes.pp != stage

    def delays(steps: slice) -> FloatArray:
        values, _ = launch_delays(group, steps)
        values[elsewhere] = 0.0
        values[:, :, np.arange(group.layout.dp) != dp] = 0.0
        return values

    return delays


@dataclass(frozen=True, slots=True)
class Delaying:
    """Causes that make launches late, by their titles, and the discrepancy of a replay with that.

    No replay of durations shows them; where this one is near, nothing is wrong with the recording.
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
    """Say in words what keeps the replay from the recording, and what would help."""
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
    what = _difference(metrics, late, limit)
    return f"{what} {hint}" if hint else what


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
    where = ", ".join(f"{_place(worker)} {percent(share)}" for worker, share in first.workers)
    others = ", ".join(f"{item.op_type} {percent(item.share)}" for item in late[1:])
    return (
        f"{opening} Most of it: launches of {first.op_type} come late, "
        f"{percent(first.share)} of a step"
        + (f"; alone, on {where}" if where else "")
        + (f". Also {others}" if others else "")
        + "."
    )


def _place(worker: tuple[int, int]) -> str:
    return f"worker ({worker[0]}, {worker[1]})"

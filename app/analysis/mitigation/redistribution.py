"""Fewer microbatches for DP ranks with a slow worker; the other DP ranks compute them instead.

The global batch stays, no machine is replaced, and nothing is restarted: Falcon (Wu and others,
2024) and its successor Greyhound redistribute microbatches between two steps. A pipeline with n
microbatches takes n times its slowest stage and, to fill and drain, once each other stage. The
computations of each DP rank are scaled to this time at its new number, and the session is replayed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.observation import COMPUTATIONS, Observation
from app.analysis.mitigation.fixes import Fix, Redistribution
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.engine.simulator import Replacement
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, P2P
from app.analysis.replay.session import ShapeGroup
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, PARAMS_ALL_GATHER
from app.analysis.trace.parallelism import shares_experts
from app.analysis.wording import name_list

REDISTRIBUTE_MICROBATCHES: Final = "redistribute_microbatches"
# Maximum number of slow DP ranks that a title lists.
_NAMED: Final = 3
# Relative rounding error of times.
_EQUAL: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class PipelineTimes:
    """Time that each DP rank's pipeline takes for a number of microbatches."""

    microbatches: int  # of every DP rank today
    group: int  # microbatches that move together: the number of stages in interleaved schedules
    each_ns: FloatArray  # (dp,): time of a microbatch on the rank's slowest stage
    fill_ns: FloatArray  # (dp,): time to fill and drain the pipeline

    def total_ns(self, counts: IntArray) -> FloatArray:
        """Return the time of each rank's pipeline with `counts` microbatches, shape (dp,), ns."""
        return counts * self.each_ns + self.fill_ns


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """Numbers of microbatches to replay."""

    times: PipelineTimes
    counts: IntArray  # (dp,)

    def replacement(self, group: ShapeGroup) -> Replacement:
        """Return the durations of a group with the new numbers of microbatches."""
        recorded, layout = group.durations.recorded_ns, group.layout
        computes = layout.of_types(*COMPUTATIONS)
        nodes = np.flatnonzero(computes | layout.of_types(*P2P))
        today = np.full(len(self.counts), self.times.microbatches)
        total = self.times.total_ns(self.counts) / self.times.total_ns(today)
        # A slow link takes its time once for each microbatch.
        factor = np.where(computes[nodes, None], total, self.counts / today)[:, None]
        return Replacement(nodes, lambda steps: recorded[nodes, steps] * factor)


def redistribute(observation: Observation, cause: Cause) -> tuple[Fix, Shift] | None:
    """Return the numbers of microbatches that end the slowest DP rank's pipeline earliest.

    None if the slow worker is not always slow, if all DP ranks have one, or if DP ranks must run
    equally many microbatches, because they communicate in each of them.
    """
    layout = observation.layout
    slow = sorted({dp for dp, _ in cause.where.workers})
    if cause.where.spells is not None or not 0 < len(slow) < layout.dp or layout.padding:
        return None
    if _meets_in_microbatches(observation):
        return None
    times = _pipeline_times(observation)
    counts = None if times is None else fewest_moved(times, slow)
    if times is None or counts is None:
        return None
    held, then = _held_microbatches(layout, times.microbatches, int(counts.max()))
    plan = Redistribution(times.microbatches, tuple(counts.tolist()), held, then)
    fewer = [f"{counts[dp]} for DP rank {dp}" for dp in slow if counts[dp] < times.microbatches]
    more = np.flatnonzero(counts > times.microbatches).tolist()
    others = name_list("DP rank", [str(dp) for dp in more])
    named = fewer[:_NAMED] + ([f"{len(fewer) - _NAMED} others"] if len(fewer) > _NAMED else [])
    memory = (
        f"memory grows: a stage of them holds up to {then} microbatches at once, now {held}"
        if then > held
        else f"memory does not grow: a stage holds at most {held} at once, as now"
    )
    fix = Fix(
        REDISTRIBUTE_MICROBATCHES,
        f"Fewer microbatches where a worker is slow: {' and '.join(named)} instead of "
        f"{times.microbatches}",
        f"No other machine is needed: at most {int(counts.max())} run on {others}; {memory}. "
        "First redistribute, from one step to the next; then plan a template, which needs a "
        "restart; replace the worker last. Replayed with computations and transfers of the new "
        f"numbers. Each rank's loss counts by its share: {plan.line}. The documentation of fixes "
        "has the lines for Megatron-Core, torchtitan and hand-written loops.",
        cause=cause.cause,
        redistribution=plan,
    )
    return fix, Shift(times, counts)


def _meets_in_microbatches(observation: Observation) -> bool:
    """Return whether DP ranks communicate in each microbatch, so that all must run equally many.

    FSDP gathers parameters again for each backward, and reduces gradients before the last forward;
    experts are shared over DP ranks.
    """
    layout = observation.layout
    if shares_experts(observation.trace):
        return True
    for stage in range(layout.pp):
        forwards, backwards = (
            layout.launch[layout.of(name, stage)] for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE)
        )
        if not len(forwards) or not len(backwards):
            return True
        for name in DP_COLLECTIVES:
            launch = layout.launch[layout.of(name, stage)]
            # Parameters are gathered once before the first backward or after the last one,
            # gradients reduced once after the last forward.
            first = backwards.min() if name == PARAMS_ALL_GATHER else forwards.min()
            last = backwards.max() if name == PARAMS_ALL_GATHER else forwards.max()
            if ((launch > first) & (launch < last)).any():
                return True
    return False


def _pipeline_times(observation: Observation) -> PipelineTimes | None:
    """Return the time of each DP rank's pipeline; None without several microbatches."""
    layout, vpp = observation.layout, observation.trace.meta.sizes.vpp
    forwards = {len(layout.of(FORWARD_COMPUTE, stage)) for stage in range(layout.pp)}
    group = layout.pp if vpp > 1 else 1
    if len(forwards) != 1:
        return None
    microbatches, rest = divmod(forwards.pop(), vpp)
    if rest or microbatches < 2 * group or microbatches % group:
        return None
    computes = layout.of_types(*COMPUTATIONS)
    by_stage = np.array(
        [
            observation.recorded_ns[computes & (layout.nodes.pp == stage)].sum(axis=0).mean(axis=0)
            for stage in range(layout.pp)
        ]
    )
    each_ns = by_stage.max(axis=0) / microbatches
    fill_ns = (by_stage.sum(axis=0) / microbatches - each_ns) / vpp
    return PipelineTimes(microbatches, group, each_ns, fill_ns)


def fewest_moved(times: PipelineTimes, slow: list[int]) -> IntArray | None:
    """Return the number of microbatches of each DP rank with the earliest end of the last rank.

    Ranks that are not slow count as equally fast, so that noise moves nothing among them. Of
    equally good numbers those with the fewest moved microbatches are returned; None if no move
    helps.
    """
    today, group = times.microbatches, times.group
    others = np.setdiff1d(np.arange(len(times.each_ns)), slow)
    each, fill = times.each_ns.copy(), times.fill_ns.copy()
    each[others], fill[others] = np.median(each[others]), np.median(fill[others])
    usual = PipelineTimes(today, group, each, fill)
    all_today = np.full(len(each), today)
    # Each group goes to the rank that then ends first; no other numbers end earlier.
    ends = [(float(fill[dp] + 2 * group * each[dp]), dp) for dp in range(len(each))]
    heapq.heapify(ends)
    last_ns = float(usual.total_ns(np.full(len(each), group)).max())
    for _ in range(len(each) * (today // group - 1)):
        end_ns, dp = ends[0]
        last_ns = max(last_ns, end_ns)
        heapq.heapreplace(ends, (end_ns + float(group * each[dp]), dp))
    if last_ns * (1 + _EQUAL) >= usual.total_ns(all_today).max():
        return None
    room = np.floor((last_ns * (1 + _EQUAL) - fill) / (group * each)).astype(np.int64) * group
    counts: IntArray = np.minimum(all_today, room)
    moved = int((all_today - counts).sum()) // group
    while moved:
        # The ranks with room take one more group each.
        takers = np.flatnonzero(room >= np.maximum(counts, today) + group)[:moved]
        counts[takers] += group
        moved -= len(takers)
    return counts


def _held_microbatches(layout: Layout, today: int, most: int) -> tuple[int, int]:
    """Return how many microbatches' activations a stage holds at once, today and at `most`.

    A stage holds a microbatch from its forward to its backward. The number depends on that of the
    microbatches only where all forwards precede the first backward.
    """
    held = 0
    for stage in range(layout.pp):
        forwards, backwards = (
            np.sort(layout.launch[layout.of(name, stage)])
            for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE)
        )
        ended = np.searchsorted(backwards, forwards)
        chunks = len(forwards) / today
        held = max(held, int(np.ceil((np.arange(1, len(forwards) + 1) - ended).max() / chunks)))
    return held, (most if held == today else held)

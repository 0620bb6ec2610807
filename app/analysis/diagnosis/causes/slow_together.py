"""Slow together: all workers compute slower than in their best steps, in spells or steadily.

A comparison of workers with one another cannot show the cause: its reason is outside of the job, or
in the job's state. If earlier sessions of the job are known, all steps may be slower than the steps
of these sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from app.analysis.budget.common_slowdown import CommonFactor
from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy
from app.analysis.diagnosis.earlier_sessions import Past
from app.analysis.diagnosis.finding import (
    Cause,
    Change,
    ComputingLevels,
    Doubt,
    Evidence,
    Finding,
    Uncertainty,
)
from app.analysis.diagnosis.locations import (
    FigureView,
    Hosts,
    JobFacts,
    RegionView,
    SlowSpells,
    StepView,
    Where,
)
from app.analysis.diagnosis.observation import COMPUTATIONS, Observation, scatter_of_most
from app.analysis.diagnosis.recorded_lengths import SlowTogether, slow_together
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.robust_statistics import median
from app.analysis.replay.session import recorded_step_times
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, GC
from app.analysis.wording import percent

# Half of a 95 % interval, in standard deviations of a normal value.
_WIDE: Final = 1.96


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide the likely reason why all workers are slow."""

    # If microbatches differ in length, slow steps must come in runs of this mean length: single
    # slow steps are the steps with long microbatches.
    stretch: float = 3.0
    # In slow steps, the excess of the median microbatch is at least this share of the mean's
    # excess: otherwise only a few microbatches are much longer.
    of_most: float = 0.3
    nearly_all: float = 0.9  # share of slow steps in a stretch that counts as slow throughout
    # A pause before the first slow step is unusual if it takes this many times the usual gap, and
    # this share of a step.
    pause_to_usual: float = 3.0
    pause: float = 0.1
    more_work: float = 1.03  # ratio from which slow steps count as having more work
    # Backwards are not slow if their excess is less than this share of the forwards' excess: then
    # the hosts are slow.
    one_way: float = 0.25
    # Garbage collections explain slow steps when the excess of collections is this share of the
    # loss.
    collecting: float = 0.5
    one_session: float = 0.8  # the highest confidence where the past is a single session


THRESHOLDS: Final = Thresholds()


def _hides(signs: Signs) -> bool:
    """Return whether all workers have slow steps, which the ideal, a mean, contains."""
    shared = signs.observation.shares_processors
    past = signs.past
    slower = past is not None and past.all_slower
    return not shared and (
        slower or bool(signs.observation.memoize(slow_together).factor.slow.any())
    )


def _find(signs: Signs) -> Finding | None:
    """Return the slow steps; without the cause all workers compute as in their best steps."""
    observation = signs.observation
    slowdown = observation.memoize(slow_together)
    factor = slowdown.factor
    within = bool(factor.slow.any()) and not _are_of_long_microbatches(signs, factor)
    before = signs.past if signs.past is not None and signs.past.all_slower else None
    if not within:
        return None if before is None else _slower_than_before(observation, before)
    by_step = factor.by_step * (1.0 if before is None else before.times)
    share = (1 - 1 / by_step)[:, None]
    less = _lost_ns(observation, share)
    likely = _likely(signs, slowdown)
    steps = observation.layout.steps
    figure = ComputingLevels(
        by_step=tuple(factor.level.tolist()),
        when=_when(steps, factor.slow),
        growth=factor.growth,
        likely=likely,
    )
    spells = SlowSpells(
        steps=int(factor.slow.sum()), of=len(factor.slow), times=_times(factor.level, factor.slow)
    )
    best = np.log(factor.level[factor.best])
    return Finding(
        change=Change(less_ns=less),
        evidence=(
            *_evidence(observation, slowdown, figure),
            *(() if before is None else (_against_past(before),)),
        ),
        where=Where(spells=spells),
        figure=figure,
        uncertainty=Uncertainty(
            _WIDE * scatter_of_most(best) / sqrt(max(len(best), 1)), hiding=0.0
        ),
    )


def _lost_ns(observation: Observation, share: FloatArray) -> dict[int, FloatArray]:
    """Return the lost computing time by node, given the lost share of each step, (steps, 1)."""
    return {
        node: observation.recorded_ns[node] * share
        for name in COMPUTATIONS
        for stage in range(observation.layout.pp)
        for node in observation.computations(name, stage)
    }


def _slower_than_before(observation: Observation, past: Past) -> Finding:
    """Return the finding that all steps are slower than in the job's earlier sessions."""
    steps = len(observation.layout.steps)
    share = np.full((steps, 1), 1 - 1 / past.times)
    return Finding(
        change=Change(less_ns=_lost_ns(observation, share)),
        evidence=(_against_past(past),),
        figure=ComputingLevels(
            by_step=(past.times,) * steps, when=f"than in session {past.number}"
        ),
        uncertainty=Uncertainty(_WIDE * past.scatter, hiding=0.0),
        doubt=Doubt(THRESHOLDS.one_session) if past.sessions == 1 else None,
    )


def _against_past(past: Past) -> Evidence:
    compared = int(np.count_nonzero(~np.isnan(past.ratio)))
    of = "" if past.sessions == 1 else f" and {past.sessions - 1} more like it"
    return Evidence(
        f"The median of {compared} workers computes {past.times:.2f}× as long as in session "
        f"{past.number}{of}, of the same configuration and on the same machines",
        RegionView(view="map"),
    )


def _are_of_long_microbatches(signs: Signs, factor: CommonFactor) -> bool:
    """Return whether the slow steps are only the steps with long microbatches.

    Either a few microbatches of slow steps take several times as long and most take no longer, or
    single steps are slow in a job whose microbatches differ in length.
    """
    passes = signs.observation.passes.get(BACKWARD_COMPUTE)  # which no pause lengthens
    if passes is not None and factor.growth is None:
        # (2, pp, steps, dp): mean and median time of each worker's microbatches in a step
        taken = np.stack([passes.times_ns.mean(axis=1), median(passes.times_ns.swapaxes(0, 1))])
        slow, best = (taken[:, :, steps].mean(axis=2) for steps in (factor.slow, factor.best))
        mean, most = np.median(slow / best - 1, axis=(1, 2))
        if mean > 0 and most < THRESHOLDS.of_most * mean:
            return True
    places = np.flatnonzero(factor.slow)
    stretches = 1 + int(np.count_nonzero(np.diff(places) > 1))
    scattered = len(places) < THRESHOLDS.stretch * stretches
    return scattered and signs.effects is not None and signs.effects.difference.differ


def _times(level: FloatArray, slow: BoolArray) -> float:
    return float(np.mean(level[slow]))


def _when(steps: IntArray, slow: BoolArray) -> str:
    """Return the words for the steps in which all workers are slow."""
    places = np.flatnonzero(slow)
    first, last = int(places[0]), int(places[-1])
    if np.mean(slow[first : last + 1]) < THRESHOLDS.nearly_all:
        return f"in {len(places)} of {len(slow)} steps"
    if last == len(slow) - 1:
        return f"since step {steps[first]}" if first else f"in {len(places)} of {len(slow)} steps"
    return f"in steps {steps[first]} to {steps[last]}" if first else f"until step {steps[last]}"


def _likely(signs: Signs, slowdown: SlowTogether) -> str:
    """Return the clause about the likeliest reason of the slow steps; empty without a sign."""
    factor = slowdown.factor
    pause = _pause_before(signs, factor)
    if pause:
        return pause
    if slowdown.work is not None and slowdown.work >= THRESHOLDS.more_work:
        return f"with {slowdown.work:.2f}× the work of the best steps by their sequences' lengths"
    if _collections_explain(signs.observation, slowdown):
        return "as collecting garbage takes longer"
    forward, others = _by_direction(signs.observation, slowdown)
    if others - 1 < THRESHOLDS.one_way * (forward - 1):
        return "in forwards only, as where hosts keep devices waiting"
    if slowdown.work is None and signs.effects is not None and signs.effects.difference.differ:
        return "as with longer sequences, whose lengths are not recorded"
    grows = factor.growth is not None and factor.growth >= 0
    return "as where memory, or what a step looks through, grows" if grows else ""


def _pause_before(signs: Signs, factor: CommonFactor) -> str:
    """Return the clause about an unusually long pause before the first slow step; empty if none."""
    observation, layout = signs.observation, signs.observation.layout
    first, following = int(np.argmax(factor.slow)), np.diff(layout.steps) == 1
    has_pause = first > 0 and bool(following[first - 1]) and not observation.trace.step_relative
    if factor.growth is not None or not has_pause:
        return ""
    ends = layout.begin_ns + recorded_step_times(observation.group)
    between = layout.begin_ns[1:] - ends[:-1]
    pause, usual = float(between[first - 1]), float(np.median(between[following]))
    if pause < max(THRESHOLDS.pause_to_usual * usual, THRESHOLDS.pause * signs.step_ns):
        return ""
    return f"after a pause of {pause / 1e9:.1f} s, as with a checkpoint"


def _collections_explain(observation: Observation, slowdown: SlowTogether) -> bool:
    """Return whether recorded garbage collections take most of the time lost in slow steps."""
    layout, factor = observation.layout, slowdown.factor
    inside = sum(layout.paused_ns.values(), np.zeros(layout.start_ns.shape[1:]))
    taken = inside + observation.recorded_ns[layout.of_types(GC)].sum(axis=0)
    by_step = taken.mean(axis=1)
    more = float(by_step[factor.slow].mean() - by_step[factor.best].mean())
    nodes = layout.of_types(*COMPUTATIONS)
    computing_ns = float(observation.recorded_ns[nodes].mean(axis=(1, 2)).sum()) / layout.pp
    lost = float((1 - 1 / factor.by_step[factor.slow]).mean()) * computing_ns
    return more >= THRESHOLDS.collecting * lost


def _by_direction(observation: Observation, slowdown: SlowTogether) -> tuple[float, float]:
    """Return time in slow steps ÷ time in the best steps, for forwards and other computations."""
    factor, ratios = slowdown.factor, []
    forwards = observation.layout.of_types(FORWARD_COMPUTE)
    computing = observation.layout.of_types(*COMPUTATIONS)
    for nodes in (forwards, computing & ~forwards):
        by_step = observation.recorded_ns[nodes].sum(axis=0).mean(axis=1)
        ratios.append(float(by_step[factor.slow].mean() / max(by_step[factor.best].mean(), 1.0)))
    return ratios[0], ratios[1]


def _evidence(
    observation: Observation, slowdown: SlowTogether, figure: ComputingLevels
) -> list[Evidence]:
    factor, steps = slowdown.factor, observation.layout.steps
    worst = StepView(step=int(steps[np.argmax(np.where(factor.slow, factor.level, 0.0))]))
    forward, others = _by_direction(observation, slowdown)
    lines = []
    if figure.growth is None:
        lines.append(
            Evidence(
                f"{_who(observation)} {_times(factor.level, factor.slow):.2f}× as long "
                f"{figure.when} as in the best steps: forward {forward:.2f}×, backward "
                f"{others:.2f}×",
                FigureView(),
            )
        )
        last = int(np.flatnonzero(factor.slow)[-1])
        end = "It lasts until the end of the session"
        if last < len(steps) - 1:
            end = f"It is over in step {steps[last + 1]}"
        lines.append(Evidence(end, worst))
    else:
        lines.append(
            Evidence(
                f"{_who(observation)} {percent(abs(figure.growth))} "
                f"{'longer' if figure.growth > 0 else 'shorter'} each step, "
                f"{factor.level.max():.2f}× in the longest as in the best steps: forward "
                f"{forward:.2f}×, backward {others:.2f}× on average",
                FigureView(),
            )
        )
    if figure.likely:
        lines.append(Evidence(f"Likeliest: {figure.likely}", worst))
    lines.append(
        Evidence(
            "Workers are held against themselves, not against one another", RegionView(view="map")
        )
    )
    return lines


def _who(observation: Observation) -> str:
    workers = observation.layout.dp * observation.layout.pp
    return f"All {workers} workers compute" if workers > 1 else "The worker computes"


def _because(cause: Cause, job: JobFacts) -> str:
    several = len(job.ranks) * len(job.ranks[0]) > 1
    who = "all workers compute" if several else "the worker computes"
    spells = cause.where.spells
    match cause.figure:
        case ComputingLevels(growth=float(growth)):
            more = "grow" if growth > 0 else "get shorter"
            return f"steps {more} by {percent(abs(growth))} each, on all workers alike"
        case ComputingLevels(when=when, likely=likely) if spells:
            after = f", {likely}" if likely else ""
            return f"{who} {spells.times:.2f}× slower {when}{after}"
        case ComputingLevels(when=when, by_step=by_step):
            return f"{who} {by_step[0]:.2f}× slower {when}"
        case _:
            return f"{who} slower in some steps"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:  # noqa: ARG001 - no host is named
    match cause.figure:
        case ComputingLevels(growth=float()):
            title = "Stop what grows from step to step"
        case ComputingLevels(when=when):
            title = f"Find what slows all workers {when}".replace(" than in ", " since ")
        case _:
            title = "Find what slows all workers"
    return Remedy(
        "restore_speed",
        title,
        "Replayed with all workers computing as in their best steps. No worker is to be replaced: "
        "look at what began with the slow steps: a save that is still written out, other data, "
        "memory that is nearly full, clocks and limits of power.",
    )


SLOW_TOGETHER: Final = CauseKind(
    name="slow_together",
    title="Slow together",
    word="together",
    sign="Nearly all workers compute slower than in their own best steps, all at once: by spells, "
    "since a step, or ever slower.",
    blames_machine=False,
    cannot_judge=lambda _signs: None,
    because=_because,
    find=_find,
    slows_ideal=_hides,
    remedy=_remedy,
    phase=Phase.ALL_WORKERS,
    everywhere=True,
    needs_no_replay=True,
    needs_own_devices=True,
    over_steps=True,
)

"""Garbage collection: single forwards, not backwards, stall on random ranks in random steps.

A pause of the interpreter between the kernels of a forward lengthens the forward; a pause before
the first kernel delays the forward's launch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Plan, always, needs_comparable_stages
from app.analysis.diagnosis.finding import Change, Evidence, Finding, Launches, Stalls
from app.analysis.diagnosis.late_launches import on_many_workers
from app.analysis.diagnosis.locations import FigureView, StepView
from app.analysis.diagnosis.observation import (
    Observation,
)
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import FloatArray, IntArray, SingleArray
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether single forwards stall."""

    stall: float = 0.12  # A forward stalls when it takes this much longer than its typical time.
    to_scatter: float = 7.0  # …and by this many standard deviations of the residuals
    backward: float = 0.4  # …while its backward takes less than this share of the excess longer
    most: float = 0.35  # a larger share of slow forwards is no series of single stalls
    trend_steps: int = 8  # steps with stalls that a trend needs; a trend is evidence only
    growth: float = 1.25  # growth over the session from which a trend is mentioned


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return the stalls if many workers have them; without the cause stalls take no time."""
    if signs.observation.layout.paused_ns:
        return _recorded(signs.observation)
    amid, before = _lengthened(signs), _launched_late(signs)
    if amid is None or before is None:
        return amid or before
    a, b = cast("Stalls", amid.figure), cast("Stalls", before.figure)
    return Finding(
        change=replace(amid.change, on_time=before.change.on_time),
        evidence=(*amid.evidence, *before.evidence),
        figure=Stalls(
            by_step_s=tuple(x + y for x, y in zip(a.by_step_s, b.by_step_s, strict=True)),
            by_worker=tuple(
                tuple(x + y for x, y in zip(*rows, strict=True))
                for rows in zip(a.by_worker, b.by_worker, strict=True)
            ),
            longest_s=max(a.longest_s, b.longest_s),
        ),
        launches=before.launches,
    )


def _launched_late(signs: Signs) -> Finding | None:
    """Return the forwards that pauses delay; None if there are no such forwards."""
    stalled, layout = signs.stalled_launches, signs.observation.layout
    if stalled is None:
        return None
    stalls = stalled.late_ns[stalled.late_ns > 0]
    by_worker = np.zeros((layout.pp, layout.dp), dtype=np.int64)
    np.add.at(by_worker, layout.nodes.pp[stalled.nodes], (stalled.late_ns > 0).sum(axis=1))
    by_step = stalled.late_ns.sum(axis=(0, 2))
    lines = (
        Evidence(
            f"{len(stalls):,} forwards are launched late, {np.median(stalls) / 1e6:.0f} ms each, "
            "and backwards are not",
            StepView(step=int(layout.steps[int(np.argmax(by_step))])),
        ),
        _on_workers(by_worker),
    )
    late = dict(zip(stalled.nodes.tolist(), stalled.late_ns, strict=True))
    return Finding(
        change=Change(on_time={node: late_ns > 0 for node, late_ns in late.items()}),
        evidence=lines,
        figure=_figure(by_step, by_worker.T, stalls.max()),
        launches=Launches(late),
    )


def _lengthened(signs: Signs) -> Finding | None:
    """Return the forwards that pauses lengthen; None if there are no such forwards."""
    observation, effects = signs.observation, signs.effects
    if effects is None:
        return None
    passes = observation.passes[FORWARD_COMPUTE]
    forward, backward = effects.residual[FORWARD_COMPUTE], effects.residual[BACKWARD_COMPUTE]
    limit = max(THRESHOLDS.stall, THRESHOLDS.to_scatter * effects.noise)
    # Computed stage by stage, as copies of the whole array would set the peak memory of a large
    # session's analysis.
    stalled = np.empty(forward.shape, dtype=bool)
    for of_stage, this, back in zip(stalled, forward, backward, strict=True):
        beyond = this - 1
        of_stage[:] = (beyond > limit) & (back - 1 < THRESHOLDS.backward * beyond)
    by_worker = stalled.sum(axis=(1, 2)).T
    if by_worker.sum() > THRESHOLDS.most * stalled.size or not on_many_workers(by_worker):
        return None
    stall_ns = np.empty_like(forward)
    for stage, times_ns in enumerate(passes.times_ns):
        stall_ns[stage] = np.where(stalled[stage], times_ns - times_ns / forward[stage], 0.0)
    less = {
        int(node): stall_ns[stage, position]
        for stage, nodes in enumerate(passes.nodes)
        for position, node in enumerate(nodes)
    }
    return Finding(
        change=Change(less_ns=less),
        evidence=tuple(_evidence(observation, stall_ns, by_worker)),
        figure=_figure(stall_ns.sum(axis=(0, 1, 3)), by_worker, stall_ns.max()),
    )


def _recorded(observation: Observation) -> Finding | None:
    """Return the garbage collections recorded inside computations, which need no other sign."""
    layout = observation.layout
    paused = {
        node: np.minimum(pause, observation.recorded_ns[node])
        for node, pause in layout.paused_ns.items()
    }
    by_worker = np.zeros((layout.dp, layout.pp), dtype=np.int64)
    by_step = np.zeros(len(layout.steps))
    for node, pause in paused.items():
        by_worker[:, layout.nodes.pp[node]] += (pause > 0).sum(axis=0)
        by_step += pause.sum(axis=1)
    pauses = np.concatenate([pause[pause > 0] for pause in paused.values()])
    worst = int(np.argmax(by_step))
    lines = (
        Evidence(
            f"{len(pauses)} collections are recorded inside of computations, "
            f"{np.median(pauses) / 1e6:.0f} ms each, the longest {pauses.max() / 1e6:.0f} ms",
            StepView(step=int(layout.steps[worst])),
        ),
        _on_workers(by_worker),
    )
    return Finding(
        change=Change(less_ns=paused),
        evidence=lines,
        figure=_figure(by_step, by_worker, pauses.max()),
    )


def _figure(by_step_ns: FloatArray | SingleArray, by_worker: IntArray, longest_ns: float) -> Stalls:
    """Return the figure of stalls; `by_worker` has shape (dp, pp)."""
    return Stalls(
        by_step_s=tuple((by_step_ns / 1e9).tolist()),
        by_worker=tuple(map(tuple, by_worker.tolist())),
        longest_s=float(longest_ns) / 1e9,
    )


def _on_workers(by_worker: IntArray) -> Evidence:
    return Evidence(
        f"They are on {int((by_worker > 0).sum())} of {by_worker.size:,} workers, at most "
        f"{int(by_worker.max())} on one",
        FigureView(part="workers"),
    )


def _evidence(
    observation: Observation, stall_ns: SingleArray, by_worker: IntArray
) -> list[Evidence]:
    stalls = stall_ns[stall_ns > 0]
    worst = int(np.argmax(stall_ns.sum(axis=(0, 1, 3))))
    lines = [
        Evidence(
            f"{len(stalls):,} of {stall_ns.size:,} forwards stall, "
            f"{np.median(stalls) / 1e6:.0f} ms each, and their backwards do not",
            StepView(step=int(observation.layout.steps[worst])),
        ),
        _on_workers(by_worker),
    ]
    step = np.broadcast_to(np.arange(stall_ns.shape[2])[:, None], stall_ns.shape)[stall_ns > 0]
    if len(np.unique(step)) >= THRESHOLDS.trend_steps:
        slope, begin = np.polyfit(step, stalls, 1)
        last = begin + slope * (stall_ns.shape[2] - 1)
        if begin > 0 and last / begin >= THRESHOLDS.growth:
            text = f"They grow: {last / begin:.1f}× as long at the end as at the start"
            lines.append(Evidence(text, FigureView()))
    return lines


GARBAGE_COLLECTION: Final = CauseKind(
    name="garbage_collection",
    title="Garbage collection",
    word="gc",
    sign="Single forwards stall, or are launched late, on many workers and in steps at random, and "
    "their backwards are not.",
    blames_machine=False,
    cannot_judge=needs_comparable_stages,
    because=always("forwards stall on random workers, as with garbage collection"),
    find=_find,
    plan=Plan.COLLECT_TOGETHER,
    recurs=True,
)

"""Single forwards that stall on ranks and in steps at random, while backwards do not.

A pause amid a forward's kernels lengthens it; one before them delays its launch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Plan, always, needs_like_stages
from app.analysis.diagnosis.finding import Change, Evidence, Finding, Launches, Stalls
from app.analysis.diagnosis.late_launches import on_many_workers
from app.analysis.diagnosis.locations import FigureView, StepView
from app.analysis.diagnosis.observation import Observation, SingleArray
from app.analysis.diagnosis.session_view import Signs
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether forwards stall one by one."""

    stall: float = 0.12  # A forward stalls when it takes this much longer than its typical time.
    to_scatter: float = 7.0  # …and by this many standard deviations of the residuals
    backward: float = 0.4  # …while its backward takes less than this share of the excess longer
    most: float = 0.35  # where a larger share of the forwards is slow they do not stall one by one
    trend_steps: int = 8  # steps with stalls that tell a trend, which is evidence only
    growth: float = 1.25  # from this growth over the session on the trend is evidence


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return the stalls, where they are on many workers; without it they take no time."""
    if signs.observation.layout.paused_ns:
        return _recorded(signs.observation)
    found = [finding for finding in (_stalled(signs), _not_launched(signs)) if finding is not None]
    if len(found) < 2:  # noqa: PLR2004 - pauses amid forwards, and between them
        return found[0] if found else None
    amid, between = found
    return Finding(
        change=replace(amid.change, on_time=between.change.on_time),
        evidence=(*amid.evidence, *between.evidence),
        figure=_together(cast("Stalls", amid.figure), cast("Stalls", between.figure)),
        launches=between.launches,
    )


def _together(one: Stalls, other: Stalls) -> Stalls:
    return Stalls(
        by_step_s=tuple(a + b for a, b in zip(one.by_step_s, other.by_step_s, strict=True)),
        by_worker=tuple(
            tuple(a + b for a, b in zip(*rows, strict=True))
            for rows in zip(one.by_worker, other.by_worker, strict=True)
        ),
        longest_s=max(one.longest_s, other.longest_s),
    )


def _not_launched(signs: Signs) -> Finding | None:
    """Return the forwards that are launched late by pauses, if any are."""
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


def _stalled(signs: Signs) -> Finding | None:
    """Return the forwards that take longer by pauses, if any do."""
    observation, typical = signs.observation, signs.typical
    if typical is None:
        return None
    passes = observation.passes[FORWARD_COMPUTE]
    forward, backward = typical.residual[FORWARD_COMPUTE], typical.residual[BACKWARD_COMPUTE]
    limit = max(THRESHOLDS.stall, THRESHOLDS.to_scatter * typical.noise)
    # Stage by stage: copies of everything would be what a large session's analysis needs most.
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
    """Return the collections that are recorded inside of computations; they need no sign."""
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
    """Return the data of the picture; `by_worker` has shape (dp, pp)."""
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
    growth = _growth(stall_ns)
    if growth is not None and growth >= THRESHOLDS.growth:
        lines.append(
            Evidence(f"They grow: {growth:.1f}× as long at the end as at the start", FigureView())
        )
    return lines


def _growth(stall_ns: SingleArray) -> float | None:
    """Return how many times as long stalls are in the last step as in the first, by a line."""
    step = np.broadcast_to(np.arange(stall_ns.shape[2])[:, None], stall_ns.shape)[stall_ns > 0]
    stalls = stall_ns[stall_ns > 0]
    if len(np.unique(step)) < THRESHOLDS.trend_steps:
        return None
    slope, begin = np.polyfit(step, stalls, 1)
    last = begin + slope * (stall_ns.shape[2] - 1)
    return float(last / begin) if begin > 0 else None


GARBAGE_COLLECTION: Final = CauseKind(
    name="garbage_collection",
    title="Garbage collection",
    word="gc",
    sign="Single forwards stall, or are launched late, on many workers and in steps at random, and "
    "their backwards are not.",
    blames_machine=False,
    cannot_judge=needs_like_stages,
    because=always("forwards stall on random workers, as with garbage collection"),
    find=_find,
    plan=Plan.COLLECT_TOGETHER,
    recurs=True,
)

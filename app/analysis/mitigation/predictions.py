"""Fixes and what they would bring, replayed with the session's own durations changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.slow_worker import SLOW_WORKER
from app.analysis.diagnosis.diagnose import Diagnosis
from app.analysis.diagnosis.finding import UNKNOWN, Cause
from app.analysis.diagnosis.headline import Headline
from app.analysis.diagnosis.places import Hosts, Worker
from app.analysis.mitigation.fix import Fix
from app.analysis.mitigation.remedies import remedies
from app.analysis.replay.engine.replay import ON_TIME, RECORDED
from app.analysis.replay.engine.variants import Replacement
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.layout.graph import COMPUTE
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.session import Replayed, ShapeGroup, launch_delays
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_SEND,
)
from app.analysis.wording import named

NS: Final = 1e-9
# A fix that brings less is not worth a restart.
MIN_GAIN: Final = 0.01
# What a host launches as soon as it can.
LAUNCHED: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, FORWARD_SEND, BACKWARD_SEND)


def predict_fixes(  # noqa: PLR0913 - what is known of the session and of its causes
    replayed: Replayed,
    metrics: Metrics,
    diagnosis: Diagnosis,
    causes: Sequence[Cause],
    hosts: Mapping[int, str],
    *,
    headline: Headline,
    trusted: bool,
    others: Sequence[Fix] = (),
) -> list[Fix]:
    """Return the fixes that a trace alone can judge; best first, none under 1 % gain.

    Parameters
    ----------
    replayed : Replayed
    metrics : Metrics
    diagnosis : Diagnosis
    causes : sequence of Cause
        Those that are named; what removes them is among the fixes.
    hosts : mapping of int to str
        Hosts of ranks.
    headline : Headline
        How slow the job is; no fix makes it faster than what that is counted against.
    trusted : bool
        Whether the replay of durations is near the recording; if not, only causes count.
    others : sequence of Fix
        Replayed elsewhere.
    """
    now_s = metrics.simulated_step_s * diagnosis.late
    places = Hosts(hosts, replayed.layout.ranks.tolist())
    fixes = [*remedies(causes, places, now_s), *others]
    if trusted:
        fixes += _by_replay(replayed, _to_replace(metrics, causes), now_s)
        if replayed.layout.dp == 1:
            fixes += _without_peers(causes, now_s)
    most = headline.waste
    if not trusted:
        # S knows nothing of late launches, which are what such a job loses.
        most = max(most, 1 - headline.reference_step_time_s / now_s)
    bounded = [_no_better_than(fix, most, now_s) for fix in fixes]
    return sorted((fix for fix in bounded if fix.gain >= MIN_GAIN), key=lambda fix: -fix.gain)


def _without_peers(causes: Sequence[Cause], now_s: float) -> list[Fix]:
    """Return the replacement of slow workers of one DP rank, whose peers are other stages."""
    return [
        Fix(
            "replace_worker",
            f"Replace {named('worker', [f'({dp}, {pp})' for dp, pp in cause.where.workers])}",
            "Replayed with the time a layer that the other stages take.",
            step_time_s=now_s * (1 - cause.saves),
            gain=cause.saves,
        )
        for cause in causes
        if cause.cause == SLOW_WORKER.name and cause.saves is not None
    ]


def _no_better_than(fix: Fix, most: float, now_s: float) -> Fix:
    """Return a fix that gains a share `most` of a step at most.

    Shares are compared, not seconds: the headline is of steps of the most frequent shape.
    """
    if fix.gain <= most:
        return fix
    return replace(fix, step_time_s=now_s * (1 - most), gain=most)


def _to_replace(metrics: Metrics, causes: Sequence[Cause]) -> tuple[Worker, ...]:
    """Return the workers that the diagnosis calls slow; if nothing is known, those that cost most.

    Where another cause is known it is what makes them cost, and is not replaced with them.
    """
    for cause in causes:
        if cause.cause == SLOW_WORKER.name:
            return cause.where.workers
    known = any(cause.cause != UNKNOWN for cause in causes)
    return () if known else metrics.blamed


def _by_replay(replayed: Replayed, workers: Sequence[Worker], now_s: float) -> list[Fix]:
    """Replay slow workers replaced together, and stages made even."""
    even = (
        "even_stages",
        "Divide the layers evenly by time",
        (
            "Replayed with the computing of each microbatch shared evenly among the stages: the "
            "most that a better division of layers can bring."
        ),
        _even_stages,
    )
    replaced = (
        "replace_worker",
        f"Replace {named('worker', [f'({dp}, {pp})' for dp, pp in workers])}",
        "Replayed with the medians of the other DP ranks of the same stage.",
        lambda group: _at_peers_medians(group, workers),
    )
    fixes = [replaced, even] if workers else [even]
    times = replayed.over_steps(
        lambda group: _launched_step_times(group, *(change(group) for *_, change in fixes))
    )
    recorded_s, *after_s = times.mean(axis=0).tolist()
    return [
        Fix(
            action,
            title,
            detail,
            step_time_s=now_s - (recorded_s - time_s),
            gain=(recorded_s - time_s) / now_s,
        )
        for (action, title, detail, _), time_s in zip(fixes, after_s, strict=True)
    ]


def _launched_step_times(group: ShapeGroup, *replacements: Replacement) -> FloatArray:
    """Replay steps as they were and with each replacement, hosts launching as late as they did.

    A slow worker hides late launches of the others; without it they count. Those of receives and
    collectives do not: in recorded jobs they are seconds late, behind what nobody recorded.

    Returns
    -------
    float64 array, shape (steps, 1 + replacements)
        Seconds.
    """
    count = len(group.layout.nodes)
    takes = np.full((1 + len(replacements), count), RECORDED, dtype=np.int32)
    first = 0
    for row, item in zip(takes[1:], replacements, strict=True):
        row[item.nodes] = np.arange(first, first + len(item.nodes))
        first += len(item.nodes)
    own = np.isin(group.layout.nodes.op, group.layout.codes(*LAUNCHED))
    late = np.broadcast_to(np.where(own, np.arange(count), ON_TIME).astype(np.int32), takes.shape)
    times_ns = group.simulator.coded_step_times(
        takes,
        lambda steps: np.concatenate([item.times_ns(steps) for item in replacements]),
        late,
        lambda steps: launch_delays(group, steps)[0],
    )
    return times_ns.T * NS


def _at_peers_medians(group: ShapeGroup, workers: Sequence[tuple[int, int]]) -> Replacement:
    """Give workers the medians of their stage peers, operation by operation.

    The ideal duration would not do: it is a mean that contains the straggler.
    """
    recorded, dp = group.durations.recorded_ns, group.layout.dp
    bad = {stage: [rank for rank, pp in workers if pp == stage] for _, stage in sorted(workers)}
    on_stage = {
        stage: np.flatnonzero(group.layout.nodes.pp == stage)
        for stage, ranks in bad.items()
        if len(ranks) < dp
    }

    def times(steps: slice) -> FloatArray:
        changed = [np.empty((0, *recorded[0, steps].shape))]
        for stage, nodes in on_stage.items():
            values = recorded[nodes, steps]
            peers = np.setdiff1d(np.arange(dp), bad[stage])
            values[:, :, bad[stage]] = np.median(values[:, :, peers], axis=2)[:, :, None]
            changed.append(values)
        return np.concatenate(changed)

    return Replacement(_joined(on_stage.values()), times)


def _even_stages(group: ShapeGroup) -> Replacement:
    """Share the computing of each microbatch evenly among the stages; total work stays."""
    layout, nodes = group.layout, group.layout.nodes
    recorded = group.durations.recorded_ns
    tables: list[IntArray] = []
    for code in np.unique(nodes.op):
        if layout.pp == 1 or layout.op_names[code] not in COMPUTE:
            continue
        stages = [
            np.flatnonzero((nodes.op == code) & (nodes.pp == stage)) for stage in range(layout.pp)
        ]
        if len({len(stage) for stage in stages}) == 1:
            tables.append(np.array(stages))

    def times(steps: slice) -> FloatArray:
        shared = [np.empty((0, *recorded[0, steps].shape))]
        for table in tables:
            total = recorded[table[0], steps]
            for row in table[1:]:
                total += recorded[row, steps]
            total /= len(table)
            shared += [total] * len(table)
        return np.concatenate(shared)

    return Replacement(_joined(table.ravel() for table in tables), times)


def _joined(parts: Iterable[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])

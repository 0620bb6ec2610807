"""Predicted gains of fixes, from replays with the session's own durations changed.

Includes fixes of standstills between steps, and garbage collection on all workers at once: as often
as one worker stalls now, each pause as long as the longest of all workers' (what-if paper,
section 5.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import Plan
from app.analysis.diagnosis.causes.registry import KINDS, cause_of
from app.analysis.diagnosis.diagnose import Diagnosis
from app.analysis.diagnosis.finding import UNKNOWN, Cause, Stalls
from app.analysis.diagnosis.headline import Headline
from app.analysis.diagnosis.locations import Hosts, Worker
from app.analysis.diagnosis.observation import COMPUTATIONS, Observation
from app.analysis.mitigation.balancing import even_out
from app.analysis.mitigation.fixes import Division, Fix, PlannedCollections, as_text
from app.analysis.mitigation.layers.division import Candidate, divisions, even_level
from app.analysis.replay.engine.simulator import Replacement
from app.analysis.replay.host_delays import launched_step_times
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.robust_statistics import median_of_rows
from app.analysis.replay.session import Replayed, ShapeGroup, filled_ns
from app.analysis.trace.model import OPTIMIZER, Trace
from app.analysis.wording import name_list, percent

# ---- Garbage collected on all workers at once: how often, how long each pause will be, and its gai
#
# Every worker collects as often as one stalls now, so that memory grows no further than it does.
# All wait for the longest of the pauses, which is longer than the mean one, and the longer the more
# workers there are. (What-if paper, section 5.4.)


# Steps with stalls that tell a trend, and by how many standard errors it must stand out.
_MIN_STEPS: Final = 8
_SURE: Final = 2.0
# A pause is no shorter at the start than this share of what it is at the end.
_LEAST_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class _Pauses:
    """Pauses as a session shows them, lengths in seconds."""

    count: int
    workers: int
    mean_s: float
    longest_s: float
    grown: float  # how many times as long they are at the end as on average

    def together_s(self) -> float:
        """Return how long the longest of all workers' is, on average.

        The largest of many normal values lies as far from the mean as `_above` says, so that the
        largest of those that were seen tells the largest of another number.
        """
        most = max(self.longest_s / (self.mean_s * self.grown), 1.0)
        share = _above(self.workers) / _above(max(self.count, self.workers, 2))
        return self.mean_s * (1 + (most - 1) * share)


def _above(count: int) -> float:
    """Return how many standard deviations the largest of some normal values lies above their mean.

    Blom 1958.
    """
    from statistics import NormalDist  # noqa: PLC0415 - slow to load, and rarely asked for

    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def plan_collections(cause: Cause, now_s: float) -> Fix | None:
    """Return planned collections in place of those of a cause; None where no pauses are known.

    A pause before the first operation of all workers moves all of a step: with it the step without
    stalls takes as much longer. `now_s` is today's mean step.
    """
    pauses = _seen(cause)
    if pauses is None or cause.saves is None or not isinstance(cause.figure, Stalls):
        return None
    steps = len(cause.figure.by_step_s)
    every = max(1, round(steps * pauses.workers / pauses.count))
    plan = PlannedCollections(every, pauses.together_s())
    gain = cause.saves - plan.pause_s / every / now_s
    often = "in every step" if every == 1 else f"every {every} steps"
    return Fix(
        "plan_garbage_collection",
        f"Collect garbage on all workers at once, {often}",
        f"Replayed without the stalls, with a common pause of {plan.pause_s:.2f} s {often}: as "
        "often as a worker stalls now, and as long as the longest of all workers' is likely to "
        f"be. paceline_client.PlannedGC(every={every}). Less often, as far as memory allows, it "
        f"saves up to {percent(cause.saves)} of a step.",
        now_s * (1 - gain),
        gain,
        cause=cause.cause,
        collections=plan,
    )


def _seen(cause: Cause) -> _Pauses | None:
    if not isinstance(cause.figure, Stalls):
        return None
    by_worker = np.array(cause.figure.by_worker)
    total_s, count = float(np.sum(cause.figure.by_step_s)), int(by_worker.sum())
    if count == 0 or total_s <= 0:
        return None
    return _Pauses(
        count, by_worker.size, total_s / count, cause.figure.longest_s, _grown(cause.figure)
    )


def _grown(stalls: Stalls) -> float:
    """Return how many times as long stalls are at the end as on average, if they surely grow."""
    by_step = np.array(stalls.by_step_s)
    if np.count_nonzero(by_step) < _MIN_STEPS:
        return 1.0
    step = np.arange(len(by_step)) - (len(by_step) - 1) / 2
    mean, slope = by_step.mean(), (step @ by_step) / (step @ step)
    residual = by_step - mean - slope * step
    error = np.sqrt((residual @ residual) / (len(step) - 2) / (step @ step))
    if slope <= _SURE * error:
        return 1.0
    return float(min(1 + slope * step[-1] / mean, 1 / _LEAST_SHARE))


# ---- Fixes and what they would bring, replayed with the session's own durations changed --------


EVEN_STAGES: Final = "even_stages"
REPLACE_WORKER: Final = "replace_worker"
# An embedding or a head is named that takes this share of a layer.
_WORTH_SAYING: Final = 0.1
# Causes whose sign is what transfers take.
_OF_TRANSFERS: Final = frozenset(kind.name for kind in KINDS.values() if kind.of_transfers)
# A fix that brings less is not worth a restart.
MIN_GAIN: Final = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class _Replayable:
    """A change that is replayed: the fix in words, and what operations take with it."""

    fix: Fix
    change: Callable[[ShapeGroup], Replacement]


def predict_fixes(  # noqa: PLR0913 - what is known of the session and of its causes
    observation: Observation,
    replayed: Replayed,
    metrics: Metrics,
    diagnosis: Diagnosis,
    causes: Sequence[Cause],
    *,
    headline: Headline,
    trusted: bool,
    others: Sequence[Fix] = (),
) -> list[Fix]:
    """Return the fixes that a trace alone can judge; best first, none under 1 % gain.

    Parameters
    ----------
    observation : Observation
        The session, nothing of it explained.
    causes : sequence of Cause
        Those that are named; what removes them is among the fixes.
    headline : Headline
        How slow the job is; no fix makes it faster than what that is counted against.
    trusted : bool
        Whether the replay of durations is near the recording; if not, only causes count.
    others : sequence of Fix
        Replayed elsewhere.
    """
    now_s = metrics.simulated_step_s * diagnosis.late
    fixes = [*_remedies(causes, observation.hosts, now_s), *others]
    fixes += _planned(observation.trace, replayed, causes, now_s, trusted=trusted)
    if trusted:
        fixes += _by_replay(replayed, _changes(observation, replayed, metrics, causes), now_s)
        if replayed.layout.dp == 1:
            fixes += _without_peers(causes, now_s)
    most = headline.waste
    if not trusted:
        # S knows nothing of late launches, which are what such a job loses.
        most = max(most, 1 - headline.reference_step_time_s / now_s)
    bounded = [_no_better_than(fix, most, now_s) for fix in fixes]
    return sorted((fix for fix in bounded if fix.gain >= MIN_GAIN), key=lambda fix: -fix.gain)


def _remedies(causes: Sequence[Cause], hosts: Hosts, now_s: float) -> list[Fix]:
    """Return what removes each cause, with what the session replayed without it gains.

    Slow workers and heavy stages are not among them: those are replayed with late launches. Nor are
    pauses and lengths, which stay in the job: their fixes are plans.
    """
    fixes = []
    for cause in causes:
        kind = KINDS.get(cause.cause)
        if kind is not None and kind.remedy is not None and cause.saves is not None:
            remedy = kind.remedy(cause, hosts)
            fixes.append(
                Fix(
                    remedy.action,
                    remedy.title,
                    remedy.detail,
                    now_s * (1 - cause.saves),
                    cause.saves,
                    cause=cause.cause,
                    at_most=cause.at_most,
                )
            )
    return fixes


def _planned(
    trace: Trace, replayed: Replayed, causes: Sequence[Cause], now_s: float, *, trusted: bool
) -> list[Fix]:
    """Return what is planned where a cause cannot go away."""
    found = []
    for cause in causes:
        if cause.cause == cause_of(Plan.COLLECT_TOGETHER):
            found.append(plan_collections(cause, now_s))
        elif cause.cause == cause_of(Plan.BALANCE_MICROBATCHES):
            found.append(even_out(trace, replayed, cause, now_s, trusted=trusted))
    return [fix for fix in found if fix is not None]


def _without_peers(causes: Sequence[Cause], now_s: float) -> list[Fix]:
    """Return the replacement of slow workers of one DP rank, whose peers are other stages."""
    return [
        Fix(
            REPLACE_WORKER,
            f"Replace {name_list('worker', [f'({dp}, {pp})' for dp, pp in cause.where.workers])}",
            "Replayed with the time a layer that the other stages take.",
            step_time_s=now_s * (1 - cause.saves),
            gain=cause.saves,
            cause=cause.cause,
        )
        for cause in causes
        if cause.cause == cause_of(Plan.REPLACE_WORKERS) and cause.saves is not None
    ]


def _no_better_than(fix: Fix, most: float, now_s: float) -> Fix:
    """Return a fix that gains a share `most` of a step at most.

    Shares are compared, not seconds: the headline is of steps of the most frequent shape. A
    division of the layers may do better than the even one that the headline is held against: where
    few microbatches leave stages idle, the stages that wait for the others take more.
    """
    if fix.gain <= most or (fix.division is not None and not fix.at_most):
        return fix
    return replace(fix, step_time_s=now_s * (1 - most), gain=most)


def _to_replace(metrics: Metrics, causes: Sequence[Cause]) -> tuple[Worker, ...]:
    """Return the workers that the diagnosis calls slow; if nothing is known, those that cost most.

    Where another cause is known it is what makes them cost, and is not replaced with them.
    """
    for cause in causes:
        if cause.cause == cause_of(Plan.REPLACE_WORKERS):
            return cause.where.workers
    known = any(cause.cause != UNKNOWN for cause in causes)
    return () if known else metrics.blamed


def _changes(
    observation: Observation, replayed: Replayed, metrics: Metrics, causes: Sequence[Cause]
) -> list[_Replayable]:
    """Return the changes that go beyond the session without a cause."""
    changes = []
    workers = _to_replace(metrics, causes)
    if workers:
        slow = any(cause.cause == cause_of(Plan.REPLACE_WORKERS) for cause in causes)
        replaced = Fix(
            REPLACE_WORKER,
            f"Replace {name_list('worker', [f'({dp}, {pp})' for dp, pp in workers])}",
            "Replayed with the medians of the other DP ranks of the same stage.",
            cause=cause_of(Plan.REPLACE_WORKERS) if slow else None,
        )
        # What another cause names stays as it is: a slow link is not replaced with a device.
        computing = any(cause.cause in _OF_TRANSFERS for cause in causes)
        changes.append(
            _Replayable(
                replaced, lambda group: _at_peers_medians(group, workers, computing=computing)
            )
        )
    stage = next((cause for cause in causes if cause.cause == cause_of(Plan.DIVIDE_LAYERS)), None)
    if stage is not None and replayed.layout.pp > 1:
        # where it may as well be a slow worker, fewer layers may not be what its stage needs
        doubted = any(cause.contribution is None for cause in causes)
        found = [] if doubted else divisions(observation, replayed)
        changes += [_divided(candidate) for candidate in found] or _evened(observation)
    return changes


def _divided(candidate: Candidate) -> _Replayable:
    """Return a division of the layers as a change."""
    division = candidate.division
    fix = Fix(
        EVEN_STAGES,
        f"Divide the layers {division.text}",
        _in_words(division),
        cause=cause_of(Plan.DIVIDE_LAYERS),
        at_most=not candidate.costs.told_apart,
        division=division,
    )
    return _Replayable(fix, candidate.replacement)


def _in_words(division: Division) -> str:
    """Return what a division rests on, and how it is made."""
    layer = (
        f"Now they are {as_text(division.today)}. A layer takes {division.layer_ms:.1f} ms of a "
        "microbatch, forward and backward"
    )
    ends = [
        f"the {name} as long as {time_ms / division.layer_ms:.1f} layers"
        for name, time_ms in (("embedding", division.embedding_ms), ("head", division.head_ms))
        if time_ms >= _WORTH_SAYING * division.layer_ms
    ]
    grown = max(
        sum(after) - sum(before)
        for before, after in zip(division.today, division.layers, strict=True)
    )
    best = "The best of all divisions" if division.proven else "The best division found"
    memory = (
        f"no stage holds more than the {max(division.max_layers)} layers it can"
        if division.max_layers
        else f"a stage holds up to {grown} more than now: check that memory allows it"
    )
    return (
        f"{', '.join([layer, *ends])}. {best} for what stages lastingly take, replayed with this "
        f"session's own durations; {memory}. Megatron-LM: {division.flag}"
    )


def _evened(observation: Observation) -> list[_Replayable]:
    """Return stages made even, which is the most that a division can bring."""
    if not observation.comparable:
        return []
    fix = Fix(
        EVEN_STAGES,
        "Divide the layers evenly by time",
        "Replayed with all stages at the mean of what they lastingly take: the most that a better "
        'division of layers can bring. With "layers" in the metadata the best division itself is '
        "found, and what it brings.",
        cause=cause_of(Plan.DIVIDE_LAYERS),
        at_most=True,
    )

    def even(group: ShapeGroup) -> Replacement:
        seen = observation if group is observation.group else replace(observation, group=group)
        return even_level(group, seen)

    return [_Replayable(fix, even)]


def _by_replay(replayed: Replayed, changes: Sequence[_Replayable], now_s: float) -> list[Fix]:
    """Replay changes, and keep the best one of each action."""
    if not changes:
        return []
    times = replayed.over_steps(
        lambda group: launched_step_times(group, *(item.change(group) for item in changes))
    )
    recorded_s, *after_s = np.mean(times, axis=0).tolist()
    best: dict[str, Fix] = {}
    for item, time_s in zip(changes, after_s, strict=True):
        saved_s = recorded_s - time_s
        fix = replace(item.fix, step_time_s=now_s - saved_s, gain=saved_s / now_s)
        if fix.action not in best or fix.gain > best[fix.action].gain:
            best[fix.action] = fix
    return list(best.values())


def _at_peers_medians(
    group: ShapeGroup, workers: Sequence[tuple[int, int]], *, computing: bool
) -> Replacement:
    """Give workers the medians of their stage peers, operation by operation.

    The ideal duration would not do: it is a mean that contains the straggler. `computing` leaves
    transfers as they are.
    """
    recorded, dp = filled_ns(group), group.layout.dp
    padding = group.layout.padding
    bad = {stage: [rank for rank, pp in workers if pp == stage] for _, stage in sorted(workers)}
    layout = group.layout
    meant = layout.of_types(*COMPUTATIONS, OPTIMIZER) if computing else layout.nodes.pp >= 0
    on_stage = {
        stage: np.flatnonzero(meant & (layout.nodes.pp == stage))
        for stage, ranks in bad.items()
        if len(ranks) < dp
    }

    def times(steps: slice) -> FloatArray:
        changed = [np.empty((0, *recorded[0, steps].shape))]
        for stage, nodes in on_stage.items():
            values = recorded[nodes, steps]
            peers = np.setdiff1d(np.arange(dp), bad[stage])
            values[:, :, bad[stage]] = median_of_rows(values[:, :, peers])[:, :, None]
            if padding is not None:
                # each goes on running as many microbatches as it does
                values[padding.of(nodes, steps)] = 0.0
            changed.append(values)
        return np.concatenate(changed)

    nodes = np.concatenate([np.empty(0, dtype=np.int64), *on_stage.values()])
    return Replacement(nodes, times)


# ---- Fixes of what a job loses between its steps -----------------------------------------------


def without_standstills(
    fixes: Sequence[Fix], causes: Sequence[Cause], hosts: Hosts, now_s: float, turn_s: float
) -> list[Fix]:
    """Return the fixes of all causes, best first.

    What is lost between steps is a share of the time from one step to the next, which is what such
    a fix is held against; one that shortens steps as well does both.

    Parameters
    ----------
    fixes : sequence of Fix
        Those of causes within steps.
    causes : sequence of Cause
        All that are named.
    now_s : float
        Today's mean step.
    turn_s : float
        What it takes with the gap before it.
    """
    added = []
    for cause in causes:
        kind = KINDS.get(cause.cause)
        if not cause.between_s or kind is None or kind.remedy is None:
            continue
        remedy = kind.remedy(cause, hosts)
        saved_s = cause.between_s + (cause.saves or 0.0) * now_s
        gain = saved_s / turn_s
        if gain >= MIN_GAIN:
            words = (remedy.action, remedy.title, remedy.detail)
            after_s, at_most = turn_s - saved_s, cause.at_most
            added.append(Fix(*words, after_s, gain, cause=cause.cause, at_most=at_most))
    replaced = {fix.cause for fix in added}
    kept = [fix for fix in fixes if fix.cause not in replaced]
    return sorted([*kept, *added], key=lambda fix: -fix.gain)

"""Predicted gains of fixes, from replays of the session with changed durations.

The gain of garbage collection on all workers at once is predicted from the recorded stalls:
collections are as frequent as one worker's stalls today, so that memory does not grow further, and
each pause is as long as the longest pause of all workers (what-if paper, section 5.4).
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
from app.analysis.mitigation.redistribution import redistribute
from app.analysis.quantities import FloatArray
from app.analysis.replay.engine.simulator import Replacement
from app.analysis.replay.host_delays import launched_step_times
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.robust_statistics import median_of_rows
from app.analysis.replay.session import Replayed, ShapeGroup, filled_ns
from app.analysis.trace.model import OPTIMIZER
from app.analysis.wording import name_list, percent

EVEN_STAGES: Final = "even_stages"
REPLACE_WORKER: Final = "replace_worker"
# An embedding or a head is mentioned only if it takes at least this share of a layer's time.
_MENTIONED_FROM: Final = 0.1
# Causes that are diagnosed from transfer times.
_OF_TRANSFERS: Final = frozenset(kind.name for kind in KINDS.values() if kind.of_transfers)
# Minimum gain of a fix, as a share of the step time: a smaller gain is not worth a restart.
MIN_GAIN: Final = 0.01
# Minimum number of steps with stalls to fit a trend of stall lengths, and minimum significance of
# the trend in standard errors.
_MIN_STEPS: Final = 8
_SIGNIFICANT: Final = 2.0
# Lower bound of the mean pause, as a share of the last pause; it limits the extrapolated trend.
_LEAST_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class _Pauses:
    """Observed pauses of garbage collection."""

    count: int
    workers: int
    mean_s: float
    longest_s: float
    growth: float  # length at the end of the session ÷ mean length

    def together_s(self) -> float:
        """Return the expected longest pause over all workers, seconds.

        Scales the longest of the observed pauses by expected maxima of normal samples.
        """
        most = max(self.longest_s / (self.mean_s * self.growth), 1.0)
        share = _expected_maximum(self.workers) / _expected_maximum(
            max(self.count, self.workers, 2)
        )
        return self.mean_s * (1 + (most - 1) * share)


def _expected_maximum(count: int) -> float:
    """Return the expected maximum of `count` standard normal values (Blom 1958)."""
    from statistics import NormalDist  # noqa: PLC0415 - slow to load, rarely needed

    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def plan_collections(cause: Cause, now_s: float) -> Fix | None:
    """Return planned collections common to all workers; None if no pauses are known.

    A common pause before a step lengthens the step without stalls by itself. `now_s` is the mean
    step time today, seconds.
    """
    if cause.saves is None or not isinstance(cause.figure, Stalls):
        return None
    by_worker = np.array(cause.figure.by_worker)
    total_s, count = float(np.sum(cause.figure.by_step_s)), int(by_worker.sum())
    if count == 0 or total_s <= 0:
        return None
    pauses = _Pauses(
        count, by_worker.size, total_s / count, cause.figure.longest_s, _growth(cause.figure)
    )
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


def _growth(stalls: Stalls) -> float:
    """Return the stall length at the end ÷ the mean length; 1 if the trend is not significant."""
    by_step = np.array(stalls.by_step_s)
    if np.count_nonzero(by_step) < _MIN_STEPS:
        return 1.0
    step = np.arange(len(by_step)) - (len(by_step) - 1) / 2
    mean, slope = by_step.mean(), (step @ by_step) / (step @ step)
    residual = by_step - mean - slope * step
    error = np.sqrt((residual @ residual) / (len(step) - 2) / (step @ step))
    if slope <= _SIGNIFICANT * error:
        return 1.0
    return float(min(1 + slope * step[-1] / mean, 1 / _LEAST_SHARE))


@dataclass(frozen=True, slots=True, eq=False)
class _Replayable:
    """Fix with the change of durations that its replay applies."""

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
    """Return the fixes that a trace alone can judge, largest gain first, without gains below 1 %.

    Parameters
    ----------
    observation : Observation
        The session before any cause is removed from it.
    causes : sequence of Cause
        The named causes.
    headline : Headline
        The job's slowdown; no fix makes the job faster than the reference of the slowdown.
    trusted : bool
        Whether the replay reproduces the recording closely enough; if not, only named causes have
        fixes.
    others : sequence of Fix
        Fixes that were replayed elsewhere.
    """
    now_s = metrics.simulated_step_s * diagnosis.late
    fixes = [*_remedies(causes, observation.hosts, now_s), *others]
    planned = []
    for cause in causes:
        if cause.cause == cause_of(Plan.COLLECT_TOGETHER):
            planned.append(plan_collections(cause, now_s))
        elif cause.cause == cause_of(Plan.BALANCE_MICROBATCHES):
            planned.append(even_out(observation.trace, replayed, cause, now_s, trusted=trusted))
    fixes += [fix for fix in planned if fix is not None]
    if trusted:
        fixes += _by_replay(replayed, _changes(observation, replayed, metrics, causes), now_s)
        if replayed.layout.dp == 1:
            # With a single DP rank a worker has no peers in its stage, so the other stages are its
            # peers.
            fixes += [
                Fix(
                    REPLACE_WORKER,
                    f"Replace {_worker_names(cause.where.workers)}",
                    "Replayed with the time a layer that the other stages take.",
                    step_time_s=now_s * (1 - cause.saves),
                    gain=cause.saves,
                    cause=cause.cause,
                    at_most=cause.contribution is None,
                )
                for cause in causes
                if cause.cause == cause_of(Plan.REPLACE_WORKERS) and cause.saves is not None
            ]
    most = headline.waste
    if not trusted:
        # S excludes late launches, which are the main loss of a job whose replay is not trusted.
        most = max(most, 1 - headline.reference_step_time_s / now_s)
    # The headline compares with the job without the likelier of two causes. Without the other one
    # the job may be faster.
    other = {cause.cause: cause.saves or 0.0 for cause in causes if cause.contribution is None}
    bounded = [_capped(fix, max(most, other.get(fix.cause or "", 0.0)), now_s) for fix in fixes]
    worthwhile = (fix for fix in bounded if fix.gain >= MIN_GAIN)
    return sorted(worthwhile, key=lambda fix: (fix.cause in other, -fix.gain))


def _worker_names(workers: Sequence[Worker]) -> str:
    return name_list("worker", [f"({dp}, {pp})" for dp, pp in workers])


def _remedies(causes: Sequence[Cause], hosts: Hosts, now_s: float) -> list[Fix]:
    """Return a remedy per cause; its gain comes from a replay of the session without the cause.

    Slow workers and heavy stages have no remedy here but other fixes, which are replayed with late
    launches. Pauses and sequence lengths cannot be removed from the job and have planned fixes
    instead.
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


def _capped(fix: Fix, most: float, now_s: float) -> Fix:
    """Return a fix with its gain limited to the share `most` of a step.

    Shares are compared instead of seconds, since the headline covers only steps of the most
    frequent shape. A replayed division of the layers is not limited: with few microbatches an
    uneven division can be faster than the even stages that the headline compares with.
    """
    if fix.gain <= most or (fix.division is not None and not fix.at_most):
        return fix
    return replace(fix, step_time_s=now_s * (1 - most), gain=most)


def _workers_to_replace(metrics: Metrics, causes: Sequence[Cause]) -> tuple[Worker, ...]:
    """Return the slow workers of the diagnosis; the costliest workers if no cause is named.

    Replacing a worker does not remove another named cause of its cost.
    """
    for cause in causes:
        if cause.cause == cause_of(Plan.REPLACE_WORKERS):
            return cause.where.workers
    explained = any(cause.cause != UNKNOWN for cause in causes)
    return () if explained else metrics.blamed


def _changes(
    observation: Observation, replayed: Replayed, metrics: Metrics, causes: Sequence[Cause]
) -> list[_Replayable]:
    """Return the changes whose gains need their own replays.

    These are worker replacement, redistributed microbatches and divisions of the layers.
    """
    changes = []
    workers = _workers_to_replace(metrics, causes)
    if workers:
        slow = any(cause.cause == cause_of(Plan.REPLACE_WORKERS) for cause in causes)
        replaced = Fix(
            REPLACE_WORKER,
            f"Replace {_worker_names(workers)}",
            "Replayed with the medians of the other DP ranks of the same stage.",
            cause=cause_of(Plan.REPLACE_WORKERS) if slow else None,
        )
        # If a named cause concerns transfers, transfers stay as recorded: a new device does not
        # repair a slow link.
        computing = any(cause.cause in _OF_TRANSFERS for cause in causes)
        changes.append(
            _Replayable(
                replaced, lambda group: _at_peers_medians(group, workers, computing=computing)
            )
        )
    for cause in causes:
        if cause.cause == cause_of(Plan.REPLACE_WORKERS):
            moved = redistribute(observation, cause)
            if moved is not None:
                changes.append(_Replayable(moved[0], moved[1].replacement))
    stage = next((cause for cause in causes if cause.cause == cause_of(Plan.DIVIDE_LAYERS)), None)
    if stage is not None and replayed.layout.pp > 1:
        # A cause without a known contribution may be a slow worker, which no division fixes.
        doubted = any(cause.contribution is None for cause in causes)
        candidates = [] if doubted else divisions(observation, replayed)
        changes += [_division_change(item) for item in candidates] or _even_stages(observation)
    return changes


def _division_change(candidate: Candidate) -> _Replayable:
    """Return a division of the layers as a replayable fix."""
    division = candidate.division
    fix = Fix(
        EVEN_STAGES,
        f"Divide the layers {division.text}",
        _in_words(division),
        cause=cause_of(Plan.DIVIDE_LAYERS),
        at_most=not candidate.costs.separable,
        division=division,
    )
    return _Replayable(fix, candidate.replacement)


def _in_words(division: Division) -> str:
    """Return a division's description: costs, optimality proof, memory limit and launcher flag."""
    layer = (
        f"Now they are {as_text(division.today)}. A layer takes {division.layer_ms:.1f} ms of a "
        "microbatch, forward and backward"
    )
    ends = [
        f"the {name} as long as {time_ms / division.layer_ms:.1f} layers"
        for name, time_ms in (("embedding", division.embedding_ms), ("head", division.head_ms))
        if time_ms >= _MENTIONED_FROM * division.layer_ms
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
        f"{', '.join([layer, *ends])}. {best} at the typical times of the stages, replayed with "
        f"this session's own durations; {memory}. Megatron-LM: {division.flag}"
    )


def _even_stages(observation: Observation) -> list[_Replayable]:
    """Return the fix that equalizes all stage times, an upper bound of every division's gain."""
    if not observation.comparable:
        return []
    fix = Fix(
        EVEN_STAGES,
        "Divide the layers evenly by time",
        "Replayed with all stages at the mean of their typical times: the most that a better "
        'division of layers can gain. With "layers" in the metadata the best division itself is '
        "found and replayed.",
        cause=cause_of(Plan.DIVIDE_LAYERS),
        at_most=True,
    )

    def even(group: ShapeGroup) -> Replacement:
        own = observation if group is observation.group else replace(observation, group=group)
        return even_level(group, own)

    return [_Replayable(fix, even)]


def _by_replay(replayed: Replayed, changes: Sequence[_Replayable], now_s: float) -> list[Fix]:
    """Return the replayed fixes, the fix with the largest gain for each action."""
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
    """Return durations in which workers' operations take the medians of their stage peers.

    The simulator's ideal duration cannot be used, since it is a mean that includes the straggler.
    With `computing`, transfers keep their recorded durations.
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
                # A worker keeps its own number of microbatches, so its padding keeps duration 0.
                values[padding.of(nodes, steps)] = 0.0
            changed.append(values)
        return np.concatenate(changed)

    nodes = np.concatenate([np.empty(0, dtype=np.int64), *on_stage.values()])
    return Replacement(nodes, times)


def without_standstills(
    fixes: Sequence[Fix], causes: Sequence[Cause], hosts: Hosts, now_s: float, turn_s: float
) -> list[Fix]:
    """Return the fixes of all causes, including standstills between steps, largest gain first.

    The gain of a fix of standstills is a share of the time from one step to the next; savings of
    the same fix within steps add to the gain.

    Parameters
    ----------
    fixes : sequence of Fix
        Fixes of causes within steps.
    causes : sequence of Cause
        All named causes.
    now_s : float
        Mean step time today, seconds.
    turn_s : float
        Mean time from one step to the next, seconds.
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

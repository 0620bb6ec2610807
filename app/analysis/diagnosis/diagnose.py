"""From a replayed session to its causes: find signs, replay without them, share the lost time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.data_loading import find_data_loading, first_delays
from app.analysis.diagnosis.causes.garbage_collection import find_garbage_collection
from app.analysis.diagnosis.causes.kernel_dependency import find_false_dependency, held_up
from app.analysis.diagnosis.causes.network import find_network
from app.analysis.diagnosis.causes.sequence_lengths import find_sequence_lengths
from app.analysis.diagnosis.causes.slow_worker import find_slow_workers
from app.analysis.diagnosis.causes.stage_imbalance import find_stage_imbalance
from app.analysis.diagnosis.causes.tensor_ranks import (
    find_tensor_ranks,
    has_tensor_ranks,
    measure_waits,
)
from app.analysis.diagnosis.confidence import confidence
from app.analysis.diagnosis.counterfactual import NS, Counterfactuals
from app.analysis.diagnosis.finding import (
    CAUSES,
    DATA_LOADING,
    FALSE_DEPENDENCY,
    UNKNOWN,
    Cause,
    Evidence,
    Finding,
)
from app.analysis.diagnosis.limits import cannot_judge
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.usual import slowness_by_stage, take_apart
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.session import Replayed
from app.analysis.trace.model import Trace
from app.analysis.wording import percent

# A session whose steps lose less than this share has nothing to explain.
_WORTH_A_LOOK: Final = 0.03
# A cause that costs less than this share of a step is not named…
_NAMED_COST: Final = 0.025
# …nor one that has less than this share of the lost time.
_NAMED_SHARE: Final = 0.1
# More causes than this are not replayed in all their combinations.
_MOST_CAUSES: Final = 4
# What is left over is named when it is the larger part and costs this share of a step.
_UNKNOWN_SHARE: Final = 0.5
_UNKNOWN_COST: Final = 0.05


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What makes a session slow.

    Parameters
    ----------
    causes : tuple of Cause
        The most expensive one first; empty where too little is lost.
    ruled_out : tuple of str
        Causes whose sign is not there, or costs next to nothing.
    unjudged : dict
        Causes that this session cannot show, and why.
    lost_s : float
        Time that a mean step loses, late launches with a cause included.
    slowdown : float
        Step time over step time without what is lost: S where launches are not late, corrected
        where the ideal contains the straggler.
    discrepancy : float
        How far the replay, with launches late that have a cause, is from the recording.
    late : float
        How many times as long steps are with launches late that have a cause as with none late.
    """

    causes: tuple[Cause, ...]
    ruled_out: tuple[str, ...]
    unjudged: dict[str, str]
    lost_s: float
    slowdown: float
    discrepancy: float
    late: float = 1.0

    def causes_within(self, limit: float) -> tuple[Cause, ...]:
        """Return the causes if the replay they come from is within `limit` of the recording.

        Late launches with a cause are part of that replay, so that it can be near where the replay
        of durations alone is not.
        """
        return self.causes if self.discrepancy <= limit else ()


def diagnose(trace: Trace, replayed: Replayed, metrics: Metrics) -> Diagnosis:
    """Name the causes of a session's lost time; steps of the most frequent shape are looked at."""
    observation = Observation(trace, replayed.main)
    tensor_ranks = has_tensor_ranks(trace)
    unjudged = cannot_judge(observation, tensor_ranks=tensor_ranks)
    excess = float(metrics.recorded_s.mean() / metrics.ideal_s.mean())
    if excess < 1 + _WORTH_A_LOOK:
        judged = tuple(cause for cause in CAUSES if cause not in unjudged)
        return Diagnosis(
            (), judged, unjudged, metrics.lost_s, metrics.slowdown, metrics.discrepancy
        )
    step_ns = float(metrics.recorded_s.mean()) / NS
    findings, late = _find(observation, step_ns, tensor_ranks=tensor_ranks)
    replays = Counterfactuals(replayed.main, [finding.change for finding in findings], late)
    main = np.isin(replayed.steps, replayed.layout.steps)
    recorded_s = float(metrics.recorded_s[main].mean())
    diagnosis = _weigh(replays, findings, recorded_s, float(metrics.ideal_s[main][0]), unjudged)
    if not late:
        return diagnosis
    with_late_s = float(replays.without(frozenset()).mean())
    return replace(diagnosis, late=with_late_s / float(metrics.simulated_s[main].mean()))


def _find(
    observation: Observation, step_ns: float, *, tensor_ranks: bool
) -> tuple[list[Finding], dict[int, FloatArray]]:
    """Return what left its sign, and the launch delays that have a cause."""
    batch, held = first_delays(observation), held_up(observation)
    waiting = find_tensor_ranks(observation, measure_waits(observation)) if tensor_ranks else []
    # What a tensor-parallel group waits for its own ranks is no slowness of the worker besides.
    explained: dict[int, FloatArray] = {}
    for finding in waiting:
        explained.update(finding.change.less_ns)
    if explained:
        observation = replace(observation, less_ns=explained)
    found: list[Finding | None] = [
        *waiting,
        *_find_by_comparison(observation),
        find_network(observation),
        find_data_loading(observation, batch, step_ns),
        find_false_dependency(observation, held),
    ]
    findings = [finding for finding in found if finding is not None]
    causes = {finding.cause for finding in findings}
    late: dict[int, FloatArray] = {}
    for cause, delays in ((DATA_LOADING, batch), (FALSE_DEPENDENCY, held)):
        if cause in causes:
            late |= delays
    return findings, late


def _find_by_comparison(observation: Observation) -> list[Finding | None]:
    """Return what shows where a computation is held against its like.

    On other stages; workers can be held against their stage's peers alone.
    """
    if not observation.comparable:
        if not observation.comparable_within_stages:
            return []
        return [find_slow_workers(observation, slowness_by_stage(observation))]
    usual = take_apart(observation.passes)
    return [
        find_slow_workers(observation, usual.worker),
        find_stage_imbalance(observation),
        find_sequence_lengths(observation, usual),
        find_garbage_collection(observation, usual),
    ]


def _weigh(
    replays: Counterfactuals,
    findings: Sequence[Finding],
    recorded_s: float,
    ideal_s: float,
    unjudged: dict[str, str],
) -> Diagnosis:
    """Give each finding its share of the lost time and keep those that matter."""
    numbers = _that_matter(replays, len(findings))
    shares_s = replays.shares(numbers)
    now_s = replays.without(frozenset())
    mean_s = float(now_s.mean())
    # The ideal is a mean that contains the straggler: without the causes steps may be faster.
    best_s = min(ideal_s, float(replays.without(frozenset(numbers)).mean()))
    lost_s = max(mean_s - best_s, 1e-12)
    named = [
        (number, cost)
        for number, cost in zip(numbers, shares_s, strict=True)
        if cost.mean() >= max(_NAMED_COST * mean_s, _NAMED_SHARE * lost_s)
    ]
    named.sort(key=lambda item: -float(item[1].mean()))
    causes = [
        Cause(
            cause=findings[number].cause,
            contribution=float(cost.mean()) / lost_s,
            cost_s=float(cost.mean()),
            confidence=confidence(cost, now_s, lost_s),
            evidence=findings[number].evidence,
            where=findings[number].where,
            figure=findings[number].figure,
            saves=replays.gain(frozenset({number})) / mean_s,
        )
        for number, cost in named
    ]
    left_s = lost_s - sum(float(cost.mean()) for _, cost in named)
    if left_s >= _UNKNOWN_SHARE * lost_s and left_s >= _UNKNOWN_COST * mean_s:
        unknown = _unknown(left_s, lost_s, len(causes))
        causes.insert(0 if not causes else _place(causes, left_s), unknown)
    chosen = {cause.cause for cause in causes}
    return Diagnosis(
        causes=tuple(_with_runners_up(causes, findings)),
        ruled_out=tuple(c for c in CAUSES if c not in chosen and c not in unjudged),
        unjudged=unjudged,
        lost_s=lost_s,
        slowdown=mean_s / best_s,
        discrepancy=abs(recorded_s / mean_s - 1),
    )


def _that_matter(replays: Counterfactuals, count: int) -> list[int]:
    """Return the findings whose removal alone, or as the last one, saves anything worth naming."""
    everything = frozenset(range(count))
    each = [frozenset({number}) for number in range(count)]
    replays.replay([frozenset(), everything, *each, *(everything - one for one in each)])
    mean_s = float(replays.without(frozenset()).mean())
    saved = {
        number: max(
            replays.gain(frozenset({number})),
            replays.gain(everything) - replays.gain(everything - {number}),
        )
        for number in range(count)
    }
    worth = [number for number in saved if saved[number] >= _NAMED_COST * mean_s / 2]
    return sorted(sorted(worth, key=lambda number: -saved[number])[:_MOST_CAUSES])


def _unknown(left_s: float, lost_s: float, others: int) -> Cause:
    besides = (
        "what the causes named here explain" if others else "any cause that this session can show"
    )
    return Cause(
        cause=UNKNOWN,
        contribution=left_s / lost_s,
        cost_s=left_s,
        confidence=None,
        evidence=(Evidence(f"{percent(left_s / lost_s, 0)} of the lost time is beyond {besides}"),),
    )


def _place(causes: list[Cause], cost_s: float) -> int:
    return sum((cause.cost_s or 0.0) >= cost_s for cause in causes)


def _with_runners_up(causes: list[Cause], findings: Sequence[Finding]) -> list[Cause]:
    """Give each cause the next best explanation: the next cause, or else the next finding."""
    names = [cause.cause for cause in causes]
    spare = next((f.cause for f in findings if f.cause not in names), None)
    return [
        replace(cause, runner_up=following)
        for cause, following in zip(causes, [*names, spare][1:], strict=True)
    ]

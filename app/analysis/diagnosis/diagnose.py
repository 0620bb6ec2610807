"""The diagnosis: find causes by their signs, replay without them, split the lost time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import SHARED_PROCESSORS, CauseKind
from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.counterfactual import (
    Claim,
    Counterfactuals,
    contention_loss_s,
    single_operation_loss_s,
)
from app.analysis.diagnosis.earlier_sessions import EarlierSession
from app.analysis.diagnosis.finding import UNKNOWN, Cause, Judged, Uncertainty
from app.analysis.diagnosis.late_launches import late_launches, unrecorded_reducing
from app.analysis.diagnosis.lost_time import loses_little, named_loss, one_or_all
from app.analysis.diagnosis.named_causes import DetectedCause, causes_between_steps, named_causes
from app.analysis.diagnosis.observation import Explained, Observation, summed
from app.analysis.diagnosis.session_view import Signs
from app.analysis.diagnosis.step_gaps import step_gaps_of
from app.analysis.quantities import NS, FloatArray
from app.analysis.replay.adaptations.posted_in_turn import in_turn
from app.analysis.replay.adaptations.signs import lags_after_transfers, sampled
from app.analysis.replay.fidelity import DISCREPANCY_LIMIT, recorded_otherwise
from app.analysis.replay.host_delays import between_steps_ns
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.robust_statistics import mean
from app.analysis.replay.session import Replayed, with_graph, with_shorter_step_gap, without_lags


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Confidence in causes that no replay can judge."""

    without_cost: float = 0.8  # confidence in a slow worker whose cost is unknown


THRESHOLDS: Final = Thresholds()

_ONE_STEP: Final = "a single step does not show what changes from step to step"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The causes of a session's lost time."""

    causes: tuple[Cause, ...]  # the most expensive first; empty if too little is lost
    ruled_out: tuple[str, ...]  # causes without a sign, or with next to no cost
    unjudged: dict[str, str]  # causes that this session cannot show, and why
    lost_s: float  # lost time of a mean step, late launches with a cause included
    # Step time ÷ step time without the causes, or ÷ ideal if the causes do not explain the loss.
    # For whole steps: with the gradient reduction even if it is not recorded.
    slowdown: float
    # |recorded ÷ replayed - 1| for the replay with the late launches that have a cause. Above the
    # limit for a verdict, launches are also late for no known cause.
    discrepancy: float
    late: float = 1.0  # step time of that replay ÷ that of a replay without late launches
    judged: Judged | None = None  # None if too little is lost to look for causes
    # causes of late launches, if the delays by these causes alone bring the replay near the
    # recording
    delaying: tuple[str, ...] = ()
    # Loss of a mean step by chance: if ranks share processors, or if too few steps distinguish
    # accidents from recurring losses. This loss has no cause and does not count as lost.
    chance_s: float = 0.0
    between: tuple[Cause, ...] = ()  # causes of lost time between steps
    turn_s: float = 0.0  # mean step with the gap before it; 0 if unknown

    def causes_within(self, limit: float) -> tuple[Cause, ...]:
        """Return the causes if the replay with them is within `limit` of the recording, else none.

        This replay contains late launches with a cause, so it may be near the recording even if the
        replay of durations alone is not.
        """
        return self.causes if self.discrepancy <= limit else ()


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measures of a mean step in the main group of steps that do not depend on causes."""

    recorded_s: float
    slowdown: float  # S, of all steps
    chance_s: float  # loss by chance


def diagnose(
    observation: Observation,
    replayed: Replayed,
    metrics: Metrics,
    earlier: Sequence[EarlierSession] = (),
) -> Diagnosis:
    """Return the causes of a session's lost time, by the steps of the most frequent shape.

    Parameters
    ----------
    earlier : sequence of EarlierSession
        Computing times of the job's earlier sessions.
    """
    gaps = step_gaps_of(replayed, metrics.recorded_s)
    signs = Signs(observation, metrics.recorded_step_s / NS, earlier, gaps)
    diagnosis, between = _within_steps(signs, replayed, metrics), causes_between_steps(signs)
    if not diagnosis.causes:
        single_s = single_operation_loss_s(observation, metrics)
        diagnosis = replace(diagnosis, chance_s=max(diagnosis.chance_s, single_s))
    named = {cause.cause for cause in between}
    excess = metrics.recorded_step_s / metrics.simulated_step_s - 1
    # If the recording is known to deviate from the model, launches may only seem late.
    modelled = (
        metrics.discrepancy <= DISCREPANCY_LIMIT or recorded_otherwise(replayed, excess) is None
    )
    return replace(
        diagnosis,
        delaying=diagnosis.delaying if modelled else (),
        ruled_out=tuple(name for name in diagnosis.ruled_out if name not in named),
        unjudged={name: why for name, why in diagnosis.unjudged.items() if name not in named},
        between=between,
        turn_s=0.0 if signs.step_gaps is None else signs.step_gaps.period_ns * NS,
    )


def _within_steps(signs: Signs, replayed: Replayed, metrics: Metrics) -> Diagnosis:
    """Return the causes of the time lost within steps, without the gaps between steps."""
    observation = signs.observation
    unjudged = _cannot_judge(signs)
    chance_s = contention_loss_s(observation, metrics)
    excess = metrics.recorded_step_s / (metrics.ideal_step_s + chance_s)
    # A cause may slow the ideal steps as much as the recorded steps, so that little time seems
    # lost.
    if loses_little(excess) and not any(
        kind.slows_ideal is not None and kind.slows_ideal(signs) for kind in KINDS.values()
    ):
        judged = tuple(name for name in KINDS if name not in unjudged)
        return Diagnosis(
            (),
            judged,
            unjudged,
            metrics.lost_s,
            metrics.slowdown,
            metrics.discrepancy,
            chance_s=chance_s,
        )
    detected = _find(signs, KINDS.values())
    launches = [item.finding.launches for item in detected]
    regular = frozenset[int]().union(*(late.regular for late in launches))
    step_gap_ns = max((late.step_gap_ns for late in launches), default=0.0)
    late = {
        # Two causes may explain the same delay, so their sum is at most the recorded delay.
        node: np.minimum(
            late_ns,
            observation.delay_ns(
                node, regular=node in regular or (step_gap_ns > 0 and not observation.after[node])
            ),
        )
        for node, late_ns in summed(finding.late_ns for finding in launches).items()
    }
    changes = [item.finding.change for item in detected]
    main = np.ones(len(metrics.recorded_s), dtype=bool)
    if len(replayed.groups) > 1:
        main = np.isin(replayed.steps, replayed.layout.steps)
    group = with_shorter_step_gap(without_lags(replayed.main, regular), step_gap_ns)
    few = sampled(group.layout)
    lags_ns = {edge: ns for finding in launches for edge, ns in finding.lags_ns.items()}
    if not lags_ns and not regular:
        lags_ns = dict(lags_after_transfers(few, group.graph, group.durations.ideal_ns))
    graph = in_turn(few, group.graph)
    adapted = bool(lags_ns) or graph is not group.graph or step_gap_ns > 0
    if adapted:
        group = with_graph(group, replace(graph, lags_ns={**graph.lags_ns, **lags_ns}))
        adapting = replace(observation, group=group)
        # A delay that the graph already contains as a lag must not count twice.
        late = {node: np.minimum(ns, adapting.delay_ns(node)) for node, ns in late.items()}
    replays = Counterfactuals(
        group,
        changes,
        late,
        now_s=None if late or regular or adapted else metrics.simulated_s[main],
        claims=[Claim(item.kind.phase, item.finding.launches.late_ns) for item in detected],
    )
    recorded_s = float(mean(metrics.recorded_s[main]))
    ideal_s = replays.ideal() if adapted else metrics.ideal_s[main]
    if metrics.discrepancy <= DISCREPANCY_LIMIT:
        # All of these replays are likely to be needed, and one call costs less than two calls.
        replays.replay(one_or_all(len(detected)))
    explained = _discrepancy(replays, recorded_s) <= DISCREPANCY_LIMIT
    if not explained:
        # Some launches are late for no known cause; replays with and without the causes contain
        # these delays.
        other_ns = {
            node: np.maximum(delay_ns - late.get(node, 0.0), 0.0)
            for node, delay_ns in late_launches(signs.observation).items()
        }
        replays = replays.with_delays(other_ns)
        ideal_s = replays.ideal()
    measured = _Measured(recorded_s, metrics.slowdown, chance_s)
    diagnosis, named = _weigh(replays, detected, measured, ideal_s + chance_s, unjudged)
    diagnosis = replace(diagnosis, chance_s=chance_s)
    if explained and named:
        diagnosis = _with_reduction(diagnosis, replays, named, signs.observation)
    diagnosis = _with_usual_gap(diagnosis, between_steps_ns(replayed) * NS)
    if not late and not replays.unexplained_ns:
        return diagnosis
    if replays.unexplained_ns and all(cause.cause == UNKNOWN for cause in diagnosis.causes):
        # Late launches without a known cause may be waits that the replay does not model.
        diagnosis = replace(diagnosis, causes=())
    with_late_s = replays.mean_s(frozenset())
    delaying = {item.kind.name for item in detected if item.finding.launches.late_ns and explained}
    return replace(
        diagnosis,
        late=with_late_s / float(mean(metrics.simulated_s[main])),
        delaying=tuple(cause.cause for cause in diagnosis.causes if cause.cause in delaying),
    )


def _discrepancy(replays: Counterfactuals, recorded_s: float) -> float:
    """Return |recorded ÷ replayed - 1| for the replay with all causes."""
    return abs(recorded_s / replays.mean_s(frozenset()) - 1)


def _cannot_judge(signs: Signs) -> dict[str, str]:
    """Return the causes that the session lacks the data to judge, each with the reason.

    Causes that the job cannot have are not included: without overlap no computation waits for a
    reduce-scatter, and with one stage no stage is too heavy.
    """
    shared = signs.observation.shares_processors
    reasons = {
        kind.name: SHARED_PROCESSORS
        if shared and kind.needs_own_devices
        else kind.cannot_judge(signs)
        for kind in KINDS.values()
    }
    if len(signs.observation.layout.steps) == 1:
        reasons |= {kind.name: _ONE_STEP for kind in KINDS.values() if kind.over_steps}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _find(signs: Signs, among: Iterable[CauseKind]) -> list[DetectedCause]:
    """Return the causes whose sign is in the data, phase by phase; special signs come first."""
    detected: list[DetectedCause] = []
    shared = signs.observation.shares_processors
    phase = attrgetter("phase")
    for _, kinds in groupby(sorted(among, key=phase), key=phase):
        possible = [kind for kind in kinds if not (shared and kind.needs_own_devices)]
        findings = [(kind, kind.find(signs)) for kind in possible]
        new = [DetectedCause(kind, finding) for kind, finding in findings if finding is not None]
        if new:
            detected += new
            findings_so_far = [item.finding for item in detected]
            # Groups of a stage share nodes and have different columns, so a node's times are added.
            explained = Explained(
                summed(finding.change.less_ns for finding in findings_so_far),
                summed(finding.launches.late_ns for finding in findings_so_far),
            )
            signs = signs.net_of(explained)
    return detected


def _weigh(
    replays: Counterfactuals,
    detected: Sequence[DetectedCause],
    measured: _Measured,
    ideal_s: FloatArray,
    unjudged: dict[str, str],
) -> tuple[Diagnosis, frozenset[int]]:
    """Return the diagnosis, and the numbers of its findings if these explain the loss."""
    now_s = replays.without(frozenset())
    mean_s = float(mean(now_s))
    numbers, loss = named_loss(
        replays, len(detected), ideal_s, measured.slowdown, measured.chance_s
    )
    causes = named_causes(replays, detected, numbers, loss)
    chosen = {cause.cause for cause in causes}
    unjudged = {name: why for name, why in unjudged.items() if name not in chosen}
    diagnosis = Diagnosis(
        causes=causes,
        ruled_out=tuple(c for c in KINDS if c not in chosen and c not in unjudged),
        unjudged=unjudged,
        lost_s=loss.lost_s,
        slowdown=mean_s / float(mean(loss.reference_s)),
        discrepancy=_discrepancy(replays, measured.recorded_s),
        judged=Judged(
            steps_s=now_s,
            reference_s=loss.reference_s,
            unknown_share=loss.unknown_s / loss.lost_s,
            recorded_s=measured.recorded_s,
            uncertainty=Uncertainty.combine([detected[n].finding.uncertainty for n in numbers]),
            hosts_wait=bool(replays.group.graph.lags_ns),
        ),
    )
    return diagnosis, frozenset() if loss.unknown_s else frozenset(numbers)


def _with_reduction(
    diagnosis: Diagnosis, replays: Counterfactuals, named: frozenset[int], observation: Observation
) -> Diagnosis:
    """Return the diagnosis with a slowdown of steps that include the unrecorded reduction.

    The gradient reduction remains without the causes: steps without the reduction would be shorter,
    and the causes' share would be too large.
    """
    waits = unrecorded_reducing(observation).values()
    reducing_ns = {
        node: np.maximum(wait_ns - replays.late_ns.get(node, 0.0), 0.0) for node, wait_ns in waits
    }
    if not reducing_ns or diagnosis.judged is None:
        return diagnosis
    whole = replays.with_delays(reducing_ns)
    whole.replay([frozenset(), named])
    now_s, reference_s = whole.without(frozenset()), whole.without(named)
    return replace(
        diagnosis,
        slowdown=float(mean(now_s)) / float(mean(reference_s)),
        judged=replace(diagnosis.judged, steps_s=now_s, reference_s=reference_s),
    )


def _with_usual_gap(diagnosis: Diagnosis, gap_s: float) -> Diagnosis:
    """Return the diagnosis with a slowdown of steps that include the usual gap between steps."""
    judged = diagnosis.judged
    if judged is None or not gap_s:
        return diagnosis
    judged = replace(
        judged,
        steps_s=judged.steps_s + gap_s,
        reference_s=judged.reference_s + gap_s,
        recorded_s=judged.recorded_s + gap_s,
    )
    slowdown = float(mean(judged.steps_s)) / float(mean(judged.reference_s))
    return replace(diagnosis, slowdown=slowdown, judged=judged)


def causes_without_replay(
    observation: Observation, metrics: Metrics, earlier: Sequence[EarlierSession] = ()
) -> tuple[Cause, ...]:
    """Return the causes, without cost, that are certain without a replay, such as slow workers.

    A worker's own computing time does not depend on the quality of the replay; the worker's share
    of the loss does.
    """
    signs = Signs(observation, metrics.recorded_step_s / NS, earlier)
    among = [k for k in KINDS.values() if k.needs_no_replay and k.cannot_judge(signs) is None]
    return tuple(
        Cause(
            cause=detected.kind.name,
            contribution=None,
            cost_s=None,
            confidence=THRESHOLDS.without_cost,
            evidence=detected.finding.evidence,
            where=detected.finding.where,
            figure=detected.finding.figure,
        )
        for detected in _find(signs, among)
    )

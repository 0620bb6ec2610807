"""From a replayed session to its causes: find signs, replay without them, share the lost time."""

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
    NS,
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
from app.analysis.replay.adaptations.posted_in_turn import in_turn
from app.analysis.replay.adaptations.signs import lags_after_transfers, sampled
from app.analysis.replay.fidelity import DISCREPANCY_LIMIT, recorded_otherwise
from app.analysis.replay.host_delays import between_steps_ns
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.robust_statistics import mean
from app.analysis.replay.session import Replayed, with_graph, with_shorter_turn, without_lags


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides how sure a cause is that no replay can judge."""

    without_cost: float = 0.8  # the confidence in a slow worker whose cost is not known


THRESHOLDS: Final = Thresholds()

_ONE_STEP: Final = "a single step does not show what changes from step to step"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What makes a session slow."""

    causes: tuple[Cause, ...]  # the most expensive one first; empty where too little is lost
    ruled_out: tuple[str, ...]  # causes whose sign is not there, or costs next to nothing
    unjudged: dict[str, str]  # causes that this session cannot show, and why
    lost_s: float  # time that a mean step loses, late launches with a cause included
    # Step time over step time without what is lost: without the causes, or where those do not
    # explain the loss, against the ideal. Of whole steps, reducing that is not recorded included.
    slowdown: float
    # How far the replay, with launches late that have a cause, is from the recording. Where that
    # is beyond the limit for a verdict, launches without a cause are late too.
    discrepancy: float
    # How many times as long steps are with launches that are late in that replay as with none
    # late.
    late: float = 1.0
    judged: Judged | None = None  # None where too little is lost to look for causes
    # The causes that make launches late, where the replay is near the recording with no others.
    delaying: tuple[str, ...] = ()
    # What a mean step loses by chance, where ranks share processors or steps are too few to tell
    # it from what recurs: no cause, and no loss.
    chance_s: float = 0.0
    # What is lost between steps, where no replay has it.
    between: tuple[Cause, ...] = ()
    turn_s: float = 0.0  # what a mean step takes with the gap before it; 0 where that is not known

    def causes_within(self, limit: float) -> tuple[Cause, ...]:
        """Return the causes if the replay they come from is within `limit` of the recording.

        Late launches with a cause are part of that replay, so that it can be near where the replay
        of durations alone is not.
        """
        return self.causes if self.discrepancy <= limit else ()


@dataclass(frozen=True, slots=True)
class _Measured:
    """What is known of the main group's mean step before its causes are."""

    recorded_s: float
    slowdown: float  # S, of all steps
    chance_s: float  # what it loses by chance


def diagnose(
    observation: Observation,
    replayed: Replayed,
    metrics: Metrics,
    earlier: Sequence[EarlierSession] = (),
) -> Diagnosis:
    """Name the causes of a session's lost time; steps of the most frequent shape are looked at.

    Parameters
    ----------
    earlier : sequence of EarlierSession
        What is known of the job's sessions before.
    """
    step_ns = metrics.recorded_step_s / NS
    gaps = step_gaps_of(replayed, metrics.recorded_s)
    signs = Signs(observation, step_ns, earlier, gaps)
    diagnosis, between = _within_steps(signs, replayed, metrics), causes_between_steps(signs)
    if not diagnosis.causes:
        single_s = single_operation_loss_s(observation, metrics)
        diagnosis = replace(diagnosis, chance_s=max(diagnosis.chance_s, single_s))
    named = {cause.cause for cause in between}
    return replace(
        diagnosis,
        delaying=() if _only_seem_late(replayed, metrics) else diagnosis.delaying,
        ruled_out=tuple(name for name in diagnosis.ruled_out if name not in named),
        unjudged={name: why for name, why in diagnosis.unjudged.items() if name not in named},
        between=between,
        turn_s=0.0 if signs.step_gaps is None else signs.step_gaps.period_ns * NS,
    )


def _within_steps(signs: Signs, replayed: Replayed, metrics: Metrics) -> Diagnosis:
    """Name the causes of the time that steps lose."""
    observation = signs.observation
    unjudged = _cannot_judge(signs)
    chance_s = contention_loss_s(observation, metrics)
    excess = metrics.recorded_step_s / (metrics.ideal_step_s + chance_s)
    if loses_little(excess) and not _hidden(signs):
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
    found = _find(signs, KINDS.values())
    launches = [sign.finding.launches for sign in found]
    regular = frozenset[int]().union(*(one.regular for one in launches))
    turn_ns = max((one.turn_ns for one in launches), default=0.0)
    late = {
        # two causes may explain the same time
        node: np.minimum(
            late_ns,
            observation.delay_ns(
                node, regular=node in regular or (turn_ns > 0 and not observation.after[node])
            ),
        )
        for node, late_ns in summed(one.late_ns for one in launches).items()
    }
    changes = [sign.finding.change for sign in found]
    main = np.ones(len(metrics.recorded_s), dtype=bool)
    if len(replayed.groups) > 1:
        main = np.isin(replayed.steps, replayed.layout.steps)
    group = with_shorter_turn(without_lags(replayed.main, regular), turn_ns)
    few = sampled(group.layout)
    lags_ns = {edge: ns for one in launches for edge, ns in one.lags_ns.items()}
    if not lags_ns and not regular:
        lags_ns = dict(lags_after_transfers(few, group.graph, group.durations.ideal_ns))
    graph = in_turn(few, group.graph)
    adapted = bool(lags_ns) or graph is not group.graph or turn_ns > 0
    if adapted:
        group = with_graph(group, replace(graph, lags_ns={**graph.lags_ns, **lags_ns}))
        adapting = replace(observation, group=group)
        # no time counts twice
        late = {node: np.minimum(ns, adapting.delay_ns(node)) for node, ns in late.items()}
    replays = Counterfactuals(
        group,
        changes,
        late,
        now_s=None if late or regular or adapted else metrics.simulated_s[main],
        claims=[Claim(sign.kind.phase, sign.finding.launches.late_ns) for sign in found],
    )
    recorded_s = float(mean(metrics.recorded_s[main]))
    ideal_s = replays.ideal() if adapted else metrics.ideal_s[main]
    if metrics.discrepancy <= DISCREPANCY_LIMIT:
        # most likely all of them are asked for: one replay costs less than two
        replays.replay(one_or_all(len(found)))
    explained = _off(replays, recorded_s) <= DISCREPANCY_LIMIT
    if not explained:
        # Launches are late that no found cause explains: with and without the causes.
        stays = {
            node: np.maximum(delay_ns - late.get(node, 0.0), 0.0)
            for node, delay_ns in late_launches(signs.observation).items()
        }
        replays = replays.with_delays(stays)
        ideal_s = replays.ideal()
    measured = _Measured(recorded_s, metrics.slowdown, chance_s)
    diagnosis, named = _weigh(replays, found, measured, ideal_s + chance_s, unjudged)
    diagnosis = replace(diagnosis, chance_s=chance_s)
    if explained and named:
        diagnosis = _with_reducing(diagnosis, replays, named, signs.observation)
    diagnosis = _of_whole_steps(diagnosis, between_steps_ns(replayed) * NS)
    if not late and not replays.unexplained_ns:
        return diagnosis
    if replays.unexplained_ns and all(cause.cause == UNKNOWN for cause in diagnosis.causes):
        # What launches late for no known cause may be waiting that the replay does not know.
        diagnosis = replace(diagnosis, causes=())
    with_late_s = replays.mean_s(frozenset())
    delaying = {sign.kind.name for sign in found if sign.finding.launches.late_ns and explained}
    return replace(
        diagnosis,
        late=with_late_s / float(mean(metrics.simulated_s[main])),
        delaying=tuple(cause.cause for cause in diagnosis.causes if cause.cause in delaying),
    )


def _only_seem_late(replayed: Replayed, metrics: Metrics) -> bool:
    """Return whether launches seem late that are not, the replay being far off."""
    gap = metrics.recorded_step_s / metrics.simulated_step_s - 1
    if metrics.discrepancy <= DISCREPANCY_LIMIT:
        return False
    return recorded_otherwise(replayed, gap) is not None


def _hidden(signs: Signs) -> bool:
    """Return whether the ideal may be as slow as the steps are."""
    return any(kind.slows_ideal is not None and kind.slows_ideal(signs) for kind in KINDS.values())


def _off(replays: Counterfactuals, recorded_s: float) -> float:
    """Return how far the replay with all causes is from the recording."""
    return abs(recorded_s / replays.mean_s(frozenset()) - 1)


def _cannot_judge(signs: Signs) -> dict[str, str]:
    """Return the causes that a session cannot show, because it lacks what they would be seen in.

    A cause that the job cannot have is not among them: without overlap nothing waits for a
    reduce-scatter, with one stage none is too heavy.
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
    """Return what left its sign; what is more special is looked for first."""
    found: list[DetectedCause] = []
    shared = signs.observation.shares_processors
    phase = attrgetter("phase")
    for _, kinds in groupby(sorted(among, key=phase), key=phase):
        possible = [kind for kind in kinds if not (shared and kind.needs_own_devices)]
        findings = [(kind, kind.find(signs)) for kind in possible]
        new = [DetectedCause(kind, finding) for kind, finding in findings if finding is not None]
        if new:
            found += new
            signs = signs.net_of(_explained(found))
    return found


def _explained(found: Sequence[DetectedCause]) -> Explained:
    """Return the time that findings explain."""
    findings = [sign.finding for sign in found]
    return Explained(
        # Groups of one stage share nodes, in columns of their own.
        summed(finding.change.less_ns for finding in findings),
        summed(finding.launches.late_ns for finding in findings),
    )


def _weigh(
    replays: Counterfactuals,
    found: Sequence[DetectedCause],
    measured: _Measured,
    ideal_s: FloatArray,
    unjudged: dict[str, str],
) -> tuple[Diagnosis, frozenset[int]]:
    """Give each finding its share of the lost time, keep those that matter, and say which."""
    now_s = replays.without(frozenset())
    mean_s = float(mean(now_s))
    numbers, loss = named_loss(replays, len(found), ideal_s, measured.slowdown, measured.chance_s)
    causes = named_causes(replays, found, numbers, loss)
    chosen = {cause.cause for cause in causes}
    unjudged = {name: why for name, why in unjudged.items() if name not in chosen}
    diagnosis = Diagnosis(
        causes=causes,
        ruled_out=tuple(c for c in KINDS if c not in chosen and c not in unjudged),
        unjudged=unjudged,
        lost_s=loss.lost_s,
        slowdown=mean_s / float(mean(loss.reference_s)),
        discrepancy=_off(replays, measured.recorded_s),
        judged=Judged(
            steps_s=now_s,
            reference_s=loss.reference_s,
            unknown_share=loss.unknown_s / loss.lost_s,
            recorded_s=measured.recorded_s,
            uncertainty=Uncertainty.combine([found[n].finding.uncertainty for n in numbers]),
            hosts_wait=bool(replays.group.graph.lags_ns),
        ),
    )
    return diagnosis, frozenset() if loss.unknown_s else frozenset(numbers)


def _with_reducing(
    diagnosis: Diagnosis, replays: Counterfactuals, named: frozenset[int], observation: Observation
) -> Diagnosis:
    """Return the diagnosis with a slowdown of whole steps, where reducing is not recorded.

    It follows the last computation, in a step without the causes as well, and a step that were
    shorter by it would make them weigh more than they do.
    """
    waits = unrecorded_reducing(observation).values()
    stays = {
        node: np.maximum(wait_ns - replays.late_ns.get(node, 0.0), 0.0) for node, wait_ns in waits
    }
    if not stays or diagnosis.judged is None:
        return diagnosis
    whole = replays.with_delays(stays)
    whole.replay([frozenset(), named])
    now_s, reference_s = whole.without(frozenset()), whole.without(named)
    return replace(
        diagnosis,
        slowdown=float(mean(now_s)) / float(mean(reference_s)),
        judged=replace(diagnosis.judged, steps_s=now_s, reference_s=reference_s),
    )


def causes_without_replay(
    observation: Observation, metrics: Metrics, earlier: Sequence[EarlierSession] = ()
) -> tuple[Cause, ...]:
    """Return causes such as slow workers where no replay tells what they cost.

    What a worker computes by itself, without the waiting inside, does not depend on how well the
    steps are replayed. Its share of the loss does, and is not said.
    """
    step_ns = metrics.recorded_step_s / NS
    signs = Signs(observation, step_ns, earlier)
    among = [k for k in KINDS.values() if k.needs_no_replay and k.cannot_judge(signs) is None]
    return tuple(
        Cause(
            cause=found.kind.name,
            contribution=None,
            cost_s=None,
            confidence=THRESHOLDS.without_cost,
            evidence=found.finding.evidence,
            where=found.finding.where,
            figure=found.finding.figure,
        )
        for found in _find(signs, among)
    )


def _of_whole_steps(diagnosis: Diagnosis, between_s: float) -> Diagnosis:
    """Return the diagnosis with what usually passes between steps in them, with causes or not."""
    judged = diagnosis.judged
    if judged is None or not between_s:
        return diagnosis
    judged = replace(
        judged,
        steps_s=judged.steps_s + between_s,
        reference_s=judged.reference_s + between_s,
        recorded_s=judged.recorded_s + between_s,
    )
    slowdown = float(mean(judged.steps_s)) / float(mean(judged.reference_s))
    return replace(diagnosis, slowdown=slowdown, judged=judged)

"""Causes of a report with cost and confidence, within steps and between steps.

Costs are in seconds of a mean step including the gap before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind
from app.analysis.diagnosis.causes.registry import ALTERNATIVES, KINDS
from app.analysis.diagnosis.counterfactual import Counterfactuals
from app.analysis.diagnosis.finding import UNKNOWN, Cause, Evidence, Finding
from app.analysis.diagnosis.lost_time import Loss, confidence
from app.analysis.diagnosis.session_view import Signs
from app.analysis.replay.robust_statistics import mean
from app.analysis.wording import percent


def causes_between_steps(signs: Signs) -> tuple[Cause, ...]:
    """Return the causes of lost time between steps that cost enough to be named."""
    causes = []
    for kind in KINDS.values():
        loss = None if kind.between is None else kind.between(signs)
        if loss is None or signs.step_gaps is None:
            continue
        cost_s = signs.step_gaps.cost_s(loss.lost_ns)
        causes.append(
            Cause(
                cause=kind.name,
                contribution=1.0,
                cost_s=cost_s,
                confidence=loss.max_confidence,
                evidence=loss.evidence,
                figure=loss.figure,
                between_s=cost_s,
            )
        )
    return tuple(causes)


def all_causes(
    within: Sequence[Cause], between: Sequence[Cause], lost_s: float
) -> tuple[Cause, ...]:
    """Return the causes within and between steps, the most expensive first.

    Parameters
    ----------
    lost_s : float
        Lost time of a mean step, seconds.
    """
    if not between:
        return tuple(within)
    of_steps_s = lost_s if any(cause.cost_s is not None for cause in within) else 0.0
    total_s = max(of_steps_s + sum(cause.between_s for cause in between), 1e-12)
    alone = {cause.cause: cause for cause in between}
    groups: list[list[Cause]] = []
    for cause in within:
        if cause.cost_s is None and groups:
            # A cause without a cost is the alternative of the cause before it, and stays next to
            # it.
            groups[-1].append(cause)
            continue
        gap = alone.pop(cause.cause, None)
        if gap is not None:
            sure = [c for c in (cause.confidence, gap.confidence) if c is not None]
            cause = replace(  # noqa: PLW2901 - the same cause, within steps and between them
                cause,
                cost_s=(cause.cost_s or 0.0) + gap.between_s,
                confidence=min(sure, default=None),
                evidence=(*gap.evidence, *cause.evidence),
                figure=gap.figure,
                between_s=gap.between_s,
            )
        groups.append([cause])
    groups += [[cause] for cause in alone.values()]
    groups.sort(key=lambda group: -(group[0].cost_s or 0.0))
    causes = [
        cause if cause.cost_s is None else replace(cause, contribution=cause.cost_s / total_s)
        for group in groups
        for cause in group
    ]
    following = [cause.cause for cause in causes[1:]]
    return tuple(
        replace(cause, runner_up=following[place] if place < len(following) else cause.runner_up)
        for place, cause in enumerate(causes)
    )


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds of confidence, and for naming the unexplained remainder."""

    # The unexplained remainder of the loss is named when it is this share of the lost time …
    unknown_share: float = 0.5
    unknown_cost: float = 0.05  # …and costs this share of a step
    # Highest confidence in a cause that has to recur, if the session has a single step.
    of_one_step: float = 0.8


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class DetectedCause:
    """A kind of cause whose sign is in the data, with its finding."""

    kind: CauseKind
    finding: Finding


def named_causes(
    replays: Counterfactuals, detected: Sequence[DetectedCause], numbers: Sequence[int], loss: Loss
) -> tuple[Cause, ...]:
    """Return findings as causes, the most expensive first, each with its share of the loss.

    Parameters
    ----------
    numbers : sequence of int
        Indices of the findings to name.
    """
    now_s = replays.without(frozenset())
    mean_s = float(mean(now_s))
    shares_s = dict(zip(numbers, replays.shares(numbers), strict=True))
    causes = []
    for number in sorted(numbers, key=lambda number: -np.mean(shares_s[number])):
        cost, finding = shares_s[number], detected[number].finding
        cost_s = float(mean(cost))
        sure, doubt = confidence(cost, now_s, loss.lost_s), finding.doubt
        if len(now_s) == 1 and detected[number].kind.recurs:
            sure = min(sure, THRESHOLDS.of_one_step)
        cause = Cause(
            cause=detected[number].kind.name,
            contribution=cost_s / loss.lost_s,
            cost_s=cost_s,
            confidence=sure if doubt is None else min(sure, doubt.max_confidence),
            evidence=finding.evidence,
            where=finding.where,
            figure=finding.figure,
            saves=replays.gain(frozenset({number})) / mean_s,
            at_most=doubt is not None and doubt.at_most,
        )
        causes.append(cause)
        if doubt is not None and doubt.alternative is not None:
            # The alternative has no share: the finding's cause, listed before it, has the share of
            # both. Its removal may save more or less.
            alternative = doubt.alternative
            evidence, saves = alternative.evidence, None
            if alternative.change is not None:
                without = replace(replays, changes=(*replays.changes, alternative.change))
                saves = without.gain(frozenset({len(replays.changes)})) / mean_s
                times = 1 / (1 - saves)
                evidence += (Evidence(f"If so, the job is {times:.2f}× slower than without it"),)
            causes.append(
                Cause(
                    cause=ALTERNATIVES[cause.cause],
                    contribution=None,
                    cost_s=None,
                    confidence=cause.confidence,
                    evidence=evidence,
                    where=alternative.where,
                    saves=saves,
                )
            )
    rest_s = loss.unknown_s
    if (
        rest_s >= THRESHOLDS.unknown_share * loss.lost_s
        and rest_s >= THRESHOLDS.unknown_cost * mean_s
    ):
        share = rest_s / loss.lost_s
        explained = (
            "what the causes named here explain"
            if causes
            else "any cause that this session can show"
        )
        unknown = Cause(
            cause=UNKNOWN,
            contribution=share,
            cost_s=rest_s,
            confidence=None,
            evidence=(Evidence(f"{percent(share, 0)} of the lost time is beyond {explained}"),),
        )
        place = sum(cause.cost_s is None or cause.cost_s >= rest_s for cause in causes)
        causes.insert(place, unknown)
    # The runner-up of a cause is the next cause; of the last cause, the first finding not named.
    names = [cause.cause for cause in causes]
    spare = next((item.kind.name for item in detected if item.kind.name not in names), None)
    return tuple(
        replace(cause, runner_up=following)
        for cause, following in zip(causes, [*names, spare][1:], strict=True)
    )

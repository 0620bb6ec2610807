"""Causes of a report: findings worth naming, with their cost and the gain of a fix.

Causes within steps and between them, both in seconds of a mean step and the gap after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

# ---- Causes between steps, next to those within them: both in seconds of a mean step and its gap -


def causes_between_steps(signs: Signs) -> tuple[Cause, ...]:
    """Return what the job loses between steps, by causes of which each costs enough."""
    return tuple(_found(signs))


def _found(signs: Signs) -> Iterator[Cause]:
    gaps = signs.step_gaps
    for kind in KINDS.values():
        standstill = None if kind.between is None else kind.between(signs)
        if standstill is None or gaps is None:
            continue
        cost_s = gaps.cost_s(standstill.lost_ns)
        yield Cause(
            cause=kind.name,
            contribution=1.0,
            cost_s=cost_s,
            confidence=standstill.max_confidence,
            evidence=standstill.evidence,
            figure=standstill.figure,
            between_s=cost_s,
        )


def all_causes(
    within: Sequence[Cause], between: Sequence[Cause], lost_s: float
) -> tuple[Cause, ...]:
    """Return the causes within steps and those between them, the most expensive first.

    Parameters
    ----------
    lost_s : float
        What a mean step loses.
    """
    if not between:
        return tuple(within)
    of_steps_s = lost_s if any(cause.cost_s is not None for cause in within) else 0.0
    total_s = max(of_steps_s + sum(cause.between_s for cause in between), 1e-12)
    alone = {cause.cause: cause for cause in between}
    groups: list[list[Cause]] = []
    for cause in within:
        if cause.cost_s is None and groups:
            # what the cause before it may be instead
            groups[-1].append(cause)
            continue
        other = alone.pop(cause.cause, None)
        groups.append([cause if other is None else _together(cause, other)])
    groups += [[cause] for cause in alone.values()]
    groups.sort(key=lambda group: -(group[0].cost_s or 0.0))
    causes = [_shared(cause, total_s) for group in groups for cause in group]
    following = [cause.cause for cause in causes[1:]]
    return tuple(
        replace(cause, runner_up=following[place] if place < len(following) else cause.runner_up)
        for place, cause in enumerate(causes)
    )


def _together(within: Cause, between: Cause) -> Cause:
    """Return a cause that is within steps and between them."""
    sure = [one.confidence for one in (within, between) if one.confidence is not None]
    return replace(
        within,
        cost_s=(within.cost_s or 0.0) + between.between_s,
        confidence=min(sure, default=None),
        evidence=(*between.evidence, *within.evidence),
        figure=between.figure,
        between_s=between.between_s,
    )


def _shared(cause: Cause, total_s: float) -> Cause:
    if cause.cost_s is None:
        return cause
    return replace(cause, contribution=cause.cost_s / total_s)


# ---- Findings that are worth naming, as causes with what each costs and brings -----------------


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides how sure causes are, and whether the unexplained rest is named."""

    # What no cause explains is named when it is this share of the lost time.
    unknown_share: float = 0.5
    unknown_cost: float = 0.05  # …and costs this share of a step
    # The highest confidence in a cause that has to recur, of a single step.
    of_one_step: float = 0.8


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class DetectedCause:
    """A kind of cause whose sign is there."""

    kind: CauseKind
    finding: Finding


def named_causes(
    replays: Counterfactuals, found: Sequence[DetectedCause], numbers: Sequence[int], loss: Loss
) -> tuple[Cause, ...]:
    """Return findings as causes, the most expensive one first, each with its share of the loss.

    Parameters
    ----------
    numbers : sequence of int
        Which of `found` are named.
    """
    now_s = replays.without(frozenset())
    mean_s = float(mean(now_s))
    shares_s = dict(zip(numbers, replays.shares(numbers), strict=True))
    causes = []
    for number in sorted(numbers, key=lambda number: -np.mean(shares_s[number])):
        cost, finding = shares_s[number], found[number].finding
        cost_s = float(mean(cost))
        sure, doubt = confidence(cost, now_s, loss.lost_s), finding.doubt
        if len(now_s) == 1 and found[number].kind.recurs:
            sure = min(sure, THRESHOLDS.of_one_step)
        cause = Cause(
            cause=found[number].kind.name,
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
            # the same time has been given to the cause before
            causes.append(
                Cause(
                    cause=ALTERNATIVES[cause.cause],
                    contribution=None,
                    cost_s=None,
                    confidence=cause.confidence,
                    evidence=doubt.alternative.evidence,
                    where=doubt.alternative.where,
                )
            )
    rest_s = loss.unknown_s
    if (
        rest_s >= THRESHOLDS.unknown_share * loss.lost_s
        and rest_s >= THRESHOLDS.unknown_cost * mean_s
    ):
        unknown = _unknown(rest_s, loss.lost_s, len(causes))
        place = sum(cause.cost_s is None or cause.cost_s >= rest_s for cause in causes)
        causes.insert(place, unknown)
    return tuple(_with_runners_up(causes, found))


def _unknown(rest_s: float, lost_s: float, others: int) -> Cause:
    explained = (
        "what the causes named here explain" if others else "any cause that this session can show"
    )
    return Cause(
        cause=UNKNOWN,
        contribution=rest_s / lost_s,
        cost_s=rest_s,
        confidence=None,
        evidence=(
            Evidence(f"{percent(rest_s / lost_s, 0)} of the lost time is beyond {explained}"),
        ),
    )


def _with_runners_up(causes: list[Cause], found: Sequence[DetectedCause]) -> list[Cause]:
    """Give each cause the next best explanation: the next cause, or else the next finding."""
    names = [cause.cause for cause in causes]
    spare = next((sign.kind.name for sign in found if sign.kind.name not in names), None)
    return [
        replace(cause, runner_up=following)
        for cause, following in zip(causes, [*names, spare][1:], strict=True)
    ]

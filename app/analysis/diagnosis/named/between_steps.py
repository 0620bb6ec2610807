"""Causes between steps, next to those within them: both in seconds of a mean step and its gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.signs import Signs


def standing_still(signs: Signs) -> tuple[Cause, ...]:
    """Return what the job loses between steps, by causes of which each costs enough."""
    return tuple(_found(signs))


def _found(signs: Signs) -> Iterator[Cause]:
    passing = signs.passing
    for kind in KINDS.values():
        standstill = None if kind.between is None else kind.between(signs)
        if standstill is None or passing is None:
            continue
        cost_s = passing.cost_s(standstill.lost_ns)
        yield Cause(
            cause=kind.name,
            contribution=1.0,
            cost_s=cost_s,
            confidence=standstill.most,
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

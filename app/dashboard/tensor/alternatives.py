"""The ranking of the ways to shed the work of a slow rank."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.mitigation.tensor.document import (
    Alternative,
    LossRisk,
    Method,
    MitigationDocument,
)
from app.dashboard.tensor.words import CRITERIA, METHOD_NAMES, RISKS
from app.dashboard.ui.format import byte_size, count, percent, seconds
from app.services.tensor.read import PlanRow


@dataclass(frozen=True, slots=True)
class AlternativeRow:
    """A method in the ranking; `share` is per cent of the widest bar."""

    name: str
    share: float
    time: str
    change: str
    gamma: str
    migrated: str
    extra: str
    risk: str
    own: bool
    beyond: bool


def alternative_row(
    item: Alternative, document: MitigationDocument, standing: PlanRow | None
) -> AlternativeRow:
    """Return the row of a method; the own one is that of the plan which stands, else the best."""
    change = item.predicted_time_s / document.slowest_time_s - 1
    if standing is None:
        own = item is document.best
    else:
        same = (item.method, item.criterion) == (standing.method, standing.criterion)
        own = item.within_budget and same
    name = METHOD_NAMES[item.method] + CRITERIA[item.criterion]
    if item.method is Method.ZERO and item.within_budget:
        name += ", within the budget"
    return AlternativeRow(
        name=name,
        share=100 * item.predicted_time_s / document.slowest_time_s,
        time=seconds(item.predicted_time_s),
        change="" if item.method is Method.NONE else percent(change),
        gamma=f"{item.gamma:.3f}" if item.gamma else "0",
        migrated=count(item.migrated_columns),
        extra=_extra(item),
        risk=RISKS[item.loss_risk],
        own=own,
        beyond=not item.within_budget,
    )


def _extra(item: Alternative) -> str:
    if item.extra_bytes is None:
        return ""
    if item.extra_bytes == 0:
        return "0"
    return f"{byte_size(item.extra_bytes)} {'once' if item.method is Method.STICKY else 'a step'}"


def alternatives_title(document: MitigationDocument) -> str:
    """Return what the ranking says."""
    if not document.stragglers:
        return "There is nothing to gain: no rank straggles"
    within = [item for item in document.alternatives if item.within_budget]
    best = within[0]
    title = f"{best.method.short} is fastest within the budget"
    title = title[0].upper() + title[1:]
    lossless = next(
        (i for i in within if i.loss_risk is LossRisk.NONE and i.method is not Method.NONE), None
    )
    if lossless is None or lossless is best:
        return f"{title}, without loss" if lossless is best else title
    slower = lossless.predicted_time_s / best.predicted_time_s - 1
    return f"{title}; {lossless.method.short} is lossless and {percent(slower)} slower"

"""Context-parallel straggler: a slow rank, or an uneven division of the sequences among ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot
from typing import Final

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy
from app.analysis.diagnosis.causes.late_rank import (
    CONTEXT,
    because_of,
    replacing,
    sign_of,
    where_of,
)
from app.analysis.diagnosis.finding import Cause, Change, Doubt, Evidence, Finding
from app.analysis.diagnosis.group_waits import (
    LISTED,
    Waiting,
    computations_without,
    figure_of,
    has_tensor_ranks,
    measure_waits,
    ring_waits,
    view_of,
    waiting_groups,
    without_waits,
)
from app.analysis.diagnosis.locations import Hosts, Where
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.sequence_division import (
    FEWEST,
    TELLING,
    as_divided_evenly,
    cells,
    division,
    if_divided,
    is_division,
)
from app.analysis.diagnosis.session_view import Signs
from app.analysis.trace.model import CONTEXT_TYPES, RING


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Threshold of the confidence in a late rank."""

    # Highest confidence for a group of two ranks, which does not show whether the late rank is slow
    # or has more to compute.
    in_doubt: float = 0.85


THRESHOLDS: Final = Thresholds()


def _is_recorded(observation: Observation) -> bool:
    trace = observation.trace
    return trace.meta.sizes.cp > 1 and has_tensor_ranks(trace, (*CONTEXT_TYPES, RING))


def _waiting(observation: Observation) -> list[Waiting]:
    """Return the groups that wait mostly for one rank, the longest wait first."""
    if not _is_recorded(observation):
        return []
    # If sequences are divided unevenly, all groups wait equally long, so that the groups' median is
    # no reference.
    waits = ring_waits(observation) or measure_waits(observation, CONTEXT_TYPES)
    groups = waiting_groups(observation, waits, to_median=0.0)
    return [group for group in groups if group.of_one_rank]


def _find(signs: Signs) -> Finding | None:
    """Return the groups that wait mostly for one rank; without the cause no rank waits."""
    observation = signs.observation
    groups = _waiting(observation)
    if not groups:
        return None
    evidence = [
        Evidence(sign_of(observation, group, CONTEXT), view_of(group, drawn=number == 0))
        for number, group in enumerate(groups[:LISTED])
    ]
    divided = is_division(observation, groups)
    if divided:
        evidence.append(Evidence(division(observation, groups)))
        groups = as_divided_evenly(observation, groups)
        where = Where(stages=tuple(sorted({group.cell[1] for group in groups})))
    else:
        where = where_of(groups)
    uncertainty = without_waits(observation, groups)
    ambiguous = not divided and cells(observation) < FEWEST and len(groups[0].by_rank) < TELLING
    return Finding(
        change=Change(less_ns=computations_without(observation, groups)),
        evidence=tuple(evidence),
        where=where,
        figure=figure_of(groups[0]),
        uncertainty=replace(
            uncertainty,
            # No worker waits for another worker if all workers are slowed down equally.
            hiding=0.0 if divided else uncertainty.hiding,
            longer=hypot(uncertainty.longer, if_divided(groups[0]))
            if ambiguous
            else uncertainty.longer,
        ),
        doubt=Doubt(THRESHOLDS.in_doubt) if ambiguous else None,
    )


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    if not cause.where.ranks:
        return Remedy(
            "divide_sequences",
            "Divide sequences evenly among the context-parallel ranks",
            "Replayed with all ranks of a group taking as long as they do on average: with causal "
            "attention a rank takes two pieces, one from either end of the sequence.",
        )
    return replacing(cause, hosts, CONTEXT)


def _cannot_judge(signs: Signs) -> str | None:
    observation = signs.observation
    if observation.trace.meta.sizes.cp == 1 or _is_recorded(observation):
        return None
    return "no context-parallel operations recorded"


CONTEXT_PARALLEL: Final = CauseKind(
    name="context_parallel_straggler",
    title="Context-parallel straggler",
    word="context",
    sign="One rank arrives last at nearly all collectives of its context-parallel group.",
    blames_machine=True,
    cannot_judge=_cannot_judge,
    because=lambda cause, job: (
        because_of(cause, job, CONTEXT)
        if cause.where.ranks
        else "context-parallel groups divide their sequences unevenly"
    ),
    find=_find,
    of_rank_groups=True,
    # If all groups wait, the ideal durations contain the wait too.
    slows_ideal=lambda signs: bool(_waiting(signs.observation)),
    remedy=_remedy,
    phase=Phase.WITHIN_WORKERS,
)

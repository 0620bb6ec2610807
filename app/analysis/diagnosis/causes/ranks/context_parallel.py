"""Context-parallel ranks that keep their group waiting: slow ones, or those with more to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import hypot, log
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy
from app.analysis.diagnosis.causes.ranks.late_rank import (
    CONTEXT,
    because_of,
    replacing,
    sign_of,
    where_of,
)
from app.analysis.diagnosis.finding import Cause, Change, Doubt, Evidence, Finding
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.places import Hosts, JobFacts, Where
from app.analysis.diagnosis.signs import Signs
from app.analysis.diagnosis.tensor_waits import (
    CONTEXT_TYPES,
    LISTED,
    Waiting,
    computations_without,
    figure_of,
    has_tensor_ranks,
    longer_by_waits,
    measure_waits,
    unsure_of_waits,
    view_of,
    waiting_groups,
)
from app.analysis.replay.layout.dense import FloatArray

# The same rank of so many groups is late: not that it is slow, but that it has more to do.
_ALIKE: Final = 0.8
_FEWEST: Final = 2
# So it is in a single group whose other ranks wait differently long, by this share of the longest
# wait: each has more to do than the one before. Two ranks do not tell: neither is surer than this.
_GRADED: Final = 0.3
_TELLING: Final = 3
_IN_DOUBT: Final = 0.85
# A group that is said to wait for more of its computing time than this was not recorded rightly.
_MOST: Final = 0.95


def _is_recorded(observation: Observation) -> bool:
    trace = observation.trace
    return trace.meta.sizes.cp > 1 and has_tensor_ranks(trace, CONTEXT_TYPES)


def has_late_contexts(observation: Observation) -> bool:
    """Return whether groups wait for one rank: where all of them do the ideal waits, too."""
    return bool(_waiting(observation))


def _waiting(observation: Observation) -> list[Waiting]:
    """Return the groups that wait for one rank, the longest wait first."""
    if not _is_recorded(observation):
        return []
    # Where sequences are divided unevenly all groups wait alike: the middle one is no measure.
    waits = measure_waits(observation, CONTEXT_TYPES)
    groups = waiting_groups(observation, waits, to_middle=0.0)
    return [group for group in groups if group.of_one_rank]


def _find(signs: Signs) -> Finding | None:
    """Return the groups that wait for one rank; without it nobody waits."""
    observation = signs.observation
    groups = _waiting(observation)
    if not groups:
        return None
    evidence = [
        Evidence(sign_of(observation, group, CONTEXT), view_of(group, drawn=number == 0))
        for number, group in enumerate(groups[:LISTED])
    ]
    divided = _is_division(observation, groups)
    if divided:
        evidence.append(Evidence(_division(observation, groups)))
        # What one rank does less the others do more.
        groups = [
            replace(group, waits=replace(group.waits, wait_ns=_beyond_mean(group)))
            for group in groups
        ]
        where = Where(stages=tuple(sorted({group.cell[1] for group in groups})))
    else:
        where = where_of(groups)
    untold = not divided and _cells(observation) < _FEWEST and len(groups[0].by_rank) < _TELLING
    return Finding(
        change=Change(less_ns=computations_without(observation, groups)),
        evidence=tuple(evidence),
        where=where,
        figure=figure_of(groups[0]),
        unsure=unsure_of_waits(observation, groups),
        longer=hypot(
            longer_by_waits(observation, groups), _if_divided(groups[0]) if untold else 0.0
        ),
        doubt=Doubt(most=_IN_DOUBT, cause=None, evidence=(), where=Where()) if untold else None,
    )


def _cells(observation: Observation) -> int:
    return observation.layout.pp * observation.layout.dp


def _if_divided(group: Waiting) -> float:
    """Return how much longer a step without waiting is if one of two ranks has more to do.

    As the difference of the logarithms: divided evenly, both of them do half of that.
    """
    share = min(group.share, _MOST)
    return log((1 - share / 2) / (1 - share))


def _beyond_mean(group: Waiting) -> FloatArray:
    """Return by how much the last rank comes later than all do on average."""
    duration_ns = group.waits.duration_ns
    beyond: FloatArray = duration_ns.mean(axis=1) - duration_ns.min(axis=1)
    return beyond


def _is_division(observation: Observation, groups: Sequence[Waiting]) -> bool:
    """Return whether ranks have more to do than others: nearly everywhere the same one is late."""
    if _cells(observation) >= _FEWEST:
        places = [group.slowest for group in groups]
        most = max(places.count(place) for place in places)
        return most >= max(_FEWEST, _ALIKE * _cells(observation))
    waiting_ns = np.sort(_waiting_ns(groups[0]))[1:]
    if len(groups[0].by_rank) < _TELLING:
        return False
    return bool(np.ptp(waiting_ns) >= _GRADED * waiting_ns.max())


def _waiting_ns(group: Waiting) -> FloatArray:
    """Return how long each rank waits for the last one on average, shape (ranks,)."""
    duration_ns = group.waits.duration_ns
    waiting: FloatArray = (duration_ns - duration_ns.min(axis=1, keepdims=True)).mean(axis=0)
    return waiting


def _division(observation: Observation, groups: Sequence[Waiting]) -> str:
    """Say why it is not that a rank is slow."""
    more = "more to do than the others, as a causal sequence's end has"
    if _cells(observation) < _FEWEST:
        return f"Its ranks wait longer the less they have to do; the last one has {more}"
    return (
        f"{len(groups)} of {_cells(observation)} groups wait for the same one of their ranks: it "
        f"has {more}"
    )


def _because(cause: Cause, job: JobFacts) -> str:
    if not cause.where.ranks:
        return "context-parallel groups divide their sequences unevenly"
    return because_of(cause, job, CONTEXT)


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
    because=_because,
    find=_find,
    remedy=_remedy,
    within_worker=True,
)

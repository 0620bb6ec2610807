"""Tensor-parallel ranks that always delay their group."""

from __future__ import annotations

from typing import Final

from app.analysis.diagnosis.causes.kind import CauseKind, Plan, Remedy, Turn, needs_tensor_ranks
from app.analysis.diagnosis.causes.late_rank import TENSOR, because_of, replacing, sign_of, where_of
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding
from app.analysis.diagnosis.group_waits import (
    LISTED,
    computations_without,
    figure_of,
    view_of,
    without_waits,
)
from app.analysis.diagnosis.locations import Hosts, JobFacts
from app.analysis.diagnosis.session_view import Signs


def _find(signs: Signs) -> Finding | None:
    """Return the groups that wait for one rank; without it no rank waits."""
    groups = [group for group in signs.waiting if group.of_one_rank]
    if not groups:
        return None
    return Finding(
        change=Change(less_ns=computations_without(signs.observation, groups)),
        evidence=tuple(
            Evidence(sign_of(signs.observation, group, TENSOR), view_of(group, drawn=number == 0))
            for number, group in enumerate(groups[:LISTED])
        ),
        where=where_of(groups),
        figure=figure_of(groups[0]),
        uncertainty=without_waits(signs.observation, groups),
    )


def _hides(signs: Signs) -> bool:
    """Return whether groups wait: a single one has no other to be compared with."""
    return bool(signs.waiting)


def _because(cause: Cause, job: JobFacts) -> str:
    return because_of(cause, job, TENSOR)


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    return replacing(cause, hosts, TENSOR)


TENSOR_STRAGGLER: Final = CauseKind(
    name="tensor_parallel_straggler",
    title="Tensor-parallel straggler",
    word="tensor",
    sign="One rank arrives last at nearly all collectives of its tensor-parallel group.",
    blames_machine=True,
    cannot_judge=needs_tensor_ranks,
    because=_because,
    find=_find,
    hides=_hides,
    remedy=_remedy,
    plan=Plan.SHED_WORK,
    turn=Turn.WITHIN_WORKERS,
)

"""Tensor-parallel straggler: one rank delays nearly all collectives of its group."""

from __future__ import annotations

from typing import Final

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Plan, needs_tensor_ranks
from app.analysis.diagnosis.causes.late_rank import TENSOR, because_of, replacing, sign_of, where_of
from app.analysis.diagnosis.finding import Change, Evidence, Finding
from app.analysis.diagnosis.group_waits import (
    LISTED,
    computations_without,
    figure_of,
    passed_on,
    view_of,
    without_waits,
)
from app.analysis.diagnosis.observation import summed
from app.analysis.diagnosis.session_view import Signs


def _find(signs: Signs) -> Finding | None:
    """Return the groups that wait mostly for one rank; without the cause no rank waits."""
    groups = [group for group in signs.waiting if group.of_one_rank]
    if not groups:
        return None
    observation = signs.observation
    less_ns = summed(
        (
            computations_without(observation, groups),
            passed_on(observation, groups, signs.group_waits),
        )
    )
    return Finding(
        change=Change(less_ns=less_ns),
        evidence=tuple(
            Evidence(sign_of(observation, group, TENSOR), view_of(group, drawn=number == 0))
            for number, group in enumerate(groups[:LISTED])
        ),
        where=where_of(groups),
        figure=figure_of(groups[0]),
        uncertainty=without_waits(observation, groups),
    )


TENSOR_STRAGGLER: Final = CauseKind(
    name="tensor_parallel_straggler",
    title="Tensor-parallel straggler",
    word="tensor",
    sign="One rank arrives last at nearly all collectives of its tensor-parallel group.",
    blames_machine=True,
    cannot_judge=needs_tensor_ranks,
    because=lambda cause, job: because_of(cause, job, TENSOR),
    find=_find,
    of_rank_groups=True,
    # A single group has no other group as a reference.
    slows_ideal=lambda signs: bool(signs.waiting),
    remedy=lambda cause, hosts: replacing(cause, hosts, TENSOR),
    plan=Plan.SHED_WORK,
    phase=Phase.WITHIN_WORKERS,
)

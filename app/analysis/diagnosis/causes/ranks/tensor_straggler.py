"""Tensor-parallel ranks that always keep their group waiting."""

from __future__ import annotations

from typing import Final

from app.analysis.diagnosis.causes.kind import (
    CauseKind,
    Remedy,
    needs_tensor_ranks,
)
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding
from app.analysis.diagnosis.places import Hosts, JobFacts, Where
from app.analysis.diagnosis.signs import Signs
from app.analysis.diagnosis.tensor_waits import (
    LISTED,
    Waiting,
    computations_without,
    figure_of,
    view_of,
)
from app.analysis.wording import named, percent


def _find(signs: Signs) -> Finding | None:
    """Return the groups that wait for one rank; without it nobody waits."""
    groups = [group for group in signs.waiting if group.of_one_rank]
    if not groups:
        return None
    return Finding(
        change=Change(less_ns=computations_without(signs.observation, groups)),
        evidence=tuple(
            Evidence(_sign(signs, group), view_of(group, drawn=number == 0))
            for number, group in enumerate(groups[:LISTED])
        ),
        where=Where(
            workers=tuple(group.cell for group in groups),
            ranks=tuple(int(group.waits.ranks[group.slowest]) for group in groups),
        ),
        figure=figure_of(groups[0]),
    )


def _sign(signs: Signs, group: Waiting) -> str:
    who = signs.observation.hosts.named(group.cell)
    return (
        f"Tensor-parallel rank {group.slowest} (global rank "
        f"{int(group.waits.ranks[group.slowest])}) of {who} is last for "
        f"{percent(group.concentration, 0)} of the waiting; its group waits "
        f"{percent(group.share, 0)} of its computing time"
    )


def _because(cause: Cause, job: JobFacts) -> str:
    rank, (dp, pp) = cause.where.ranks[0], cause.where.workers[0]
    who = f"rank {rank}{job.on(rank)}"
    return f"{who} keeps its tensor-parallel group at ({dp}, {pp}) waiting"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    ranks = cause.where.ranks
    where = hosts.on(ranks[0]) if len(ranks) == 1 else ""
    return Remedy(
        "replace_rank",
        f"Replace {named('rank', [str(rank) for rank in ranks])}{where}",
        "Replayed with no rank waiting for another of its tensor-parallel group.",
    )


TENSOR_STRAGGLER: Final = CauseKind(
    name="tensor_parallel_straggler",
    title="Tensor-parallel straggler",
    word="tensor",
    sign="One rank arrives last at nearly all collectives of its tensor-parallel group.",
    cannot_judge=needs_tensor_ranks,
    because=_because,
    find=_find,
    remedy=_remedy,
    within_worker=True,
)

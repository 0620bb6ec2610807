"""Memory fragmentation: tensor-parallel ranks with full allocators delay their group in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy, needs_tensor_ranks
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding
from app.analysis.diagnosis.group_waits import (
    LISTED,
    Waiting,
    computations_without,
    figure_of,
    view_of,
    without_waits,
)
from app.analysis.diagnosis.locations import Hosts, Where
from app.analysis.diagnosis.session_view import Signs
from app.analysis.wording import percent


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Threshold of a wait that the evidence counts; the finding does not depend on it."""

    waiting: float = 0.25  # A collective counts from this share of the longest wait on.


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return the groups that wait for one rank after another; without the cause no rank waits."""
    groups = [group for group in signs.waiting if not group.of_one_rank]
    if not groups:
        return None
    return Finding(
        change=Change(less_ns=computations_without(signs.observation, groups)),
        evidence=tuple(
            Evidence(_sign(signs, group), view_of(group, drawn=number == 0))
            for number, group in enumerate(groups[:LISTED])
        ),
        where=Where(workers=tuple(group.cell for group in groups)),
        figure=figure_of(groups[0]),
        uncertainty=without_waits(signs.observation, groups),
    )


def _sign(signs: Signs, group: Waiting) -> str:
    who, waits = signs.observation.hosts.name_workers(group.cell), group.waits
    waiting = waits.wait_ns > THRESHOLDS.waiting * waits.wait_ns.max()
    steps = len(np.unique(waits.step[waiting]))
    return (
        f"The ranks of {who} start their collectives apart and end them together: the group waits "
        f"{percent(group.share, 0)} of its computing time, for one rank or another (at most "
        f"{percent(group.concentration, 0)} for the same), in {steps} of "
        f"{len(signs.observation.layout.steps)} steps"
    )


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    workers = hosts.name_workers(*cause.where.workers)
    return Remedy(
        "defragment_memory",
        f"Stop the memory fragmentation of {workers}",
        "Replayed with no rank waiting for another of its tensor-parallel group. Expandable "
        "segments of the CUDA allocator keep memory in one piece.",
    )


MEMORY_FRAGMENTATION: Final = CauseKind(
    name="memory_fragmentation",
    title="Memory fragmentation",
    word="memory",
    sign="The ranks of a tensor-parallel group start their collectives apart and end them "
    "together, another one late each time.",
    blames_machine=False,
    cannot_judge=needs_tensor_ranks,
    because=lambda cause, job: (
        f"ranks of {job.name_workers(cause.where.workers[0])} launch late by turns, as with "
        "fragmented memory"
    ),
    find=_find,
    of_rank_groups=True,
    remedy=_remedy,
    phase=Phase.WITHIN_WORKERS,
    recurs=True,
)

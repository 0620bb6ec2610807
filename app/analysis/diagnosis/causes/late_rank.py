"""Texts and remedies of the causes in which a rank delays its group within a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.analysis.diagnosis.causes.kind import Remedy
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.group_waits import Waiting
from app.analysis.diagnosis.locations import Hosts, JobFacts, Where
from app.analysis.diagnosis.observation import Observation
from app.analysis.wording import name_list, percent

TENSOR: Final = "tensor-parallel"
CONTEXT: Final = "context-parallel"


def where_of(groups: Sequence[Waiting]) -> Where:
    """Return the worker and the global rank of each group's slowest rank."""
    return Where(
        workers=tuple(group.cell for group in groups),
        ranks=tuple(int(group.waits.ranks[group.slowest]) for group in groups),
    )


def sign_of(observation: Observation, group: Waiting, kind: str) -> str:
    """Return the sentence that names the slowest rank of a group and the time its group waits."""
    rank, (dp, pp) = int(group.waits.ranks[group.slowest]), group.cell
    where = observation.hosts.on(rank)
    return (
        f"{kind.capitalize()} rank {group.slowest} (global rank {rank}{where}) "
        f"of worker ({dp}, {pp}) is last for "
        f"{percent(group.concentration, 0)} of the waiting; its group waits "
        f"{percent(group.share, 0)} of its computing time"
    )


def because_of(cause: Cause, job: JobFacts, kind: str) -> str:
    """Return the verdict's clause about the slowest rank of the first group."""
    rank, (dp, pp) = cause.where.ranks[0], cause.where.workers[0]
    return f"rank {rank}{job.on(rank)} keeps its {kind} group at ({dp}, {pp}) waiting"


def replacing(cause: Cause, hosts: Hosts, kind: str) -> Remedy:
    """Return the remedy that replaces the slowest ranks."""
    ranks = cause.where.ranks
    where = hosts.on(ranks[0]) if len(ranks) == 1 else ""
    return Remedy(
        "replace_rank",
        f"Replace {name_list('rank', [str(rank) for rank in ranks])}{where}",
        f"Replayed with no rank waiting for another of its {kind} group.",
    )

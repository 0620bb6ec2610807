"""What a list of hosts holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from app.lists.columns import Column
from app.lists.listing import Listing
from app.lists.pages import Page
from app.services.hosts.repairs import Repair

# Hosts to a page, and to a file.
PAGE: Final = 50
MOST: Final = 10_000
# Slow in fewer sessions a host is not blamed: its neighbor may have been at fault, or chance.
BLAMED_FROM: Final = 2


class Show(StrEnum):
    """Which hosts a list holds."""

    BLAMED = "blamed"
    REPAIRED = "repaired"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSums:
    """A host over a time.

    `slow_sessions` are those in which a cause named a worker there; `blamed` is a host from the
    second one on.
    """

    host: Annotated[str, Column(sort="host")]
    cost_gpu_hours: Annotated[
        float,
        Column(sort="-cost"),
        Field(
            description="What these causes cost while each verdict stood: until the job's next "
            "session, at most 6 h."
        ),
    ]
    blamed: bool
    slow_sessions: Annotated[int, Column(sort="-sessions")]
    sessions: int
    slow_jobs: Annotated[int, Column(sort="-jobs")]
    jobs: int
    slowdown_worst: Annotated[float, Column(sort="-worst")]
    computing_worst: Annotated[
        float | None, Field(description="The largest time of its computing against peers.")
    ]
    causes: tuple[str, ...]
    guessed: Annotated[
        bool, Field(description="Whether the name may be that of a container, which changes.")
    ]
    first_seen: Annotated[datetime, Column(csv=None)]
    last_seen: Annotated[datetime, Column(sort="-seen")]
    # The most that a job had there.
    ranks: Annotated[int, Field(exclude=True)]
    # Whether the latest session's causes name it.
    is_slow: Annotated[bool, Field(exclude=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow(HostSums):
    """A host over a time, with what is read of those on a page alone.

    `slow_sessions` are those in which a cause named a worker there; `blamed` is a host from the
    second one on.
    """

    slowdown_now: Annotated[
        float, Field(description="That of its slowest worker alone, in its latest session.")
    ]
    gpus: Annotated[
        Sequence[str], Column(csv="gpus_named"), Field(description="GPUs that causes name.")
    ]
    incidents: Annotated[int, Column(csv=None), Field(description="Sent incidents that name it.")]
    firing: Annotated[bool, Column(csv=None)]
    # Slowdown in the latest sessions, oldest first.
    trend: Annotated[Sequence[float], Field(exclude=True)]
    # The last one; none in a brief list.
    repair: Annotated[Repair | None, Field(exclude=True)]


HOSTS: Final = Listing(HostSums, default_sort="-cost")


@dataclass(frozen=True, slots=True)
class Totals:
    """All hosts of a time."""

    hosts: int
    ranks: int
    # blamed, repaired: hosts
    blamed: int
    repaired: int
    cost: float  # of those that are blamed, GPU-hours
    # first, first_cost: the most expensive of these, as people read its name
    first: str | None
    first_cost: float


@dataclass(frozen=True, slots=True)
class Hosts:
    """A page of hosts."""

    now: datetime
    totals: Totals
    page: Page[HostRow]
    look_alikes: Sequence[HostSums]

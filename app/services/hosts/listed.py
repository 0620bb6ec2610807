"""What a list of hosts holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

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


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host over a time.

    Parameters
    ----------
    host : str
    cost : float
        GPU-hours; see `app.services.hosts.costs.priced`.
    ranks : int
        The most that a job had there.
    sessions, slow_sessions, jobs, slow_jobs : int
        Seen, and slow: named by a cause.
    worst : float
        The largest slowdown.
    is_slow : bool
        Whether the latest session's causes name it.
    computing : float or None
        The largest time against peers.
    causes : tuple of str
    first_seen, last_seen : datetime
    named : bool
        Whether it is what was looked for.
    """

    host: str
    cost: float
    ranks: int
    sessions: int
    slow_sessions: int
    jobs: int
    slow_jobs: int
    worst: float
    is_slow: bool
    computing: float | None
    causes: tuple[str, ...]
    first_seen: datetime
    last_seen: datetime
    named: bool = True

    @property
    def blamed(self) -> bool:
        """Return whether it was slow more than once."""
        return self.slow_sessions >= BLAMED_FROM


@dataclass(frozen=True, slots=True)
class Alarms:
    """Incidents that name a host: those that were told of, and whether one fires."""

    incidents: int
    firing: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """All hosts of a time.

    Parameters
    ----------
    hosts, ranks : int
    blamed, repaired, matching : int
        Hosts; `matching` are those that the list is about.
    cost : float
        Of those that are blamed, GPU-hours.
    first, first_cost : str or None, float
        The most expensive of these.
    """

    hosts: int
    ranks: int
    blamed: int
    repaired: int
    matching: int
    cost: float
    first: str | None
    first_cost: float


@dataclass(frozen=True, slots=True)
class Hosts:
    """A page of hosts, with what is known of each.

    Parameters
    ----------
    now : datetime
    totals : Totals
    rows : sequence of HostRow
    page : int
    trends : mapping of str to sequence of float
        Slowdown in the latest sessions, oldest first: at least the last one.
    gpus : mapping of str to sequence of str
        Those that causes name.
    alarms : mapping of str to Alarms
    repairs : mapping of str to Repair
        The last one; none in a brief list.
    look_alikes : sequence of HostRow
    """

    now: datetime
    totals: Totals
    rows: Sequence[HostRow]
    page: int
    trends: Mapping[str, Sequence[float]]
    gpus: Mapping[str, Sequence[str]]
    alarms: Mapping[str, Alarms]
    repairs: Mapping[str, Repair]
    look_alikes: Sequence[HostRow]

    @property
    def pages(self) -> int:
        """Return how many pages there are."""
        return max(1, -(-self.totals.matching // PAGE))

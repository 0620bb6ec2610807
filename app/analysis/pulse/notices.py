"""Notices of slow, drifting, hung or silent ranks: kinds, evidence, and the ledger of notices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final


class NoticeKind(StrEnum):
    """Kinds of notices."""

    SLOW_RANK = "slow_rank"
    """Ranks compute slower than their peers, and slower than they did before."""
    SLOW_JOB = "slow_job"
    """Steps take longer, and no rank is to blame."""
    SPELLS = "spells"
    """Ranks are slow in spells: they become slow and recover repeatedly. The notice has no ranks if
    a different rank is slow each time.
    """
    DRIFT = "drift"
    """Computing of ranks, or the steps of the job, take steadily longer."""
    IMBALANCE = "imbalance"
    """Ranks compute longer than their peers because they always have more tokens."""
    HANG = "hang"
    """No step ends, although all processes send heartbeats."""
    SILENT = "silent"
    """No step ends, and the processes of some ranks send nothing any more."""


class Part(StrEnum):
    """Parts of a step that a slowdown may lengthen."""

    WAITING = "waiting"
    DATA = "data"
    OPTIMIZER = "optimizer"
    GC = "gc"
    COMPUTING = "computing"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of a notice; fields that do not apply to its kind are None.

    Parameters
    ----------
    sentence : str
        The evidence in one sentence.
    grew : Part or None
        The part of the step that grew most.
    share, period_steps : float or None
        Spells only: share of slow steps in the last 100, and steps from one spell to the next.
    rotating : bool
        Whether a different rank is slow each time.
    slope_per_day : float or None
        Drifts only: growth a day as a share of the time at its start.
    phase : str or None
        Hangs only: current operation of the ranks that are waited for.
    since_ns : int or None
        Start of a hang or silence, nanoseconds since the epoch.
    waiting : int or None
        Number of ranks that wait.
    seconds : float or None
        Duration of a hang that is over.
    hardware : str or None
        How the readings of the GPUs of the ranks differ from those of their peers.
    """

    sentence: str
    grew: Part | None = None
    share: float | None = None
    period_steps: float | None = None
    rotating: bool = False
    slope_per_day: float | None = None
    phase: str | None = None
    since_ns: int | None = None
    waiting: int | None = None
    seconds: float | None = None
    hardware: str | None = None

    @property
    def full_sentence(self) -> str:
        """Return the evidence sentence, with the differences of the GPU readings appended."""
        return self.sentence if self.hardware is None else f"{self.sentence}; {self.hardware}"


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice of a detector; a later version with the same number replaces it.

    Parameters
    ----------
    number : int
        Number of the notice within its detector, from 0.
    ranks : tuple of int
        Blamed global ranks, rising; may be empty.
    hosts : tuple of str
        Known hosts of the ranks.
    factor : float or None
        How many times as long the slow steps take; None for a hang or silence.
    from_step, noticed_step, cleared_step : int
        First slow step, step after which it was noticed, and first normal step again;
        `cleared_step` is None while it lasts.
    noticed_time_ns : int
        End of `noticed_step`, or time of the beat, nanoseconds since the epoch.
    """

    number: int
    kind: NoticeKind
    attempt: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    factor: float | None
    from_step: int
    noticed_step: int
    noticed_time_ns: int
    cleared_step: int | None
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Stall:
    """Stalls (single long steps) with the same cause; they are counted, but cause no notice.

    Parameters
    ----------
    cause : Part
        The part of these steps that grew most.
    lined_up : bool
        Whether it grew on most ranks in the same steps.
    ranks : tuple of int
        The ranks on which it grew, at most eight; empty if it lined up.
    lost_ns : int
        Total time by which these steps were longer than usual.
    period_steps : float or None
        Steps from one to the next, if regular.
    """

    cause: Part
    lined_up: bool
    ranks: tuple[int, ...]
    steps: int
    share: float
    lost_ns: int
    worst_factor: float
    first_step: int
    last_step: int
    period_steps: float | None


# Number of cleared notices that the ledger keeps, since a new episode may reopen them.
_REMEMBERED: Final = 16


@dataclass(slots=True)
class Ledger:
    """Notices that may still change, and the changes since the last `take`.

    Parameters
    ----------
    next_number : int
        Number of the next notice. A job has two ledgers, one with even and one with odd numbers.
    open, closed : dict of int to Notice
        Open notices, and the last cleared ones, by number.
    changed : dict of int to Notice or None
        New and changed notices by number; None for a notice that was merged into another.
    """

    next_number: int = 0
    open: dict[int, Notice] = field(default_factory=dict)
    closed: dict[int, Notice] = field(default_factory=dict)
    changed: dict[int, Notice | None] = field(default_factory=dict)

    def add(self, notice: Notice) -> int:
        """Add a notice, and return the number it gets."""
        number = self.next_number
        self.next_number += 2
        self.update(replace(notice, number=number))
        return number

    def update(self, notice: Notice) -> None:
        """Replace a notice by a new version with the same number."""
        number = notice.number
        if notice.cleared_step is None:
            self.closed.pop(number, None)
            self.open[number] = notice
        else:
            self.open.pop(number, None)
            self.closed[number] = notice
            while len(self.closed) > _REMEMBERED:
                self.closed.pop(next(iter(self.closed)))
        self.changed[number] = notice

    def get(self, number: int) -> Notice | None:
        """Return an open or recently cleared notice; None if it can no longer change."""
        return self.open.get(number) or self.closed.get(number)

    def withdraw(self, number: int) -> None:
        """Remove a notice that was merged into another notice."""
        self.open.pop(number, None)
        self.closed.pop(number, None)
        self.changed[number] = None

    def take(self) -> dict[int, Notice | None]:
        """Return the notices changed since the last call, by number; None for withdrawn ones."""
        changed, self.changed = self.changed, {}
        return changed


def hosts_of(ranks: Iterable[int], hosts: Mapping[int, str]) -> tuple[str, ...]:
    """Return the known hosts of ranks, each host once."""
    return tuple(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts))


def describe_ranks(ranks: tuple[int, ...], hosts: tuple[str, ...]) -> str:
    """Return at most eight ranks and four hosts in words."""
    if not ranks:
        return "no rank"
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")  # noqa: PLR2004
    where = f" ({', '.join(hosts[:4])}{' …' if len(hosts) > 4 else ''})" if hosts else ""  # noqa: PLR2004
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{where}"


def cleared(notice: Notice, step: int, seconds: float | None = None) -> Notice:
    """Return a notice that is cleared at a step; `seconds` is the duration of a hang."""
    evidence = notice.evidence
    if seconds is not None:
        evidence = replace(evidence, seconds=seconds)
    return replace(notice, cleared_step=max(step, notice.from_step), evidence=evidence)

"""Notices of a job: their kinds, evidence and texts, and the ledger of open ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

# ---- What is noticed ---------------------------------------------------------------------------


class NoticeKind(StrEnum):
    """Kinds of notices."""

    SLOW_RANK = "slow_rank"
    """Ranks compute slower than their peers and than they did."""
    SLOW_JOB = "slow_job"
    """Steps take longer, and no rank is to blame."""
    SPELLS = "spells"
    """As `SLOW_RANK`, but it comes and goes; without ranks where another one is slow each time."""
    DRIFT = "drift"
    """Computing or steps take steadily longer."""
    HANG = "hang"
    """No step ends, and all processes are there."""
    SILENT = "silent"
    """Ranks whose process sends nothing any more, and no step ends."""


class Part(StrEnum):
    """Parts of a step that may grow."""

    WAITING = "waiting"
    DATA = "data"
    OPTIMIZER = "optimizer"
    GC = "gc"
    COMPUTING = "computing"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a notice rests on; what does not belong to its kind is None.

    Parameters
    ----------
    sentence : str
        All of it in one sentence.
    grew : Part or None
        The part of the step that grew most.
    share, period_steps : float or None
        Of spells: share of the last 100 steps, and steps from one spell to the next.
    rotating : bool
        Whether another rank is slow each time.
    slope_per_day : float or None
        Of a drift, as a share of the time at its start.
    phase : str or None
        Of a hang, where those that are waited for are.
    since_ns : int or None
        Of a hang or silence, since when; nanoseconds since the epoch.
    waiting : int or None
        How many ranks wait.
    seconds : float or None
        How long a hang that is over was.
    hardware : str or None
        What the GPUs of the ranks say of themselves that those of their peers do not.
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
    def told(self) -> str:
        """Return the sentence, and what the hardware says."""
        return self.sentence if self.hardware is None else f"{self.sentence}; {self.hardware}"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that was noticed; the same number is the same notice, whose later words count.

    Parameters
    ----------
    number : int
        Counts the notices of a detector from 0.
    ranks : tuple of int
        Global ranks to blame, rising; empty where none is.
    hosts : tuple of str
        Theirs, as far as they are known.
    factor : float or None
        How many times as long it takes; None for a hang or silence.
    from_step, noticed_step, cleared_step : int
        The first step that was slow, the one after which it was noticed, and the first one that is
        as before; `cleared_step` is None while it goes on.
    noticed_time_ns : int
        The end of `noticed_step`, or the time of the beat; nanoseconds since the epoch.
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
    """Single steps that took long for one reason; they are counted, and never a notice.

    Parameters
    ----------
    cause : Part
        The part of these steps that grew most.
    lined_up : bool
        Whether it grew on most ranks in the same steps.
    ranks : tuple of int
        The few ranks on which it grew, where it did not line up; at most eight.
    lost_ns : int
        By how much these steps were longer than usual, together.
    period_steps : float or None
        Steps from one to the next, where these are regular.
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


# ---- Notices that are kept: which are open, and what they say ----------------------------------


# Closed notices that are remembered, as a spell may come back.
_REMEMBERED: Final = 16


@dataclass(slots=True)
class Ledger:
    """All that was noticed and may still change, and what changed since it was last asked.

    Parameters
    ----------
    next_number : int
        Two ledgers of a job count in twos, one the even numbers and one the odd ones.
    open : dict of int to Notice
        By number: what goes on.
    closed : dict of int to Notice
        The last ones that are over.
    changed : dict of int to Notice or None
        New words since the last `take`; None of a notice that turned out to be part of another.
    """

    next_number: int = 0
    open: dict[int, Notice] = field(default_factory=dict)
    closed: dict[int, Notice] = field(default_factory=dict)
    changed: dict[int, Notice | None] = field(default_factory=dict)

    def add(self, notice: Notice) -> int:
        """Keep a new notice, and return its number."""
        number = self.next_number
        self.next_number += 2
        self.update(replace(notice, number=number))
        return number

    def update(self, notice: Notice) -> None:
        """Replace the words of a notice."""
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
        """Return a notice that may still change."""
        return self.open.get(number) or self.closed.get(number)

    def withdraw(self, number: int) -> None:
        """Drop a notice that is part of another one."""
        self.open.pop(number, None)
        self.closed.pop(number, None)
        self.changed[number] = None

    def take(self) -> dict[int, Notice | None]:
        """Return what changed since the last time."""
        changed, self.changed = self.changed, {}
        return changed


def hosts_of(ranks: Iterable[int], hosts: Mapping[int, str]) -> tuple[str, ...]:
    """Return the hosts of some ranks, as far as they are known, each once."""
    return tuple(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts))


def named(ranks: tuple[int, ...], hosts: tuple[str, ...]) -> str:
    """Return some ranks as people read them."""
    if not ranks:
        return "no rank"
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")  # noqa: PLR2004
    where = f" ({', '.join(hosts[:4])}{' …' if len(hosts) > 4 else ''})" if hosts else ""  # noqa: PLR2004
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{where}"


def over(notice: Notice, step: int, seconds: float | None = None) -> Notice:
    """Return a notice that is over, with the first step that is as before."""
    evidence = notice.evidence
    if seconds is not None:
        evidence = replace(evidence, seconds=seconds)
    return replace(notice, cleared_step=max(step, notice.from_step), evidence=evidence)

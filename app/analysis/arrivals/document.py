"""Report part on late arrivals at collectives and the breakdown of step time, with sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.analysis.arrivals.collective_matching import GroupKind, Parting
from app.analysis.json_text import OMITTED
from app.analysis.wording import percent


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Threshold by which a rank counts as keeping other ranks waiting."""

    # A rank straggles if others wait for it longer than it waits for them by at least this share of
    # a step: in recorded healthy jobs of short steps ranks wait for one another for up to a tenth
    # of a step.
    worth_saying: float = 0.05


THRESHOLDS: Final = Thresholds()
# Share of the waiting for a rank in other groups than its own up to which only its own is named,
# and share of all but one of the waiting ranks up to which only this one is named.
_ELSEWHERE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of a step, or merged consecutive collectives of a type; means over steps."""

    op: str
    """Operation type."""
    order: int
    """Order of the first merged collective among the step's collectives of its type, from 0."""
    count: int
    """Number of consecutive collectives merged into this entry; 1 if the step has few collectives.
    """
    last: int | None
    """Global rank that most often arrives last; None if all ranks usually arrive together."""
    last_share: float
    """Share of the recorded occurrences in which the rank `last` arrives last or, if `last` is
    None, in which all ranks arrive together.
    """
    late_s: float
    """Time from the first rank's arrival to the last rank's arrival, seconds."""
    margin_s: float
    """Time from the arrival of the last rank but one to the last rank's arrival, seconds."""
    waited_s: float
    """Waiting of all other ranks for the last rank, rank-seconds per step, counted only while a
    waiting rank computes nothing and waits for nothing else.
    """
    transfer_s: float
    """Duration of the transfer itself, seconds: the shortest recorded by any rank."""


@dataclass(frozen=True, slots=True)
class MeetingGroup:
    """Ranks that take part in the same collectives."""

    kind: GroupKind
    """Ranks of the group: the data-parallel ranks of a stage (``data``), those of them that share
    experts (``expert``), or the ``tensor``- or ``context``-parallel ranks of a worker.
    """
    stage: int
    """Pipeline stage of the group."""
    ranks: tuple[int, ...]
    """Global ranks of the group, ascending."""
    collectives: tuple[Collective, ...]
    """Collectives of the group, in the order in which they begin in a step."""
    late_s: tuple[tuple[float | None, ...], ...]
    """Time from the first rank's arrival to each rank's arrival, seconds, [rank][collective]; None
    if the rank did not record the collective.
    """


@dataclass(frozen=True, slots=True)
class RankArrivals:
    """Number of collectives at which a rank comes last, and the waiting that it causes."""

    rank: int
    """Global rank."""
    collectives: float
    """Number of collectives per step in which the rank takes part."""
    last: float
    """Number of collectives per step at which the rank arrives last. No rank counts as last if all
    ranks arrive within a thousandth of a step of one another, or, in steps of over 10
    collectives, within a hundredth of a step divided by their number.
    """
    rank_seconds: float
    """Waiting of all other ranks that this rank causes, rank-seconds per step: for itself, and for
    ranks that are late because they waited for it, in any group and pipeline stage. The values of
    all ranks add up to the waiting of all ranks.
    """
    waited_for_s: float
    """Time that each other recorded rank of a group waits because of this rank, seconds per step:
    the mean of the group that waits longest for it.
    """
    waits_s: float
    """Time that this rank waits for other ranks, seconds per step."""
    missing: bool = field(default=False, metadata=OMITTED)
    """Whether the rank recorded nothing, so that its late arrivals are inferred from the waiting of
    all other ranks. No key if the rank recorded operations.
    """
    beyond_error_s: float = field(default=0.0, metadata=OMITTED)
    """Half width of the 95 % interval (Student) of `waited_for_s` less `waits_s`, as a mean over
    steps, seconds. No key if only one step is analyzed.
    """

    @property
    def last_share(self) -> float:
        """Return the share of the rank's collectives at which the rank comes last."""
        return self.last / self.collectives if self.collectives else 0.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Late arrivals of ranks at collectives, and the waiting that they cause.

    A rank arrives when its collective starts, by clocks that show the ends of one collective on
    all its ranks as one moment. It waits until the last one has arrived. If the last one is late
    because it waited for other ranks before, those cause the waiting.
    """

    steps: tuple[int, ...]
    """Analyzed steps, ascending; an evenly spread sample if the session has very many collectives.
    Waiting that computing hides is measured in `Breakdown.steps`.
    """
    step_s: float
    """Mean duration of a step, seconds, over `Breakdown.steps`."""
    ranks: tuple[RankArrivals, ...]
    """Ranks that share collectives with other ranks, or make such ranks late; the one that causes
    the longest waiting first.
    """
    groups: tuple[MeetingGroup, ...]
    """Groups of ranks and their collectives."""
    clocks_apart_s: float
    """Largest corrected difference between the clocks of ranks, seconds; 0 if the clocks agreed."""
    partings: tuple[Parting, ...] = field(default=(), metadata=OMITTED)
    """Steps in which ranks recorded different numbers of collectives of an operation type; these
    steps are left out for that type. No key if there are none.
    """

    @property
    def worst(self) -> RankArrivals:
        """Return the rank that causes the longest waiting."""
        return self.ranks[0]

    @property
    def straggles(self) -> bool:
        """Return whether others wait significantly longer for the worst rank than it waits."""
        return self._is_costly and self._beyond_s >= self.worst.beyond_error_s

    @property
    def _is_costly(self) -> bool:
        """Return whether others wait longer for the worst rank than it waits, in the mean step."""
        return self._beyond_s >= THRESHOLDS.worth_saying * self.step_s

    @property
    def _beyond_s(self) -> float:
        return self.worst.waited_for_s - self.worst.waits_s

    def met_by(self, rank: int) -> set[int]:
        """Return the other ranks that share a collective with the given rank."""
        met = {member for group in self.groups if rank in group.ranks for member in group.ranks}
        return met - {rank}

    @property
    def sentence(self) -> str:
        """Return a sentence on the rank that causes the longest waiting."""
        worst = self.worst
        if not self.straggles:
            share = percent(worst.waited_for_s / self.step_s)
            if self._is_costly:
                return (
                    f"Rank {worst.rank} keeps others waiting in some steps: {share} of a step, mean"
                )
            return f"No rank keeps others waiting: rank {worst.rank} most, {share} of a step"
        if not worst.last:
            return f"Rank {worst.rank} makes other ranks come late to collectives"
        share_of = percent(worst.last_share, 0)
        whole = worst.last.is_integer() and worst.collectives.is_integer()
        of = f"{worst.last:.0f} of {worst.collectives:.0f}" if whole else f"{share_of} of the"
        return f"Rank {worst.rank} comes last at {of} collectives of a step"

    @property
    def waiting(self) -> str:
        """Return a clause on the waiting of other ranks for the worst rank."""
        wait = f"{self._wait} for rank {self.worst.rank}"
        return wait[:1].upper() + wait[1:]

    @property
    def words(self) -> str:
        """Return a sentence on the worst rank and on the waiting for it."""
        return f"{self.sentence}; {self._wait} for it" if self.straggles else self.sentence

    @property
    def _wait(self) -> str:
        worst = self.worst
        waited_s = worst.waited_for_s
        time = _time(waited_s)
        waits_s = {one.rank: one.waits_s for one in self.ranks if not one.missing}
        for group in self.groups:
            others = [rank for rank in group.ranks if rank in waits_s and rank != worst.rank]
            alone = worst.rank_seconds <= (1 + _ELSEWHERE) * len(others) * waited_s
            if worst.rank not in group.ranks or not others or not alone:
                continue
            longest = max(others, key=waits_s.__getitem__)
            by_rest_s = sum(waits_s[rank] for rank in others if rank != longest)
            if len(others) > 1 and by_rest_s <= _ELSEWHERE * worst.rank_seconds:
                time = _time(min(waits_s[longest], worst.rank_seconds))
                return f"rank {longest} alone waits {time} a step"
            who = "1 rank waits" if len(others) == 1 else f"{len(others)} ranks wait"
            return f"{who} {time} a step"
        return f"other ranks wait up to {time} a step"


def _time(time_s: float) -> str:
    return f"{time_s:.3g} s" if time_s >= 1 else f"{time_s * 1000:.3g} ms"


@dataclass(frozen=True, slots=True)
class RankBreakdown:
    """Breakdown of a rank's step by activity, in seconds, as means over steps."""

    rank: int
    """Global rank."""
    computing_s: float
    """Time of computing, without waiting inside computations."""
    communication_s: float
    """Time of communication, and of waiting for other ranks, while the rank computes nothing."""
    data_s: float
    """Time of loading batches while the rank neither computes nor communicates."""
    idle_s: float
    """Time of a step in which the rank neither computes, communicates nor loads data."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Breakdown of step time by rank; the four parts of a rank add up to the mean step."""

    steps: tuple[int, ...]
    """Analyzed steps, ascending; an evenly spread sample in a large session."""
    step_s: float
    """Mean time from the first start in a step to the first start in the next step, seconds."""
    ranks: tuple[RankBreakdown, ...]
    """Breakdown of each rank that recorded operations, by ascending global rank."""

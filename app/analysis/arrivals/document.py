"""Who comes last where ranks meet, and what their steps pass with, as a report has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.analysis.arrivals.collective_matching import GroupKind, Parting
from app.analysis.json_text import OMITTED
from app.analysis.wording import percent


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether a rank keeps others waiting."""

    # A rank that others wait for longer than it waits for them, by this share of a step, straggles:
    # in recorded healthy jobs of short steps ranks wait for one another for up to a tenth of a
    # step.
    worth_saying: float = 0.05


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of a step, or several that follow one another; means of the steps."""

    op: str
    """Operation type."""
    order: int
    """Place among the step's collectives of its type, of the first one, from 0."""
    count: int
    """How many collectives are told together; 1 where the step has few."""
    last: int | None
    """The rank that came last most often; None where ranks come together."""
    last_share: float
    """In which share of the cases, or ranks came together."""
    late_s: float
    """How much later than the first rank the last one came, seconds."""
    margin_s: float
    """How much later than the next to last, seconds."""
    waited_s: float
    """What the others waited for the last one together, rank-seconds a step: while they computed
    nothing and waited for nothing else."""
    transfer_s: float
    """What the exchange took of all ranks, seconds: the least of what ranks recorded."""


@dataclass(frozen=True, slots=True)
class MeetingGroup:
    """Ranks that meet in the same collectives."""

    kind: GroupKind
    """What they share: ``data`` of a stage, ``tensor`` or ``context`` within a worker."""
    stage: int
    """Their pipeline stage."""
    ranks: tuple[int, ...]
    """Global ranks, ascending."""
    collectives: tuple[Collective, ...]
    """In the order of their begin in a step."""
    late_s: tuple[tuple[float | None, ...], ...]
    """How much later than the first rank each one came, seconds, [rank][collective]; None where it
    recorded none."""


@dataclass(frozen=True, slots=True)
class RankArrivals:
    """How often a rank comes last, and what that costs others."""

    rank: int
    """Global rank."""
    collectives: float
    """Collectives that it takes part in, a step."""
    last: float
    """At how many of them it comes last, a step. Where all ranks arrive within a thousandth of a
    step of one another, or, where a step has over 10 collectives, within a hundredth of a step by
    their number, none is last."""
    rank_seconds: float
    """What others wait for it together, seconds a step."""
    waited_for_s: float
    """The same for each of those that meet it, seconds a step."""
    waits_s: float
    """How long it waits for others itself, seconds a step."""
    missing: bool = field(default=False, metadata=OMITTED)
    """Whether it recorded nothing: that it came last is told by what all others waited. No key
    where it did."""
    beyond_error_s: float = field(default=0.0, metadata=OMITTED)
    """How far `waited_for_s` less `waits_s` may be from 0 by chance, seconds: half of the 95 %
    interval (Student) of its mean over steps. No key where only one step is known."""

    @property
    def last_share(self) -> float:
        """Return the share of its collectives at which it comes last."""
        return self.last / self.collectives if self.collectives else 0.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Who comes last at collectives, and who waits for it.

    A rank arrives when its collective starts, by clocks that show the ends of one collective on
    all its ranks as one moment. It waits until the last one has arrived.
    """

    steps: tuple[int, ...]
    """The steps that were looked at, ascending: of a session with very many collectives some,
    evenly spread. What computing hides of waiting is measured in `Breakdown.steps`."""
    step_s: float
    """How long a step takes, seconds, the mean of `Breakdown.steps`."""
    ranks: tuple[RankArrivals, ...]
    """Ranks that meet others: those that others wait for longest first."""
    groups: tuple[MeetingGroup, ...]
    """Groups of ranks, and what they meet in."""
    clocks_apart_s: float
    """How far clocks were apart that were put right, seconds; 0 where they agreed."""
    partings: tuple[Parting, ...] = field(default=(), metadata=OMITTED)
    """Where ranks recorded different numbers of collectives: those steps are left out of what is
    said of the type. No key where they did not."""

    @property
    def worst(self) -> RankArrivals:
        """Return the rank that others wait for longest."""
        return self.ranks[0]

    @property
    def straggles(self) -> bool:
        """Return whether others wait for one rank long enough to say so, and not by chance."""
        beyond_s = self.worst.waited_for_s - self.worst.waits_s
        least_s = THRESHOLDS.worth_saying * self.step_s
        return beyond_s >= max(least_s, self.worst.beyond_error_s)

    @property
    def peers(self) -> int:
        """Return how many ranks meet the worst one."""
        return max(len(self.met_by(self.worst.rank)), 1)

    def met_by(self, rank: int) -> set[int]:
        """Return the ranks that meet one, without it."""
        met = {one for group in self.groups if rank in group.ranks for one in group.ranks}
        return met - {rank}

    @property
    def sentence(self) -> str:
        """Return who comes last, in words."""
        worst = self.worst
        if not self.straggles:
            share = percent(worst.waited_for_s / self.step_s)
            return f"No rank keeps others waiting: rank {worst.rank} most, {share} of a step"
        share_of = percent(worst.last_share, 0)
        whole = worst.last.is_integer() and worst.collectives.is_integer()
        of = f"{worst.last:.0f} of {worst.collectives:.0f}" if whole else f"{share_of} of the"
        return f"Rank {worst.rank} comes last at {of} collectives of a step"

    @property
    def waiting(self) -> str:
        """Return how long others wait for that rank, in words."""
        return f"{self._wait} for rank {self.worst.rank}"

    @property
    def words(self) -> str:
        """Return both in one sentence."""
        return f"{self.sentence}; {self._wait} for it" if self.straggles else self.sentence

    @property
    def _wait(self) -> str:
        worst, peers = self.worst, self.peers
        who = "1 rank waits" if peers == 1 else f"{peers} ranks wait"
        waited_s = worst.waited_for_s
        time = f"{waited_s:.3g} s" if waited_s >= 1 else f"{waited_s * 1000:.3g} ms"
        return f"{who} {time} a step"


@dataclass(frozen=True, slots=True)
class RankBreakdown:
    """What a step of a rank passes with, seconds, means of the steps."""

    rank: int
    """Global rank."""
    computing_s: float
    """Computing, without what it waits for inside."""
    communication_s: float
    """Communicating and waiting for others while nothing computes."""
    data_s: float
    """Loading batches while neither goes on."""
    idle_s: float
    """Nothing of this was recorded."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What steps of ranks pass with: the four add up to the mean step."""

    steps: tuple[int, ...]
    """The steps that were looked at, ascending: of a large session some, evenly spread."""
    step_s: float
    """How long a step takes, from its first start to the next one's, seconds."""
    ranks: tuple[RankBreakdown, ...]
    """Each rank that recorded, ascending."""

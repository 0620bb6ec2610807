"""Late arrivals at collectives and breakdown of step time: a part of the report, with sentences."""

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


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of a step, or several consecutive collectives of a type; means over steps."""

    op: str
    """Operation type."""
    order: int
    """Place among the step's collectives of its type, of the first one, from 0."""
    count: int
    """Number of consecutive collectives merged here; 1 where the step has few."""
    last: int | None
    """The rank that came last most often; None where ranks come together."""
    last_share: float
    """Share of the cases in which it came last, or in which ranks came together."""
    late_s: float
    """How much later than the first rank the last one came, seconds."""
    margin_s: float
    """How much later than the next to last rank the last one came, seconds."""
    waited_s: float
    """Sum of the others' waiting for the last rank, rank-seconds a step: while they computed
    nothing and waited for nothing else."""
    transfer_s: float
    """Duration of the transfer itself, seconds: the shortest recorded by any rank."""


@dataclass(frozen=True, slots=True)
class MeetingGroup:
    """Ranks that take part in the same collectives."""

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
    """Number of collectives at which a rank comes last, and the waiting of other ranks for it."""

    rank: int
    """Global rank."""
    collectives: float
    """Number of collectives a step that it takes part in."""
    last: float
    """Number of these at which it comes last. Where all ranks arrive within a thousandth of a
    step of one another, or, where a step has over 10 collectives, within a hundredth of a step by
    their number, none is last."""
    rank_seconds: float
    """Sum of the others' waiting for it, rank-seconds a step."""
    waited_for_s: float
    """The same divided by the number of ranks that meet it, seconds a step."""
    waits_s: float
    """How long it waits for others itself, seconds a step."""
    missing: bool = field(default=False, metadata=OMITTED)
    """Whether it recorded nothing: that it came last follows from the waiting of all others. No key
    where it did."""
    beyond_error_s: float = field(default=0.0, metadata=OMITTED)
    """How far `waited_for_s` less `waits_s` may be from 0 by chance, seconds: half of the 95 %
    interval (Student) of its mean over steps. No key where only one step is known."""

    @property
    def last_share(self) -> float:
        """Return the share of the rank's collectives at which the rank comes last."""
        return self.last / self.collectives if self.collectives else 0.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Late arrivals of ranks at collectives, and the waiting that they cause.

    A rank arrives when its collective starts, by clocks that show the ends of one collective on
    all its ranks as one moment. It waits until the last one has arrived.
    """

    steps: tuple[int, ...]
    """The analyzed steps, ascending: of a session with very many collectives an evenly spread
    sample. Waiting hidden by computing is measured in `Breakdown.steps`."""
    step_s: float
    """Mean duration of a step, seconds, over `Breakdown.steps`."""
    ranks: tuple[RankArrivals, ...]
    """Ranks that meet others at collectives, that with the most waiting of others first."""
    groups: tuple[MeetingGroup, ...]
    """Groups of ranks and their collectives."""
    clocks_apart_s: float
    """Largest difference between clocks that was corrected, seconds; 0 where they agreed."""
    partings: tuple[Parting, ...] = field(default=(), metadata=OMITTED)
    """Where ranks recorded different numbers of collectives: those steps are left out for that op
    type. No key where they did not."""

    @property
    def worst(self) -> RankArrivals:
        """Return the rank for which other ranks wait longest."""
        return self.ranks[0]

    @property
    def straggles(self) -> bool:
        """Return whether others wait significantly longer for the worst rank than it waits."""
        beyond_s = self.worst.waited_for_s - self.worst.waits_s
        least_s = THRESHOLDS.worth_saying * self.step_s
        return beyond_s >= max(least_s, self.worst.beyond_error_s)

    @property
    def peers(self) -> int:
        """Return the number of ranks that share a collective with the worst rank, at least 1."""
        return max(len(self.met_by(self.worst.rank)), 1)

    def met_by(self, rank: int) -> set[int]:
        """Return the other ranks that share a collective with the given rank."""
        met = {member for group in self.groups if rank in group.ranks for member in group.ranks}
        return met - {rank}

    @property
    def sentence(self) -> str:
        """Return a sentence on the rank that comes last most often."""
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
        """Return a clause on the waiting of other ranks for the worst rank."""
        return f"{self._wait} for rank {self.worst.rank}"

    @property
    def words(self) -> str:
        """Return a sentence on the worst rank and on the waiting for it."""
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
    """Breakdown of a rank's step by activity, in seconds, as means over steps."""

    rank: int
    """Global rank."""
    computing_s: float
    """Computing, without waiting inside computations."""
    communication_s: float
    """Communication and waiting for others without computing."""
    data_s: float
    """Loading of batches without computing or communication."""
    idle_s: float
    """None of these."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Breakdown of step time by rank; the four parts of a rank add up to the mean step."""

    steps: tuple[int, ...]
    """The analyzed steps, ascending: of a large session an evenly spread sample."""
    step_s: float
    """Mean duration of a step, from its first start to the next one's, seconds."""
    ranks: tuple[RankBreakdown, ...]
    """Each rank that recorded, ascending."""

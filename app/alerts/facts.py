"""What rules and messages need of a session, small enough to keep with every incident."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from app.analysis.budget.document import Shares
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.report.verdict import (
    KnownLoss,
    SessionVerdict,
    Slowdown,
    SuspectedCause,
    VerdictFix,
    VerdictWorker,
)

# A message has room for this number of sentences about a cause.
EVIDENCE: Final = 2
# A hang of which nothing was heard for so long is over, though none said so.
LONGEST: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Facts:
    """A session as rules see it.

    Numbers of the verdict are None where there is no verdict; `discrepancy` is there even so, and
    causes, what they cost and the best fix where a replay gives them.
    """

    session: UUID
    job: str
    # attempt, number: what people call the session
    attempt: int
    number: int
    received_at: datetime  # the database's time
    labels: Mapping[str, str] = field(default_factory=dict)  # of the job's metadata
    layout: str = ""  # sizes of the job; sessions of different sizes are not compared
    slowdown: float | None = None
    slowdown_ci95: tuple[float, float] | None = None
    waste: float | None = None
    gpu_hours_lost: float | None = None
    discrepancy: float | None = None
    step_time_s: float | None = None
    causes: tuple[SuspectedCause, ...] = ()  # the leading one first
    worst: tuple[VerdictWorker, ...] = ()  # the slowest first
    worst_step: int | None = None  # the training step of the largest slowdown
    fix: VerdictFix | None = None
    headline: Slowdown | None = None  # what people are told
    gpus: int = 0  # of the job; 0 in incidents from before this was kept
    withheld: KnownLoss | None = None  # what the causes cost where there is no verdict
    shares: Shares | None = None  # where the time goes; None in incidents from before
    # The largest share that is known to be lost, to whatever; None in incidents from before.
    lost: float | None = None

    @property
    def known(self) -> Slowdown | KnownLoss | None:
        """Return what is known to be lost, and how slow the job is by that."""
        return self.headline or self.withheld

    @property
    def lost_each_hour(self) -> float | None:
        """Return the GPU-hours that the job loses in each hour of running; None where unknown.

        By its largest loss, whether to stragglers, between steps or as all workers are slow.
        """
        if self.known is None or not self.gpus:
            return None
        return (self.known.waste if self.lost is None else self.lost) * self.gpus

    def guesses(self, host: str) -> bool:
        """Return whether a host that causes name has a guessed name."""
        return any(gpu.guessed for cause in self.causes for gpu in cause.gpus if gpu.host == host)

    def tells(self, host: str) -> bool:
        """Return whether a host's name is that of one machine: none is a guess without a GPU."""
        named = [gpu for cause in self.causes for gpu in cause.gpus if gpu.host == host]
        return not self.guesses(host) or any(gpu.uuid is not None for gpu in named)

    @property
    def without_verdict(self) -> Facts:
        """Return which session it is and nothing of what was found in it.

        For what is not about the session: that nothing came after it.
        """
        return Facts(
            session=self.session,
            job=self.job,
            attempt=self.attempt,
            number=self.number,
            received_at=self.received_at,
            labels=self.labels,
            layout=self.layout,
        )

    @property
    def leading_cause(self) -> SuspectedCause:
        """Return the first cause, or the unknown one."""
        return self.causes[0] if self.causes else SuspectedCause(UNKNOWN)

    @property
    def order(self) -> tuple[datetime, int, int]:
        """Return what sorts sessions of a job by age, whenever they were analyzed."""
        return (self.received_at, self.attempt, self.number)


def facts_of(  # noqa: PLR0913 - the identity of a session, which its verdict does not have
    verdict: SessionVerdict,
    *,
    session: UUID,
    job: str,
    attempt: int,
    number: int,
    received_at: datetime,
    labels: Mapping[str, str],
) -> Facts:
    """Return the facts of a verdict.

    Parameters
    ----------
    received_at : datetime
    """
    facts = Facts(
        session=session,
        job=job,
        attempt=attempt,
        number=number,
        received_at=received_at,
        labels=labels,
        layout=verdict.layout,
        discrepancy=verdict.discrepancy,
        gpus=verdict.sizes.world,
        shares=verdict.shares,
        lost=verdict.lost,
    )
    if verdict.known is None:
        return facts
    facts = replace(
        facts,
        causes=tuple(
            SuspectedCause(
                one.cause,
                one.where,
                one.confidence,
                one.contribution,
                one.evidence[:EVIDENCE],
                one.gpus,
            )
            for one in verdict.causes
        ),
        fix=verdict.fix,
        withheld=verdict.withheld,
        headline=verdict.headline,
        step_time_s=verdict.step_time_s,
    )
    published = verdict.published
    if published is None:
        return facts
    return replace(
        facts,
        slowdown=published.slowdown,
        slowdown_ci95=published.ci95,
        waste=published.waste,
        gpu_hours_lost=published.gpu_hours_lost,
        worst=verdict.worst,
        worst_step=verdict.worst_step,
    )


@dataclass(frozen=True, slots=True)
class HangFacts:
    """A hang as rules see it.

    Parameters
    ----------
    since : datetime or None
        When ranks began to wait, by the clocks of their hosts; see `began`.
    created_at, changed_at : datetime
        When its first file came, and its last one.
    culprits : str
        Ranks with host and GPU: ``9 (node-104 GPU 1), 14 (node-105 GPU 6)``.
    """

    id: UUID
    since: datetime | None
    created_at: datetime
    changed_at: datetime
    over_at: datetime | None
    ranks: int
    waiting: int
    confidence: float
    sentence: str = ""
    culprits: str = ""
    remedy: str = ""

    @property
    def began(self) -> datetime:
        """Return when it began; no later than its files came."""
        return self.created_at if self.since is None else min(self.since, self.created_at)

    @property
    def is_past(self) -> bool:
        """Return whether its files are of another day: when it ended is not known."""
        return self.created_at - self.began > LONGEST

    def is_going_on(self, now: datetime) -> bool:
        """Return whether nothing says that it is over."""
        unheard = now - self.changed_at > LONGEST
        return self.over_at is None and not self.is_past and not unheard

    def lasted(self, now: datetime) -> timedelta:
        """Return how long it lasted, or lasts; as far as is known where nothing said its end."""
        if self.is_past:
            return timedelta()
        return max((self.over_at or min(now, self.changed_at + LONGEST)) - self.began, timedelta())

    def gpu_hours(self, now: datetime) -> float:
        """Return what it has cost: every rank's GPU computes nothing as long as it lasts."""
        return self.ranks * self.lasted(now) / timedelta(hours=1)

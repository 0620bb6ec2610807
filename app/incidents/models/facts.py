"""Facts of sessions, hangs and notices for alert rules, and readings of conditions from facts."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never
from uuid import UUID

from app.analysis.budget.split import Shares
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.pulse.notices import NoticeKind
from app.analysis.report.session_verdict import (
    KnownLoss,
    SessionVerdict,
    Slowdown,
    SuspectedCause,
    VerdictFix,
    VerdictWorker,
)
from app.analysis.wording import gpu_time, percent
from app.incidents.models.rules import CauseFound, Hanging, NoData, Noticed, Rule, Threshold, Weekly

# Maximum of evidence sentences stored of a cause, as more do not fit into a message.
MAX_EVIDENCE: Final = 2
# A hang of which no file came for this time counts as over.
HANG_LOST_AFTER: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Facts:
    """The fields of a session that rules and messages need, stored with every incident.

    Numbers of the verdict are None without a verdict, except `discrepancy`, and except causes,
    their cost and the best fix if a replay computes them.
    """

    session: UUID
    job: str
    # attempt, number: identify the session to users
    attempt: int
    number: int
    received_at: datetime  # when the session was received, by the database's clock
    labels: Mapping[str, str] = field(default_factory=dict)  # labels in the job's metadata
    layout: str = ""  # sizes of the job; only sessions of the same sizes are compared
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
    headline: Slowdown | None = None  # the slowdown shown first
    gpus: int = 0  # number of GPUs of the job; 0 in incidents of older versions
    withheld: KnownLoss | None = None  # cost of the causes if there is no verdict
    shares: Shares | None = None  # lost shares of the time; None in incidents of older versions
    # The largest known lost share of the time; None in incidents that older versions stored.
    lost: float | None = None

    @property
    def known(self) -> Slowdown | KnownLoss | None:
        """Return the slowdown; without a verdict, the known loss."""
        return self.headline or self.withheld

    @property
    def lost_each_hour(self) -> float | None:
        """Return the GPU-hours that the job loses each hour, from its largest loss, or None."""
        if self.known is None or not self.gpus:
            return None
        return (self.known.waste if self.lost is None else self.lost) * self.gpus

    def has_guessed_name(self, host: str) -> bool:
        """Return whether a host name in the causes is a guess."""
        return any(gpu.guessed for cause in self.causes for gpu in cause.gpus if gpu.host == host)

    def identifies(self, host: str) -> bool:
        """Return whether a host's name, recorded or with a GPU's UUID, identifies one machine."""
        named = [gpu for cause in self.causes for gpu in cause.gpus if gpu.host == host]
        return not self.has_guessed_name(host) or any(gpu.uuid is not None for gpu in named)

    @property
    def without_verdict(self) -> Facts:
        """Return the session's identity without a verdict, for incidents about silence."""
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
        """Return the first cause, or the unknown cause if there is none."""
        return self.causes[0] if self.causes else SuspectedCause(UNKNOWN)

    @property
    def order(self) -> tuple[datetime, int, int]:
        """Return the key that sorts a job's sessions from oldest to newest."""
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
    """Return the facts of a verdict."""
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
            replace(cause, evidence=cause.evidence[:MAX_EVIDENCE]) for cause in verdict.causes
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
    """The fields of a hang that rules and messages need.

    Parameters
    ----------
    since : datetime or None
        When ranks began to wait, by the clocks of their hosts; see `began`.
    created_at, changed_at : datetime
        When its first and its last file were received.
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
        """Return the time at which the hang began, at the latest the receipt of its first file."""
        return self.created_at if self.since is None else min(self.since, self.created_at)

    @property
    def is_past(self) -> bool:
        """Return whether the hang's files came more than a day late, so that its end is unknown."""
        return self.created_at - self.began > HANG_LOST_AFTER

    def is_going_on(self, now: datetime) -> bool:
        """Return whether the hang is known to continue."""
        unheard = now - self.changed_at > HANG_LOST_AFTER
        return self.over_at is None and not self.is_past and not unheard

    def lasted(self, now: datetime) -> timedelta:
        """Return the hang's duration up to its end, or to the last known time without an end."""
        if self.is_past:
            return timedelta()
        return max(
            (self.over_at or min(now, self.changed_at + HANG_LOST_AFTER)) - self.began, timedelta()
        )

    def gpu_hours(self, now: datetime) -> float:
        """Return the hang's cost in GPU-hours: no rank's GPU computes during the hang."""
        return self.ranks * self.lasted(now) / timedelta(hours=1)


# Titles of incidents, by kind of notice.
TITLES: Final[Mapping[NoticeKind, str]] = {
    NoticeKind.SLOW_RANK: "Slow rank",
    NoticeKind.SLOW_JOB: "Slow steps",
    NoticeKind.SPELLS: "Slow in spells",
    NoticeKind.DRIFT: "Slower and slower",
    NoticeKind.IMBALANCE: "Imbalanced batches",
    NoticeKind.HANG: "Hang",
    NoticeKind.SILENT: "Silent ranks",
}
# Kinds of notices without progress fire at once, because no session can be recorded.
STANDING_STILL: Final = (NoticeKind.HANG, NoticeKind.SILENT)
# Time without data after which a notice is over: UNHEARD_STILL for notices without progress,
# because such a job sends only heartbeats, UNHEARD for all others.
UNHEARD: Final = timedelta(hours=1)
UNHEARD_STILL: Final = timedelta(days=1)
# The gain of a fix is measured over a few steps. The message about the resolved incident waits for
# the measurement for the first time, or for the number of steps if these take longer, but at most
# for the last time.
MEASURED_WITHIN: Final = timedelta(seconds=30)
_MEASURED_STEPS: Final = 10
_MEASURED_AT_LAST: Final = timedelta(minutes=5)
# Maximum of ranks that the text of a place names.
_NAMED_RANKS: Final = 4


class Outcome(StrEnum):
    """The outcome of a notice according to the session recorded for it."""

    # Slow because of a cause at the place of the notice, or of no known cause
    CONFIRMED = "confirmed"
    EXPLAINED = "explained"  # slow because of a cause elsewhere
    CLEARED = "cleared"  # as fast as before the notice
    UNCONFIRMED = "unconfirmed"  # no conclusive session in time


@dataclass(frozen=True, slots=True)
class NoticeFacts:
    """The fields of a notice of the pulse that rules and messages need.

    Parameters
    ----------
    attempt, number : int
        Its identity within the job.
    fires_at : datetime
        When it fires without a session.
    heard_at : datetime
        When the pulse was last received.
    asked : bool
        Whether a session was requested.
    outcome : Outcome or None
        None as long as a session may still come.
    session, session_id : int, UUID or None
        Number and id of the session with that outcome.
    cause : str
        The cause that the session diagnosed; empty without one.
    baseline_s, step_s, after_s : float or None
        Duration of a step before, during and after it, seconds.
    gpu_hours : float
        Its cost so far.
    job_ranks : int
        Ranks of the job that send a pulse.
    """

    attempt: int
    number: int
    kind: NoticeKind
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    factor: float | None
    from_step: int
    noticed_at: datetime
    fires_at: datetime
    cleared_at: datetime | None
    heard_at: datetime
    sentence: str
    asked: bool = False
    outcome: Outcome | None = None
    session: int | None = None
    session_id: UUID | None = None
    cause: str = ""
    baseline_s: float | None = None
    step_s: float | None = None
    after_s: float | None = None
    gpu_hours: float = 0.0
    job_ranks: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Return the notice's identity."""
        return self.attempt, self.number

    @property
    def place(self) -> str:
        """Return the blamed host or ranks; empty if the notice blames none."""
        if not self.ranks or self.stands_still:
            return ""
        if len(self.hosts) == 1:
            return self.hosts[0]
        more = "…" if len(self.ranks) > _NAMED_RANKS else ""
        shown = ", ".join(map(str, self.ranks[:_NAMED_RANKS])) + more
        return f"{'rank' if len(self.ranks) == 1 else 'ranks'} {shown}"

    @property
    def stands_still(self) -> bool:
        """Return whether the notice is about a job in which no step ends."""
        return self.kind in STANDING_STILL

    @property
    def unheard_at(self) -> datetime:
        """Return the time from which on the notice counts as over if no further data arrive."""
        return self.heard_at + (UNHEARD_STILL if self.stands_still else UNHEARD)

    def is_going_on(self, now: datetime) -> bool:
        """Return whether the pulse still shows the slowdown or standstill."""
        return self.cleared_at is None and now < self.unheard_at

    @property
    def measured_at(self) -> datetime | None:
        """Return the latest time for steps that measure the gain of its end, or None.

        None also if a later attempt of the job replaced the notice's attempt, which ended its
        steps.
        """
        if self.step_s is None or self.after_s is not None or self.stands_still:
            return None
        if self.cleared_at is None or self.heard_at < self.cleared_at:
            return None
        steps = timedelta(seconds=_MEASURED_STEPS * self.step_s)
        return self.cleared_at + min(max(MEASURED_WITHIN, steps), _MEASURED_AT_LAST)

    @property
    def lost_each_hour(self) -> float | None:
        """Return the notice's cost in GPU-hours lost each hour, or None if unknown."""
        if self.stands_still:
            return float(self.job_ranks) or None
        if self.step_s is None or self.baseline_s is None or not self.job_ranks:
            return None
        return max(0.0, 1 - self.baseline_s / self.step_s) * self.job_ranks

    @property
    def realized(self) -> float | None:
        """Return the share of a step that the notice's end saved, or None if unknown."""
        if self.after_s is None or not self.step_s:
            return None
        return 1 - self.after_s / self.step_s

    @property
    def checked(self) -> str:
        """Return the notice's outcome as text."""
        if self.stands_still:
            return "no session can be recorded"
        if self.outcome is None:
            return "a session was asked for" if self.asked else "no session was asked for"
        named = f": {title_of(self.cause).lower()}" if self.cause else ", and names no cause"
        words = {
            Outcome.CONFIRMED: f"session {self.session} confirms it{named}",
            Outcome.EXPLAINED: f"session {self.session} explains it{named}",
            Outcome.CLEARED: f"session {self.session} is as fast as before",
            Outcome.UNCONFIRMED: "no session confirmed it",
        }
        return words[self.outcome]

    def ended(self, predicted: float | None) -> str:
        """Return a sentence about the notice's end, with its cost and the measured gain.

        Parameters
        ----------
        predicted : float or None
            Predicted gain of the best fix, as a share of a step.
        """
        words = f"the pulse is as before, after {gpu_time(self.gpu_hours)}"
        if self.realized is None or self.cleared_at is None:
            return words
        since = f"since {self.cleared_at:%H:%M} UTC a step takes {signed_percent(-self.realized)}"
        if predicted is not None:
            return f"{words}; predicted {signed_percent(-predicted)}, {since}"
        return f"{words}; {since}"


def signed_percent(share: float) -> str:
    """Return a share in percent with its sign; a saving is negative."""
    text = percent(abs(share))
    sign = "\N{MINUS SIGN}" if share < 0 else "+"
    return text if text == percent(0.0) else f"{sign}{text}"


# A baseline is the median of up to the first number of latest sessions, and of at least the second.
BASELINE_SESSIONS: Final = 10
MIN_BASELINE: Final = 3

REGRESSION_CAUSE: Final = "regression"
LOW_QUALITY_CAUSE: Final = "low_trace_quality"
NO_DATA_CAUSE: Final = "no_data"
HANG_CAUSE: Final = "hang"
# Cause of losses that affect all workers at once, which no cause of the diagnosis covers.
BETWEEN_STEPS_CAUSE: Final = "time_between_steps"
ALL_SLOW_CAUSE: Final = "all_workers_slow"


class Level(StrEnum):
    """The position of a value relative to the two thresholds of a rule."""

    BREACH = "breach"
    BETWEEN = "between"
    CLEAR = "clear"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a condition for one session."""

    level: Level
    value: float | None = None  # the number that was compared
    # Causes that the session blames; empty for a clear session.
    blamed: tuple[SuspectedCause, ...] = ()
    baseline_s: float | None = None  # step time of the baseline


_UNKNOWN: Final = Reading(Level.UNKNOWN)


def read_history(
    rule: Rule, history: Sequence[Facts], baselines_s: Mapping[str, float]
) -> list[Reading]:
    """Return the reading of a rule for each session.

    Parameters
    ----------
    rule : Rule
        With a condition on sessions: any but `NoData`, `Hanging` and `Noticed`.
    history : sequence of Facts
        Sessions of one job, the oldest first.
    baselines_s : mapping of str to float
        Step times of the baselines of open regressions, by layout. They may be older than the
        history, whose first sessions would else become the baseline.
    """
    condition = rule.condition
    match condition:
        case Threshold(kind="regression"):
            return _regressions(condition, history, baselines_s)
        case Threshold():
            return [_read_threshold(condition, facts) for facts in history]
        case CauseFound():
            return [_read_cause(condition, facts) for facts in history]
        case NoData() | Hanging() | Noticed() | Weekly():
            return [_UNKNOWN for _ in history]
        case _:
            assert_never(condition)


def silent_for(condition: NoData, received: Sequence[datetime]) -> timedelta | None:
    """Return the time without a session that is still normal, or None with too few sessions.

    Parameters
    ----------
    received : sequence of datetime
        When its latest sessions were received, the oldest first.
    """
    limits = []
    if condition.minutes is not None:
        limits.append(timedelta(minutes=condition.minutes))
    if condition.intervals is not None:
        gaps = [
            (later - earlier).total_seconds() for earlier, later in itertools.pairwise(received)
        ]
        if len(gaps) < MIN_BASELINE - 1:
            return None
        usual_s = statistics.median(gaps[-BASELINE_SESSIONS:])
        limits.append(timedelta(seconds=max(0.0, usual_s) * condition.intervals))
    return max(limits)


def _read_threshold(condition: Threshold, facts: Facts) -> Reading:
    value: float | None
    match condition.kind:
        case "headline":
            if facts.withheld is not None:
                # A small lower bound does not prove that the condition is over.
                bound = _reading(condition, facts.withheld.slowdown, facts.leading_cause)
                return _UNKNOWN if bound.level is Level.CLEAR else bound
            value = facts.headline.slowdown if facts.headline else None
        case "slowdown":
            value = facts.slowdown
        case "waste":
            value = facts.waste
        case "gpu_hours_lost":
            value = facts.gpu_hours_lost
        case "discrepancy" if facts.known is not None and facts.slowdown is None:
            # Without S the discrepancy is the cost of the causes, not a fault of the trace.
            return Reading(Level.CLEAR, facts.discrepancy)
        case "discrepancy":
            return _reading(condition, facts.discrepancy, SuspectedCause(LOW_QUALITY_CAUSE))
        case "budget.between_steps" | "budget.slow_together":
            return _read_share(condition, facts.shares)
        case "regression":
            raise ValueError("a regression is read from the whole history")
        case _:
            assert_never(condition.kind)
    return _reading(condition, value, facts.leading_cause)


def _read_share(condition: Threshold, shares: Shares | None) -> Reading:
    """Read the lost share of the time that affects all workers."""
    if shares is None:
        return _UNKNOWN
    if condition.kind == "budget.between_steps":
        between = SuspectedCause(BETWEEN_STEPS_CAUSE)
        return _reading(condition, shares.between_steps_above, between)
    return _reading(condition, shares.slow_together, SuspectedCause(ALL_SLOW_CAUSE))


def _reading(condition: Threshold, value: float | None, blamed: SuspectedCause) -> Reading:
    if value is None:
        return _UNKNOWN
    if value >= condition.at_least:
        return Reading(Level.BREACH, value, (blamed,))
    if value >= condition.clears_below:
        return Reading(Level.BETWEEN, value, (blamed,))
    return Reading(Level.CLEAR, value)


def _read_cause(condition: CauseFound, facts: Facts) -> Reading:
    if facts.known is None:
        return _UNKNOWN
    meant = [
        cause
        for cause in facts.causes
        if cause.confidence is not None
        and cause.cause != UNKNOWN
        and (not condition.causes or cause.cause in condition.causes)
    ]
    value = max((cause.confidence or 0.0 for cause in meant), default=None)
    sure = tuple(c for c in meant if (c.confidence or 0.0) >= condition.confidence)
    if sure:
        return Reading(Level.BREACH, value, sure)
    likely = tuple(c for c in meant if (c.confidence or 0.0) >= condition.clears_below)
    if likely:
        return Reading(Level.BETWEEN, value, likely)
    return Reading(Level.CLEAR, value) if facts.headline is not None else _UNKNOWN


def _regressions(
    condition: Threshold, history: Sequence[Facts], baselines_s: Mapping[str, float]
) -> list[Reading]:
    """Compare each session with the earlier sessions that were no regressions themselves.

    Otherwise a lasting regression would become the baseline after a few sessions, which would end
    its incident although nothing was repaired.
    """
    usual = {layout: [step_s] * MIN_BASELINE for layout, step_s in baselines_s.items()}
    readings = []
    for facts in history:
        if facts.step_time_s is None:
            readings.append(_UNKNOWN)
            continue
        before = usual.setdefault(facts.layout, [])
        if len(before) < MIN_BASELINE:
            before.append(facts.step_time_s)
            readings.append(_UNKNOWN)
            continue
        baseline_s = statistics.median(before[-BASELINE_SESSIONS:])
        blamed = facts.causes[0] if facts.causes else SuspectedCause(REGRESSION_CAUSE)
        reading = _reading(condition, facts.step_time_s / baseline_s - 1, blamed)
        if reading.level is not Level.BREACH:
            before.append(facts.step_time_s)
        readings.append(replace(reading, baseline_s=baseline_s))
    return readings

"""One sentence: how slow a job is, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from app.analysis.budget.split import WORTH_SAYING, Shares
from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.finding import UNKNOWN, Cause
from app.analysis.diagnosis.headline import Headline, HeadlineKind
from app.analysis.diagnosis.locations import JobFacts
from app.analysis.replay.metrics import STRAGGLING, Metrics
from app.analysis.wording import percent

# A second cause with this share of the lost time is worth naming in the same sentence.
_SECOND_CAUSE: Final = 0.25
# What all workers lose makes a job slow from as much on as a straggler does.
_SLOW: Final = 1 - 1 / STRAGGLING

# Shares of nearly the same time are one.
_ALIKE: Final = 1.1
# Communication that takes this share of the time is said where nothing is named that slows it: what
# is slow for all ranks alike has nothing to be held against.
_COMMUNICATES: Final = 0.3
_TOGETHER: Final = "is lost in steps in which all workers compute slower"

# Of a single step it is not known how far the job is from it.
ONE_STEP: Final = "one step, so no interval"

_NONE: Final = "no straggler to act on"
_NONE_THERE: Final = "no straggler among the ranks that are there"

# ``none`` where there is no verdict.
Level = Literal["slow", "ok", "none"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How slow a job is and why."""

    sentence: str
    """The verdict in words."""
    level: Level
    """``none`` where there is no verdict."""


def verdict(  # noqa: PLR0913 - what is known of the session and of its causes
    job: JobFacts,
    metrics: Metrics,
    causes: Sequence[Cause],
    headline: Headline,
    limit: float,
    *,
    shares: Shares | None,
    between: Sequence[Cause] = (),
    turn_s: float = 0.0,
    withheld: str | None = None,
    missing: str | None = None,
) -> Verdict:
    """Say in one sentence how slow the job is and why; what costs most first.

    Parameters
    ----------
    headline : Headline
        How slow it is, and against what.
    limit : float
        A discrepancy above it withholds the verdict.
    shares : Shares or None
        Where the time goes: what all workers lose is in no slowdown. None where that is not known.
    between : sequence of Cause
        Why time is lost between steps, as far as that is known.
    turn_s : float
        What a mean step takes with the gap before it; 0 where that is not known.
    withheld : str, optional
        Why there is no verdict, whatever the discrepancy.
    missing : str, optional
        Which ranks were not recorded, and what that leaves open.
    """
    said = _of_all(job, metrics, causes, headline, limit, shares, between, turn_s, withheld)
    if missing is not None:
        said = Verdict(said.sentence.replace(_NONE, _NONE_THERE), said.level)
    left_open = (
        None if said.level == "none" else _communicating(shares, causes),
        ONE_STEP if len(metrics.simulated_s) == 1 and said.level != "none" else None,
        missing,
    )
    return Verdict("; ".join(filter(None, (said.sentence, *left_open))), said.level)


def _communicating(shares: Shares | None, causes: Sequence[Cause]) -> str | None:
    """Say how much of the time ranks communicate, where that is much and no cause is known."""
    if shares is None or any(cause.cause != UNKNOWN for cause in causes):
        return None
    share = shares.communication + shares.communication_above
    if share < _COMMUNICATES:
        return None
    return f"communication takes {percent(share, 0)} of the time, alike on all ranks"


def _of_all(  # noqa: PLR0913, PLR0917 - as above
    job: JobFacts,
    metrics: Metrics,
    causes: Sequence[Cause],
    headline: Headline,
    limit: float,
    shares: Shares | None,
    between: Sequence[Cause],
    turn_s: float,
    withheld: str | None,
) -> Verdict:
    """Say how slow steps are and why, and what else is lost."""
    said = _of_steps(job, metrics, causes, headline, limit, withheld)
    if shares is None:
        return said
    lost = {
        f"{percent(share, 0)} of the time {what}": share
        for share, what in (
            (
                lost_between(shares, sum(cause.between_s for cause in between), turn_s),
                f"is lost between steps{_because(job, between, causes)}",
            ),
            # else one of the causes
            (0.0 if said.level == "slow" else shares.slow_together, _TOGETHER),
        )
        if share >= WORTH_SAYING
    }
    if not lost:
        return said
    everywhere = ", and ".join(sorted(lost, key=lambda words: -lost[words]))
    if said.level == "ok":
        slow = sum(lost.values()) >= _SLOW
        return Verdict(f"No straggler; {everywhere}", "slow" if slow else "ok")
    in_steps = 1 - shares.between_steps - shares.between_steps_above - shares.missing
    if said.level == "slow" and sum(lost.values()) > headline.waste * in_steps:
        return Verdict(f"{everywhere}; {said.sentence}", said.level)
    return Verdict(f"{said.sentence}; {everywhere}", said.level)


def lost_between(shares: Shares, known_s: float, turn_s: float) -> float:
    """Return which share of the time is lost between steps.

    What is recorded there before each step is usual, and lost all the same.

    Parameters
    ----------
    known_s, turn_s : float
        What causes take between the steps of a mean step, and what a mean step takes with that, 0
        where it is not known; seconds.
    """
    above = shares.between_steps_above
    known = known_s / turn_s if turn_s else 0.0
    # Both tell the same, but for the first step, of which it is not known what preceded it.
    return known if known > _ALIKE * above + shares.between_steps / 2 else above


def _because(job: JobFacts, between: Sequence[Cause], causes: Sequence[Cause]) -> str:
    """Return why time is lost between steps, where that is not said of the steps already."""
    first = max(between, key=lambda cause: cause.between_s, default=None)
    if first is None or first.cause in {cause.cause for cause in causes}:
        return ""
    return f": {KINDS[first.cause].because(first, job)}"


def _of_steps(  # noqa: PLR0913, PLR0917 - as above
    job: JobFacts,
    metrics: Metrics,
    causes: Sequence[Cause],
    headline: Headline,
    limit: float,
    withheld: str | None,
) -> Verdict:
    """Say how slow steps are and why."""
    if withheld is not None:
        return Verdict(f"No verdict: {withheld}", "none")
    if metrics.discrepancy > limit and headline.kind is not HeadlineKind.LAUNCHES:
        return Verdict(_withheld(job, metrics, causes, limit), "none")
    shown = f"{headline.slowdown:.2f}×"
    against_causes = headline.kind.without_causes
    # S knows nothing of late launches.
    unsaid = "; S is withheld" if headline.kind is HeadlineKind.LAUNCHES else ""
    if headline.slowdown < STRAGGLING:
        reference = "the step time without its causes" if against_causes else "the ideal step time"
        return Verdict(f"{shown} {reference}: {_NONE}{unsaid}", "ok")
    if against_causes:
        named = sum(cause.cost_s is not None and cause.cause != UNKNOWN for cause in causes)
        reference = without_causes(named)
        return Verdict(f"{shown} slower than {reference}: {_why(job, causes)}{unsaid}", "slow")
    known = bool(causes) and causes[0].cause != UNKNOWN
    why = f"because {_why(job, causes)}" if known else _for_no_one_place(job)
    return Verdict(f"{shown} slower than ideal {why}", "slow")


def _withheld(job: JobFacts, metrics: Metrics, causes: Sequence[Cause], limit: float) -> str:
    """Say what makes a job slow whose S is not known: launches are late that it knows nothing of.

    A cause that is known all the same comes with its share of the recorded step.
    """
    if causes and causes[0].cause != UNKNOWN:
        step_s = metrics.recorded_step_s
        told = (
            KINDS[cause.cause].because(cause, job)
            + (f", {percent(cause.cost_s / step_s, 0)} of a step" if cause.cost_s else "")
            for cause in _told(causes)
        )
        return f"Verdict on S withheld; {', and '.join(told)}"
    sentence = (
        "No verdict: the replay differs from the recording by "
        f"{percent(metrics.discrepancy)}, the limit is {percent(limit, 0)}"
    )
    return f"{sentence}; {_why(job, causes)}" if causes else sentence


def _told(causes: Sequence[Cause]) -> list[Cause]:
    """Return the first cause and, where it costs enough, the second."""
    first, *rest = causes
    second = next((cause for cause in rest if cause.cause != UNKNOWN), None)
    return [first, second] if second and (second.contribution or 0.0) >= _SECOND_CAUSE else [first]


def without_causes(named: int) -> str:
    """Return what a slowdown is counted against where `named` causes explain it."""
    return f"without its {'cause' if named == 1 else 'causes'}"


def _why(job: JobFacts, causes: Sequence[Cause]) -> str:
    """Say what the first cause does and, where it costs enough, the second."""
    if causes[0].cause == UNKNOWN:
        return _for_no_one_place(job)
    return ", and ".join(KINDS[cause.cause].because(cause, job) for cause in _told(causes))


def _for_no_one_place(job: JobFacts) -> str:
    name = max(job.by_optype, key=job.by_optype.__getitem__)
    return f"for no single worker or stage; {name} costs most"

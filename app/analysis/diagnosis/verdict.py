"""The verdict: one sentence that states how slow a job is, and why."""

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

# The sentence names a second cause from this share of the lost time on.
_SECOND_CAUSE: Final = 0.25
# Without stragglers, a job is slow when all workers together lose this share of the time, as much
# as a straggling job loses.
_SLOW: Final = 1 - 1 / STRAGGLING
# Two measures of the time between steps agree if their ratio is below this limit.
_ALIKE: Final = 1.1
# If no cause is known, communication is mentioned from this share of the time on: if communication
# is equally slow for all ranks, the session has no reference for it.
_COMMUNICATES: Final = 0.3
ONE_STEP: Final = "one step, so no interval"
_NONE: Final = "no straggler to act on"
_NONE_THERE: Final = "no straggler among the ranks that are there"

# Level of a verdict; ``none`` if the verdict is withheld.
Level = Literal["slow", "ok", "none"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The sentence that states how slow a job is and why, and its level."""

    sentence: str
    """Sentence that states how slow the job is, and why."""
    level: Level
    """Level of the verdict; ``none`` if the verdict is withheld."""


def verdict(  # noqa: PLR0913 - the facts that the sentence mentions
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
    """Return the verdict: how slow the job is and why, the greatest loss first.

    Parameters
    ----------
    limit : float
        Discrepancy of the replay above which the verdict is withheld.
    shares : Shares or None
        Budget of the time, which also has the losses that all workers share; None if unknown.
    between : sequence of Cause
        Causes of lost time between steps.
    turn_s : float
        Mean step with the gap before it, seconds; 0 if unknown.
    withheld : str, optional
        Reason to withhold the verdict, whatever the discrepancy.
    missing : str, optional
        Clause on the ranks that were not recorded, and on what therefore remains unknown.
    """
    result = _of_steps(job, metrics, causes, headline, limit, withheld)
    if shares is not None:
        result = _with_losses_of_all(result, job, causes, headline, shares, between, turn_s)
    sentence, level = result.sentence, result.level
    parts = [sentence if missing is None else sentence.replace(_NONE, _NONE_THERE)]
    if level != "none" and shares is not None and all(c.cause == UNKNOWN for c in causes):
        share = shares.communication + shares.communication_above
        if share >= _COMMUNICATES:
            parts.append(f"communication takes {percent(share, 0)} of the time, alike on all ranks")
    if level != "none" and len(metrics.simulated_s) == 1:
        parts.append(ONE_STEP)
    if missing:
        parts.append(missing)
    return Verdict("; ".join(parts), level)


def _with_losses_of_all(  # noqa: PLR0913, PLR0917 - as above
    of_steps: Verdict,
    job: JobFacts,
    causes: Sequence[Cause],
    headline: Headline,
    shares: Shares,
    between: Sequence[Cause],
    turn_s: float,
) -> Verdict:
    """Return the verdict on steps, extended by the losses that all workers share, if large."""
    why = ""
    between_share = lost_between(shares, sum(cause.between_s for cause in between), turn_s)
    in_steps_s = sum(cause.cost_s or 0.0 for cause in causes)
    if headline.kind is HeadlineKind.LAUNCHES and between_share * turn_s <= in_steps_s:
        # Late launches of a step's first operations are time between steps as well.
        between_share = 0.0
    first = max(between, key=lambda cause: cause.between_s, default=None)
    if first is not None and first.cause not in {cause.cause for cause in causes}:
        why = f": {KINDS[first.cause].because(first, job)}"
    lost = {
        f"{percent(share, 0)} of the time {what}": share
        for share, what in (
            (between_share, f"is lost between steps{why}"),
            (
                # In a slow job, the common slowness of all workers is already one of the causes.
                0.0 if of_steps.level == "slow" else shares.slow_together,
                "is lost in steps in which all workers compute slower",
            ),
        )
        if share >= WORTH_SAYING
    }
    if not lost:
        return of_steps
    everywhere = ", and ".join(sorted(lost, key=lambda words: -lost[words]))
    if of_steps.level == "ok":
        slow = sum(lost.values()) >= _SLOW
        return Verdict(f"No straggler; {everywhere}", "slow" if slow else "ok")
    in_steps = 1 - shares.between_steps - shares.between_steps_above - shares.missing
    if of_steps.level == "slow" and sum(lost.values()) > headline.waste * in_steps:
        return Verdict(f"{everywhere}; {of_steps.sentence}", of_steps.level)
    return Verdict(f"{of_steps.sentence}; {everywhere}", of_steps.level)


def lost_between(shares: Shares, causes_s: float, turn_s: float) -> float:
    """Return the share of the time that is lost between steps.

    Operations that are recorded before every step count as usual in the budget, but are lost time
    here.

    Parameters
    ----------
    causes_s : float
        Time of the causes between steps, of a mean step, seconds.
    turn_s : float
        Mean step with the gap before it, seconds; 0 if unknown.
    """
    above = shares.between_steps_above
    by_causes = causes_s / turn_s if turn_s else 0.0
    # The two measures agree except for the first step, whose gap is unknown; the larger measure
    # counts only if it is clearly larger.
    return by_causes if by_causes > _ALIKE * above + shares.between_steps / 2 else above


def _of_steps(  # noqa: PLR0913, PLR0917 - as above
    job: JobFacts,
    metrics: Metrics,
    causes: Sequence[Cause],
    headline: Headline,
    limit: float,
    withheld: str | None,
) -> Verdict:
    """Return the verdict on the time within steps only."""
    if withheld is not None:
        return Verdict(f"No verdict: {withheld}", "none")
    if metrics.discrepancy > limit and headline.kind is not HeadlineKind.LAUNCHES:
        # Some launches are late for no known cause, so a known cause is named with its share of the
        # recorded step.
        if causes and causes[0].cause != UNKNOWN:
            step_s = metrics.recorded_step_s
            clauses = (
                KINDS[cause.cause].because(cause, job)
                + (f", {percent(cause.cost_s / step_s, 0)} of a step" if cause.cost_s else "")
                for cause in _named(causes)
            )
            return Verdict(f"Verdict on S withheld; {', and '.join(clauses)}", "none")
        sentence = (
            "No verdict: the replay differs from the recording by "
            f"{percent(metrics.discrepancy)}, the limit is {percent(limit, 0)}"
        )
        return Verdict(f"{sentence}; {_why(job, causes)}" if causes else sentence, "none")
    shown = f"{headline.slowdown:.2f}×"
    against_causes = headline.kind.without_causes
    if headline.slowdown < STRAGGLING:
        reference = "the step time without its causes" if against_causes else "the ideal step time"
        return Verdict(f"{shown} {reference}: {_NONE}", "ok")
    if against_causes:
        named = sum(cause.cost_s is not None and cause.cause != UNKNOWN for cause in causes)
        reference = without_causes(named)
        return Verdict(f"{shown} slower than {reference}: {_why(job, causes)}", "slow")
    is_named = bool(causes) and causes[0].cause != UNKNOWN
    why = f"because {_why(job, causes)}" if is_named else _for_no_one_place(job)
    return Verdict(f"{shown} slower than ideal {why}", "slow")


def _named(causes: Sequence[Cause]) -> list[Cause]:
    """Return the first cause and, if it costs enough, the second cause."""
    first, *rest = causes
    second = next((cause for cause in rest if cause.cause != UNKNOWN), None)
    return [first, second] if second and (second.contribution or 0.0) >= _SECOND_CAUSE else [first]


def without_causes(named: int) -> str:
    """Return the words for the reference of a slowdown that `named` causes explain."""
    return f"without its {'cause' if named == 1 else 'causes'}"


def _why(job: JobFacts, causes: Sequence[Cause]) -> str:
    """Return the clauses about the first cause and, if it costs enough, the second cause."""
    if causes[0].cause == UNKNOWN:
        return _for_no_one_place(job)
    clauses = [KINDS[cause.cause].because(cause, job) for cause in _named(causes)]
    other = causes[1] if len(causes) > 1 else None
    if other is not None and other.cost_s is None and other.saves is not None:
        # The alternative of the first cause, with the same sign and another slowdown.
        title = KINDS[other.cause].title.lower()
        clauses[0] += f" ({1 / (1 - other.saves):.2f}× if it is a {title})"
    return ", and ".join(clauses)


def _for_no_one_place(job: JobFacts) -> str:
    name = max(job.by_optype, key=job.by_optype.__getitem__)
    return f"for no single worker or stage; {name} costs most"

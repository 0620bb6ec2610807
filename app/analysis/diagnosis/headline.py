"""The headline: the slowdown of a job as shown to users, and its interval.

The published S (what-if paper) compares a job with an ideal that is a mean and contains the
straggler, so S underestimates a strong straggler. If causes explain the lost time, the job is
compared with the job without these causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import exp, hypot, log
from typing import Final

from app.analysis.diagnosis.diagnose import Diagnosis
from app.analysis.diagnosis.finding import UNKNOWN, Cause, Judged
from app.analysis.diagnosis.lost_time import is_explained
from app.analysis.json_text import OMITTED
from app.analysis.replay.confidence import FEWEST_DRAWN, FEWEST_STEPS, Interval, spread_by_blocks
from app.analysis.replay.fidelity import DISCREPANCY_LIMIT
from app.analysis.replay.metrics import STRAGGLING, Metrics
from app.analysis.replay.robust_statistics import mean

# Texts mention S next to the headline if the two differ by more than this share.
WORTH_SAYING: Final = 0.02
WHY_S_DIFFERS: Final = "its ideal is a mean over all workers, stragglers included"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide the width of the slowdown's interval."""

    # Half of the relative 95 % interval of the model's own error: without it, equal steps would
    # have an interval of width 0.
    model: float = 0.0003
    # A cause that keeps workers waiting hides their late launches; without the cause, steps wait
    # for these launches, for up to this many times the recorded late launches. Measured on
    # synthetic jobs with slow workers: without this term the interval contains the true slowdown in
    # 78 % of the sessions, with it in 96 %.
    hidden: float = 0.5


THRESHOLDS: Final = Thresholds()


class HeadlineKind(StrEnum):
    """The kind of reference with which the headline compares a job."""

    CAUSES = "causes"
    # the job without its causes, like `CAUSES`, if S is withheld: only a replay with late launches
    # is near the recording
    LAUNCHES = "launches"
    PUBLISHED = "published"

    @property
    def without_causes(self) -> bool:
        """Return whether the reference is the job without its causes."""
        return self is not HeadlineKind.PUBLISHED


@dataclass(frozen=True, slots=True)
class Headline:
    """The slowdown that users are shown.

    The stated loss is the share 1 - 1/slowdown of each step, and no fix is predicted to gain more.
    """

    slowdown: float
    """Recorded step time ÷ step time of the reference; see `kind`."""
    ci95: Interval | None
    """95 % interval of the job's slowdown, of which the analyzed steps are a sample, by bootstrap
    over blocks of steps; the interval of S if the headline is S. None for fewer than 20 steps
    with causes, or fewer than 5 steps.
    """
    reference_step_time_s: float
    """Mean step time of the reference, seconds: without the causes, or ideal if the headline is S.
    """
    kind: HeadlineKind
    """Reference of the slowdown. ``published``: the headline is S. ``launches``: S is withheld, and
    only a replay with the late launches of causes reproduces the recording.
    """
    ci95_reason: str | None = field(default=None, metadata=OMITTED)
    """Reason why there is no interval; None if there is one."""

    @property
    def waste(self) -> float:
        """Return the share of a step that is lost, the most that any change can save."""
        return 1 - 1 / self.slowdown

    def differs(self, published: float) -> bool:
        """Return whether S differs enough to be mentioned next to the headline."""
        return differs(self.slowdown, published)


def differs(slowdown: float, published: float) -> bool:
    """Return whether a headline and S differ enough that texts mention both."""
    return abs(slowdown / published - 1) > WORTH_SAYING


def why_published(*, named: bool) -> str:
    """Return the reason why the headline is S; `named` is whether any cause is named."""
    return "over 10 % of the lost time has no known cause" if named else "no cause is named"


def headline(
    metrics: Metrics, published_ci95: Interval | None, diagnosis: Diagnosis, causes: Sequence[Cause]
) -> Headline:
    """Return the slowdown against the job without the reported causes.

    If causes do not explain the loss, the headline is S with its interval.
    """
    named = [cause for cause in causes if cause.cause != UNKNOWN]
    judged = diagnosis.judged
    if not causes and metrics.discrepancy <= DISCREPANCY_LIMIT:
        by_chance = _without_chance(metrics, published_ci95, diagnosis.chance_s)
        if metrics.slowdown > by_chance.slowdown and by_chance.slowdown < STRAGGLING:
            return by_chance
    if not named or judged is None or not is_explained(judged.unknown_share):
        return Headline(
            metrics.slowdown,
            published_ci95,
            metrics.ideal_step_s,
            HeadlineKind.PUBLISHED,
            ci95_reason=_too_few_to_draw(metrics) if published_ci95 is None else None,
        )
    reference_s = float(mean(judged.reference_s))
    ci95 = interval_of(judged)
    by_launches = (
        metrics.discrepancy > DISCREPANCY_LIMIT >= diagnosis.discrepancy and diagnosis.delaying
    )
    return Headline(
        diagnosis.slowdown,
        ci95,
        reference_s,
        HeadlineKind.LAUNCHES if by_launches else HeadlineKind.CAUSES,
        ci95_reason=too_few_steps(len(judged.steps_s)) if ci95 is None else None,
    )


def _without_chance(metrics: Metrics, published_ci95: Interval | None, chance_s: float) -> Headline:
    """Return the slowdown of a job without causes, net of the loss by chance, `chance_s`."""
    reference_s = min(metrics.ideal_step_s + chance_s, metrics.simulated_step_s)
    ci95: Interval | None = None
    reason: str | None = _too_few_to_draw(metrics)
    if published_ci95 is not None:
        ideal = metrics.ideal_step_s / reference_s
        low, high = (max(bound * ideal, 1.0) for bound in published_ci95)
        ci95, reason = (low, high), None
    slowdown = metrics.simulated_step_s / reference_s
    return Headline(slowdown, ci95, reference_s, HeadlineKind.CAUSES, ci95_reason=reason)


def interval_of(judged: Judged) -> Interval | None:
    """Return the 95 % interval of a slowdown from the analyzed steps; None for too few steps.

    The interval combines the variation among steps with the uncertainty of the steps without the
    causes. Launches that are late for no known cause make the recorded step longer than the
    replayed step: they remain without the causes, which lowers the slowdown, and the causes may
    hide more such launches. But if hosts wait for transfers, late launches may follow from
    transfers that the causes delay, and belong to the causes entirely.
    """
    reference_s, uncertainty = judged.reference_s, judged.uncertainty
    by_work_s = reference_s if uncertainty.work is None else reference_s * uncertainty.work
    drawn = spread_by_blocks(judged.steps_s, by_work_s, uncertainty.cycle)
    if drawn is None:
        return None
    now, without = float(mean(judged.steps_s)), float(mean(reference_s))
    below, above = (hypot(half, THRESHOLDS.model, uncertainty.reference) for half in drawn)
    below = hypot(below, uncertainty.longer)
    slowdown, late = now / without, judged.recorded_s - now
    if late > 0:
        stays = log(slowdown * (without + late) / (now + late))
        below = hypot(below, THRESHOLDS.hidden * uncertainty.hiding * late / without) + stays
        if judged.hosts_wait:
            above = hypot(above, late / without)
    else:
        # The recording is faster than the replay if recorded operations overlap that the replay
        # runs one after the other.
        above = hypot(above, THRESHOLDS.hidden * -late / without)
    # A slowdown below 1 is excluded, as removing the causes makes no job slower.
    return max(slowdown * exp(-below), min(slowdown, 1.0)), slowdown * exp(above)


def too_few_steps(steps: int) -> str:
    """Return why the slowdown against the job without its causes has no interval."""
    return f"it needs {FEWEST_STEPS} steps, to tell how often a job has spells; {_these_are(steps)}"


def _too_few_to_draw(metrics: Metrics) -> str:
    return f"it needs {FEWEST_DRAWN} steps; {_these_are(len(metrics.simulated_s))}"


def _these_are(steps: int) -> str:
    return "this is one" if steps == 1 else f"these are {steps}"

"""The one number that says how slow a job is.

The published S holds a job against an ideal that is a mean and contains the straggler, so it
underestimates a strong one. Where causes explain the lost time, the job is held against itself
without them.
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

# S and the headline are both said in words where they differ by more.
WORTH_SAYING: Final = 0.02
# Why they do.
WHY_S_DIFFERS: Final = "its ideal is a mean over all workers, stragglers included"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides how wide the interval of the slowdown is."""

    # A model of a job is off by this much apart from all that is known to be uncertain, half of
    # a 95 % interval: without it steps that are exactly alike would have an interval of no
    # width.
    model: float = 0.0003
    # Launches that are late hide behind a cause that keeps workers waiting; without it steps
    # wait for them, for up to this many times what the recording shows of late launches.
    # Measured on synthetic jobs: without it slow workers are held in 78 % of the sessions, with
    # it in 96 %.
    hidden: float = 0.5


THRESHOLDS: Final = Thresholds()


class HeadlineKind(StrEnum):
    """What the headline holds a job against."""

    CAUSES = "causes"
    # the same where S is withheld: only a replay with late launches is near the recording
    LAUNCHES = "launches"
    PUBLISHED = "published"

    @property
    def without_causes(self) -> bool:
        """Return whether it is the job without its causes."""
        return self is not HeadlineKind.PUBLISHED


@dataclass(frozen=True, slots=True)
class Headline:
    """The slowdown that people are shown.

    What they are told is lost is a share 1 - 1/slowdown of each step, and no fix is promised more.
    """

    slowdown: float
    """Step time ÷ the reference."""
    ci95: Interval | None
    """Of the job, of which these steps are some: by drawing blocks of steps anew; where the
    headline is S that of S. None of fewer than 20 steps with causes, and of fewer than 5."""
    reference_step_time_s: float
    """Seconds: the mean step without the causes; of the published kind, the mean ideal step."""
    kind: HeadlineKind
    """``published`` where the headline is S, ``launches`` where S is withheld and a replay with the
    launches that causes make late is the recording."""
    ci95_reason: str | None = field(default=None, metadata=OMITTED)
    """Why there is no interval."""

    @property
    def waste(self) -> float:
        """Return the share of a step that is lost; no change brings back more of it."""
        return 1 - 1 / self.slowdown

    def differs(self, published: float) -> bool:
        """Return whether S says something else, so that both have to be said."""
        return differs(self.slowdown, published)


def differs(slowdown: float, published: float) -> bool:
    """Return whether a headline and S are so far apart that both have to be said."""
    return abs(slowdown / published - 1) > WORTH_SAYING


def why_published(*, named: bool) -> str:
    """Return why the headline is S; `named` is whether causes are named all the same."""
    return "over 10 % of the lost time has no known cause" if named else "no cause is named"


def headline(
    metrics: Metrics, published_ci95: Interval | None, diagnosis: Diagnosis, causes: Sequence[Cause]
) -> Headline:
    """Return the slowdown against the job without the reported causes.

    Where those are not known, S with its published interval.
    """
    known = [cause for cause in causes if cause.cause != UNKNOWN]
    judged = diagnosis.judged
    if not causes and metrics.discrepancy <= DISCREPANCY_LIMIT:
        by_chance = _without_chance(metrics, published_ci95, diagnosis.chance_s)
        if metrics.slowdown > by_chance.slowdown and by_chance.slowdown < STRAGGLING:
            return by_chance
    if not known or judged is None or not is_explained(judged.unknown_share):
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
    """Return the slowdown of a job without causes, where ranks lose time to one another."""
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
    """Return the 95 % interval of the slowdown of the job, of which some steps are judged.

    It grows with what these steps do not tell of the job, and with what they do not tell of
    themselves without the causes. Of that launches are a part which are late for no known cause:
    they make the recorded step longer than the replayed one. They stay without the causes, which
    were less slowdown, and others may show that these hide. But hosts that wait for transfers are
    held up by those that causes make late, so that what is late there may be the causes' all of it.

    Returns
    -------
    (float, float) or None
        None of too few steps.
    """
    reference_s, known = judged.reference_s, judged.uncertainty
    by_work_s = reference_s if known.work is None else reference_s * known.work
    drawn = spread_by_blocks(judged.steps_s, by_work_s, known.cycle)
    if drawn is None:
        return None
    now, without = float(mean(judged.steps_s)), float(mean(reference_s))
    below, above = (hypot(half, THRESHOLDS.model, known.reference) for half in drawn)
    below = hypot(below, known.longer)
    slowdown, late = now / without, judged.recorded_s - now
    if late > 0:
        stays = log(slowdown * (without + late) / (now + late))
        below = hypot(below, THRESHOLDS.hidden * known.hiding * late / without) + stays
        if judged.hosts_wait:
            above = hypot(above, late / without)
    else:
        # What runs side by side in the recording, and not in the replay.
        above = hypot(above, THRESHOLDS.hidden * -late / without)
    # Without what makes it slow no job takes longer.
    return max(slowdown * exp(-below), min(slowdown, 1.0)), slowdown * exp(above)


def too_few_steps(steps: int) -> str:
    """Return why there is no interval of the slowdown against the job without its causes."""
    return f"it needs {FEWEST_STEPS} steps, to tell how often a job has spells; {_these_are(steps)}"


def _too_few_to_draw(metrics: Metrics) -> str:
    return f"it needs {FEWEST_DRAWN} steps; {_these_are(len(metrics.simulated_s))}"


def _these_are(steps: int) -> str:
    return "this is one" if steps == 1 else f"these are {steps}"

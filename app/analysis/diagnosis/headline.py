"""The one number that says how slow a job is.

The published S holds a job against an ideal that is a mean and contains the straggler, so it
underestimates a strong one. Where causes explain the lost time, the job is held against itself
without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from app.analysis.diagnosis.diagnose import MOST_UNKNOWN, Diagnosis
from app.analysis.diagnosis.finding import UNKNOWN, Cause
from app.analysis.json_text import OMITTED
from app.analysis.replay.confidence import FEWEST_STEPS, Interval, ratio_by_blocks
from app.analysis.replay.means import mean
from app.analysis.replay.metrics import Metrics

# S and the headline are both said in words where they differ by more.
WORTH_SAYING: Final = 0.02
# How far 95 % of headlines are off for their own steps, at most: a worker's healthy speed is known
# from its peers', and what a cause alone costs from a model of the job (docs/fidelity.md).
ERROR: Final = 0.02
# Why they do.
WHY_S_DIFFERS: Final = "its ideal is a mean over all workers, stragglers included"


class HeadlineKind(StrEnum):
    """What the headline holds a job against."""

    CAUSES = "causes"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Headline:
    """The slowdown that people are shown.

    What they are told is lost is a share 1 - 1/slowdown of each step, and no fix is promised more.

    Parameters
    ----------
    slowdown : float
        Step time ÷ the reference.
    ci95 : (float, float) or None
        Of the job, of which these steps are some: by drawing blocks of steps anew; where the
        headline is S that of S. None of fewer than 20 steps with causes, and in a report of
        version 0.1.0, until it is analyzed again.
    reference_step_time_s : float
        Seconds: the mean step without the causes; of the published kind, the mean ideal step.
    kind : HeadlineKind
        ``causes``, or ``published`` where the headline is S.
    ci95_reason : str or None
        Why there is no interval.
    """

    slowdown: float
    ci95: Interval | None
    reference_step_time_s: float
    kind: HeadlineKind
    ci95_reason: str | None = field(default=None, metadata=OMITTED)

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
    metrics: Metrics, published_ci95: Interval, diagnosis: Diagnosis, causes: Sequence[Cause]
) -> Headline:
    """Return the slowdown against the job without its causes, or S where those are not known.

    Parameters
    ----------
    metrics : Metrics
    published_ci95 : (float, float)
        The interval of S.
    diagnosis : Diagnosis
    causes : sequence of Cause
        Those that are reported.
    """
    known = [cause for cause in causes if cause.cause != UNKNOWN]
    judged = diagnosis.judged
    if not known or judged is None or judged.unknown_share > MOST_UNKNOWN:
        ideal_s = metrics.ideal_step_s
        return Headline(metrics.slowdown, published_ci95, ideal_s, HeadlineKind.PUBLISHED)
    reference_s = mean(judged.reference_s)
    ci95 = ratio_by_blocks(judged.steps_s, judged.reference_s, error=ERROR)
    return Headline(
        diagnosis.slowdown,
        ci95,
        reference_s,
        HeadlineKind.CAUSES,
        ci95_reason=too_few_steps(len(judged.steps_s)) if ci95 is None else None,
    )


def too_few_steps(steps: int) -> str:
    """Return why there is no interval."""
    return (
        f"{steps} steps do not tell how often a job has spells: the interval needs {FEWEST_STEPS}"
    )

"""One sentence: how slow a job is, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.finding import UNKNOWN, Cause
from app.analysis.diagnosis.places import JobFacts
from app.analysis.replay.metrics import Metrics
from app.analysis.wording import percent

# From this slowdown on a job counts as straggling (paper, section 4).
STRAGGLING: Final = 1.1
# A second cause with this share of the lost time is worth naming in the same sentence.
_BESIDE: Final = 0.25

# ``none`` where there is no verdict.
Level = Literal["slow", "ok", "none"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How slow a job is and why.

    Parameters
    ----------
    sentence : str
        The verdict in words.
    level : ``slow``, ``ok`` or ``none``
        ``none`` where there is no verdict.
    """

    sentence: str
    level: Level


def verdict(  # noqa: PLR0913 - what is known of the session and of its causes
    job: JobFacts,
    metrics: Metrics,
    causes: Sequence[Cause],
    slowdown: float,
    limit: float,
    *,
    hidden: bool = False,
) -> Verdict:
    """Say in one sentence how slow the job is and why.

    Parameters
    ----------
    job : JobFacts
    metrics : Metrics
    causes : sequence of Cause
    slowdown : float
        As the diagnosis has it; counts where S alone is below the threshold.
    limit : float
        A discrepancy above it withholds the verdict.
    hidden : bool
        Whether computations hold collectives that are not recorded; that withholds it too.
    """
    if hidden:
        return Verdict(
            "No verdict: computations wait inside for collectives that are not recorded", "none"
        )
    if metrics.discrepancy > limit:
        sentence = (
            "No verdict: the replay differs from the recording by "
            f"{percent(metrics.discrepancy)}, the limit is {percent(limit, 0)}"
        )
        if causes:
            sentence += f"; {_why(job, causes)}"
        return Verdict(sentence, "none")
    shown = metrics.slowdown if metrics.slowdown >= STRAGGLING else slowdown
    if shown < STRAGGLING:
        sentence = f"{metrics.slowdown:.2f}× the ideal step time: no straggler to act on"
        return Verdict(sentence, "ok")
    known = bool(causes) and causes[0].cause != UNKNOWN
    why = f"because {_why(job, causes)}" if known else _for_nobody(job)
    return Verdict(f"{shown:.2f}× slower than ideal {why}", "slow")


def _why(job: JobFacts, causes: Sequence[Cause]) -> str:
    """Say what the first cause does and, where it costs enough, the second."""
    first, *rest = causes
    if first.cause == UNKNOWN:
        return _for_nobody(job)
    text = KINDS[first.cause].because(first, job)
    second = next((cause for cause in rest if cause.cause != UNKNOWN), None)
    if second and (second.contribution or 0.0) >= _BESIDE:
        text += f", and {KINDS[second.cause].because(second, job)}"
    return text


def _for_nobody(job: JobFacts) -> str:
    name = max(job.by_optype, key=job.by_optype.__getitem__)
    return f"for no single worker or stage; {name} costs most"

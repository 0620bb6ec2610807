"""Parts of a report: why a job is slow, and what helps."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.analysis.diagnosis.figures import FigureData
from app.analysis.diagnosis.places import View, Where
from app.analysis.json_text import OMITTED
from app.analysis.mitigation.fix import Balancing, Division, PlannedCollections


@dataclass(frozen=True, slots=True)
class NamedCause:
    """A cause of the lost time.

    Parameters
    ----------
    cause : str
        Its name, such as ``slow_worker``; ``unknown`` for what is left over.
    contribution : float or None
        Its fair share of the lost time; None where the cause before it may be it instead, and has
        the share of both.
    cost_s : float or None
        That share, seconds of a mean step.
    confidence : float or None
        How sure it is that this cause holds, 0 to 1; None of ``unknown``.
    evidence : tuple of str
        Sentences.
    views : tuple of (View or None)
        For each sentence the view of the session's page that shows it.
    where : Where
        Its places.
    figure : FigureData or None
        The data of its small figure.
    runner_up : str or None
        The next best explanation: the name of a cause.
    """

    cause: str
    contribution: float | None
    cost_s: float | None
    confidence: float | None
    evidence: tuple[str, ...]
    views: tuple[View | None, ...]
    where: Where
    figure: FigureData | None
    runner_up: str | None


@dataclass(frozen=True, slots=True)
class UnjudgedCause:
    """A cause that the session cannot show.

    Parameters
    ----------
    cause : str
        Its name.
    reason : str
        What is missing, in words.
    """

    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class DiagnosisSummary:
    """What the diagnosis holds in addition to its causes.

    Parameters
    ----------
    ruled_out : tuple of str
        Causes whose sign is not there, or that cost next to nothing.
    cannot_judge : tuple of UnjudgedCause
        Causes that the session cannot show.
    lost_s : float
        Seconds that a mean step loses, late launches with a cause included.
    slowdown : float
        Step time ÷ step time without what is lost: S where launches are not late, corrected where
        the ideal contains the straggler.
    """

    ruled_out: tuple[str, ...]
    cannot_judge: tuple[UnjudgedCause, ...]
    lost_s: float
    slowdown: float


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A change, and what its replay brings.

    Parameters
    ----------
    action : str
        A code, such as ``replace_worker``.
    title : str
        The change in words.
    predicted_step_time : float
        Mean step time with it, seconds.
    predicted_gain : float
        The share of today's step time that it saves.
    detail : str
        How that was replayed.
    cause : str or None
        The named cause that it removes; None where it is of none.
    at_most : bool
        Whether the gain is the most that such a change can bring: what is missing to say what it
        will is in `detail`.
    division : Division or None
        How the layers are to be divided, where that is the change.
    collections : PlannedCollections or None
        When garbage is to be collected on all workers, where that is the change.
    balancing : Balancing or None
        How sequences are to be divided over DP ranks and microbatches, where that is the change.
    """

    action: str
    title: str
    predicted_step_time: float
    predicted_gain: float
    detail: str
    cause: str | None = field(default=None, metadata=OMITTED)
    at_most: bool = field(default=False, metadata=OMITTED)
    division: Division | None = field(default=None, metadata=OMITTED)
    collections: PlannedCollections | None = field(default=None, metadata=OMITTED)
    balancing: Balancing | None = field(default=None, metadata=OMITTED)

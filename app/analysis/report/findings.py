"""Parts of a report: why a job is slow, and what helps."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.analysis.diagnosis.figures import FigureData
from app.analysis.diagnosis.places import View, Where
from app.analysis.json_text import OMITTED
from app.analysis.mitigation.fix import Balancing, Division, PlannedCollections


@dataclass(frozen=True, slots=True)
class NamedCause:
    """A cause of the lost time."""

    cause: str
    """Its name, such as ``slow_worker``; ``unknown`` for the remainder."""
    contribution: float | None
    """Its fair share of the lost time, within steps and between them; None where the cause before
    it may be it instead, and has the share of both."""
    cost_s: float | None
    """That share, seconds of a mean step and what passes before it."""
    confidence: float | None
    """How sure it is that this cause holds, 0 to 1; None of ``unknown``."""
    evidence: tuple[str, ...]
    """Sentences."""
    views: tuple[View | None, ...]
    """For each sentence the view of the session's page that shows it."""
    where: Where
    """Its places."""
    figure: FigureData | None
    """The data of its small figure."""
    runner_up: str | None
    """The next best explanation: the name of a cause."""
    between_s: float = field(default=0.0, metadata=OMITTED)
    """The part of `cost_s` that passes between steps; no key where there is none."""


@dataclass(frozen=True, slots=True)
class UnjudgedCause:
    """A cause that the session cannot show."""

    cause: str
    """Its name."""
    reason: str
    """What is missing, in words."""


@dataclass(frozen=True, slots=True)
class DiagnosisSummary:
    """What the diagnosis holds in addition to its causes."""

    ruled_out: tuple[str, ...]
    """Causes whose sign is not there, or that cost next to nothing."""
    cannot_judge: tuple[UnjudgedCause, ...]
    """Causes that the session cannot show."""
    lost_s: float
    """Seconds that a mean step loses, late launches with a cause included; none between steps."""
    slowdown: float
    """Step time ÷ step time without what is lost: S where launches are not late, corrected where
    the ideal contains the straggler."""
    turn_s: float = field(default=0.0, metadata=OMITTED)
    """Seconds that a mean step takes with what passes before it, over steps that follow a recorded
    one; no key where there are none."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A change, and what its replay brings."""

    action: str
    """A code, such as ``replace_worker``."""
    title: str
    """The change in words."""
    predicted_step_time: float
    """Mean step time with it, seconds."""
    predicted_gain: float
    """The share of today's step time that it saves."""
    detail: str
    """How that was replayed."""
    cause: str | None = field(default=None, metadata=OMITTED)
    """The named cause that it removes; None where it is of none."""
    at_most: bool = field(default=False, metadata=OMITTED)
    """Whether the gain is the most that such a change can bring: what is missing to say what it
    will is in `detail`."""
    division: Division | None = field(default=None, metadata=OMITTED)
    """How the layers are to be divided, where that is the change."""
    collections: PlannedCollections | None = field(default=None, metadata=OMITTED)
    """When garbage is to be collected on all workers, where that is the change."""
    balancing: Balancing | None = field(default=None, metadata=OMITTED)
    """How sequences are to be divided over DP ranks and microbatches, where that is the change."""

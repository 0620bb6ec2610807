"""A cause that the data show, what it would change to be rid of it, and a cause as reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.figures import FigureData
from app.analysis.diagnosis.places import View, Where
from app.analysis.replay.layout.dense import FloatArray

# The name of what no cause explains.
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What the session would be without a cause, by node; arrays broadcast to (steps, dp).

    Parameters
    ----------
    less_ns : mapping
        Time that computations lose.
    times : mapping
        Factors of what is left of computations.
    transfers_ns : mapping
        Transfer durations.
    on_time : mapping of bool arrays
        Launches that are no longer late.
    """

    less_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    times: Mapping[int, FloatArray] = field(default_factory=dict)
    transfers_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    on_time: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line for people, and which view of the session shows it."""

    text: str
    view: View | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a finding may be instead, with the same sign and the same place.

    Parameters
    ----------
    most : float
        How sure either can be at most.
    cause : str or None
        The other cause; None where only the finding itself is in doubt.
    evidence : tuple of Evidence
    where : Where
        As in `Finding`.
    """

    most: float
    cause: str | None
    evidence: tuple[Evidence, ...]
    where: Where


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """A cause that left its sign in the data, before anyone knows what it costs.

    Parameters
    ----------
    change : Change
        The session without it.
    evidence : tuple of Evidence
    where : Where
    figure : FigureData or None
        Data of a small picture.
    late_ns : mapping
        Launch delays that it makes, by node, shape (steps, dp). Replays have them unless the cause
        is removed.
    doubt : Doubt or None
        What it may be instead.
    regular : frozenset of int
        Nodes whose `late_ns` holds what regularly passes before their launch, too, and of all DP
        ranks: a job that is replayed without it is replayed without such delays.
    lags_ns : mapping of (node, node) to float
        What passes before launches without it, after what they follow.
    unsure : float
        How far a step without it may be off, relative, for what nobody knows of the healthy job:
        half of a 95 % interval. What steps differ by is no part of it.
    longer : float
        How much longer it may be besides, by what a healthy job does, too, and no replay shows; of
        much the difference of the logarithms.
    work : float64 array, shape (steps,), or None
        What each step computes ÷ the mean; without the cause all of them compute the mean.
    cycle : int or None
        Steps from one time to the next, where it comes again and again by its nature.
    hiding : float
        The share of the workers that it keeps waiting, less where it does so a part of the time:
        what they launch late does not show.
    """

    change: Change
    evidence: tuple[Evidence, ...]
    where: Where = field(default_factory=Where)
    figure: FigureData | None = None
    late_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    doubt: Doubt | None = None
    regular: frozenset[int] = frozenset()
    lags_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    unsure: float = 0.0
    longer: float = 0.0
    work: FloatArray | None = None
    cycle: int | None = None
    hiding: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """A cause that costs enough to be named.

    Parameters
    ----------
    cause : str
        The name of a kind of cause, or ``unknown``.
    contribution : float
        Its fair share of the lost time.
    cost_s : float
        That share in seconds of a mean step.
    confidence : float or None
        How sure the diagnosis is that this cause holds, 0 to 1.
    saves : float or None
        The share of a mean step that removing it alone saves.
    runner_up : str or None
        The next best explanation.
    """

    cause: str
    contribution: float | None
    cost_s: float | None
    confidence: float | None
    evidence: tuple[Evidence, ...]
    where: Where = field(default_factory=Where)
    figure: FigureData | None = None
    saves: float | None = None
    runner_up: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Steps of the most frequent shape as they are and as they would be, shape (steps,), seconds.

    Parameters
    ----------
    steps_s : float64 array
        With launches late that have a cause.
    reference_s : float64 array
        Without the causes; where those do not explain the loss, ideal if that is faster.
    unknown_share : float
        Share of the lost time that no cause explains.
    recorded_s : float
        The mean of these steps as they were recorded.
    unsure : float
        How far the reference may be off, relative, for what nobody knows of the healthy job: half
        of a 95 % interval.
    longer : float
        How much longer it may be besides.
    work : float64 array, shape (steps,), or None
        What each step computes ÷ the mean, where in the reference all of them compute the mean.
    cycle : int or None
        Steps from one time to the next, where the only cause comes again and again by its nature.
    hosts_wait : bool
        Whether launches regularly take time after what they wait for.
    hiding : float
        The share of the workers that causes keep waiting.
    """

    steps_s: FloatArray
    reference_s: FloatArray
    unknown_share: float
    recorded_s: float
    unsure: float = 0.0
    longer: float = 0.0
    work: FloatArray | None = None
    cycle: int | None = None
    hosts_wait: bool = False
    hiding: float = 1.0

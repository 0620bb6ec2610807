"""A cause that the data show, what it would change to be rid of it, and a cause as reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.figures import FigureData
from app.analysis.diagnosis.places import View, Where
from app.analysis.diagnosis.uncertainty import Uncertainty
from app.analysis.replay.layout.dense import FloatArray

# The name of what no cause explains.
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What the session would be without a cause, by node; arrays broadcast to (steps, dp)."""

    # Durations in place of the recorded ones, before all other changes: where ranks run other
    # numbers of microbatches.
    instead_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    # Time that computations lose, factors of their remaining time, and durations of transfers.
    less_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    times: Mapping[int, FloatArray] = field(default_factory=dict)
    transfers_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    # Launches that are no longer late.
    on_time: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line for people, and which view of the session shows it."""

    text: str
    view: View | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """That a finding may be another cause with the same sign, or an accident."""

    most: float  # the highest confidence that either can have
    # Where and why it may be the cause that the registry says; None where only the finding itself
    # is in doubt.
    alternative: Alternative | None = None
    # Whether some of its time may be another cause's, which stays when it is removed.
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Alternative:
    """The other cause that a finding may be, as in `Finding`."""

    evidence: tuple[Evidence, ...] = ()
    where: Where = field(default_factory=Where)


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """How a cause makes launches late."""

    # Launch delays that it makes, by node, shape (steps, dp). Replays have them unless the cause
    # is removed.
    late_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    # Nodes whose `late_ns` also holds what regularly passes before their launch, on all DP ranks:
    # a job that is replayed without it is replayed without such delays.
    regular: frozenset[int] = frozenset()
    # What passes before launches without it, after what they follow: by (node, node).
    lags_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # Of what regularly passes between two steps of a rank: how much of that is among `late_ns`, of
    # what steps begin with.
    turn_ns: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """A cause that left its sign in the data, before its cost is known."""

    change: Change  # the session without it
    evidence: tuple[Evidence, ...]
    where: Where = field(default_factory=Where)
    figure: FigureData | None = None  # data of a small picture
    launches: Launches = field(default_factory=Launches)
    uncertainty: Uncertainty = field(default_factory=Uncertainty)
    doubt: Doubt | None = None  # what it may be instead


@dataclass(frozen=True, slots=True, eq=False)
class Standstill:
    """What a cause takes between steps, where nothing is replayed."""

    lost_ns: FloatArray  # (all analyzed steps,): before each, 0 where it is not known
    evidence: tuple[Evidence, ...]
    most: float  # the highest confidence that it can have
    figure: FigureData | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """A cause that costs enough to be named."""

    cause: str  # the name of a kind of cause, or ``unknown``
    contribution: float | None  # its fair share of the lost time
    cost_s: float | None  # that share in seconds of a mean step and what passes before it
    confidence: float | None  # how sure the diagnosis is that this cause holds, 0 to 1
    evidence: tuple[Evidence, ...]
    where: Where = field(default_factory=Where)
    figure: FigureData | None = None
    saves: float | None = None  # the share of a mean step that removing it alone saves
    at_most: bool = False  # whether that is the most that it can save
    runner_up: str | None = None  # the next best explanation
    between_s: float = 0.0  # the part of `cost_s` that passes between steps


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Steps of the most frequent shape as they are and would be, shape (steps,), seconds."""

    steps_s: FloatArray  # with launches late that have a cause
    # Without the causes; where those do not explain the loss, ideal if that is faster.
    reference_s: FloatArray
    unknown_share: float  # share of the lost time that no cause explains
    recorded_s: float  # the mean of these steps as they were recorded
    uncertainty: Uncertainty = field(default_factory=Uncertainty)  # of the reference
    hosts_wait: bool = False  # whether launches regularly take time after what they wait for

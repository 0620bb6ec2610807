"""A finding with its evidence, figure and uncertainty, and a cause as reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.locations import KEYS, View, Where, Worker
from app.analysis.json_text import OMITTED
from app.analysis.replay.layout.dense import FloatArray

# ---- The data of the small figure of a cause: `kind` says which --------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSteps:
    """How slow the slowest worker is in each step."""

    kind: Literal["worker_steps"] = "worker_steps"
    worker: Worker
    """The slowest one: (DP rank, stage)."""
    ratio: tuple[float, ...]
    """Its computing time ÷ that of its stage's peers, in each compared step."""
    times: float | None = field(default=None, metadata=OMITTED)
    """The same over its slow steps, the mean of forward and backward; no key in older reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """How much each stage has to compute."""

    kind: Literal["stage_load"] = "stage_load"
    relative: tuple[float, ...]
    """Computing time of each stage ÷ the mean of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Forwards that stall."""

    kind: Literal["stalls"] = "stalls"
    by_step_s: tuple[float, ...]
    """Seconds lost in stalls in each step, all workers added."""
    by_worker: tuple[tuple[int, ...], ...]
    """Stalls on each worker, [dp][pp]."""
    longest_s: float
    """The longest stall, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateLaunches:
    """How late the first operations of each step are launched."""

    kind: Literal["late_launches"] = "late_launches"
    by_step_s: tuple[float, ...]
    """Seconds, the latest DP rank of each step."""
    by_dp_s: tuple[float, ...] = field(default=(), metadata=OMITTED)
    """Seconds, the mean of each DP rank; no key where the ranks are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLaunches:
    """How long computations are held up."""

    kind: Literal["held_launches"] = "held_launches"
    by_step_s: tuple[float, ...]
    """Seconds in each step, all workers added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How slow the links between pipeline stages are."""

    kind: Literal["links"] = "links"
    ends: tuple[tuple[int, int], ...]
    """The stages at the ends of each link: (stage, stage)."""
    ratio: tuple[tuple[float, ...], ...]
    """Transfer time ÷ the median of its type, of each link and DP rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLevels:
    """How slow all transfers are in each step."""

    kind: Literal["transfer_levels"] = "transfer_levels"
    by_step: tuple[float, ...]
    """Transfer time of the median link ÷ that in the quietest steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputingLevels:
    """How slow all workers compute in each step."""

    kind: Literal["computing_levels"] = "computing_levels"
    by_step: tuple[float, ...]
    """Computing time of the median worker ÷ that in its best steps."""
    when: str
    """In which steps they are slow, in words."""
    growth: float | None = field(default=None, metadata=OMITTED)
    """By what share each recorded step is longer than the one before, where they grow all along."""
    likely: str = field(default="", metadata=OMITTED)
    """What is most likely to slow them, in words; no key where nothing tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How slow the slowest worker of each step is, where it is another one each time."""

    kind: Literal["rotation"] = "rotation"
    by_step: tuple[float, ...]
    """Its computing time ÷ what it takes in the median step."""
    slowest: tuple[tuple[int, ...], ...]
    """In how many steps each worker is the slowest, [dp][pp]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRanks:
    """For which of its ranks the slowest group waits: tensor, context or expert-parallel."""

    kind: Literal["late_ranks"] = "late_ranks"
    worker: Worker
    """The group's place; of an expert-parallel group that of its first rank: (DP rank, stage)."""
    ranks: tuple[int, ...]
    """Its global ranks."""
    share: tuple[float, ...]
    """Of the waiting, for each rank; together 1."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram of microbatches by their time ÷ the mean."""

    __pydantic_config__: ClassVar = KEYS

    from_: float
    """The lower edge of the first class and the upper edge of the last one."""
    to: float
    """The lower edge of the first class and the upper edge of the last one."""
    counts: tuple[int, ...]
    """Microbatches of each class; all classes are equally wide."""


@dataclass(frozen=True, slots=True)
class Squares:
    """An even sample of microbatches: their recorded sequence lengths against their time."""

    sum_of_squares: tuple[float, ...]
    """Sum of the squares of a microbatch's sequence lengths, tokens²."""
    relative: tuple[float, ...]
    """Time of the same microbatch ÷ the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Microbatches that take different times."""

    kind: Literal["lengths"] = "lengths"
    spread: Spread
    """How their times differ."""
    squares: Squares | None = field(default=None, metadata=OMITTED)
    """Their sequence lengths; no key where the metadata do not hold sequence lengths."""


FigureData: TypeAlias = (
    WorkerSteps
    | StageLoad
    | Stalls
    | LateLaunches
    | HeldLaunches
    | Links
    | TransferLevels
    | ComputingLevels
    | Rotation
    | LateRanks
    | Lengths
)


# ---- How far a step without causes may be off, which makes the interval of the slowdown wider ----


@dataclass(frozen=True, slots=True, eq=False)
class Uncertainty:
    """How far a step without a cause may be off, apart from what steps differ by."""

    # Relative half width of the 95 % interval of the step time without the cause.
    reference: float = 0.0
    # How much longer that step may be in addition, by what a healthy job does too and no replay
    # shows; of large values the difference of the logarithms.
    longer: float = 0.0
    # (steps,): what each step computes ÷ the mean; without the cause all of them compute the mean
    work: FloatArray | None = None
    # Steps from one occurrence to the next, where the cause recurs by its nature.
    cycle: int | None = None
    # The share of the workers that the cause keeps waiting, less where it does so part of the
    # time: what they launch late does not show.
    hiding: float = 1.0

    @staticmethod
    def combine(parts: Sequence[Uncertainty]) -> Uncertainty:
        """Return the uncertainty of a step without several causes, which are independent."""
        return Uncertainty(
            reference=hypot(*(part.reference for part in parts)),
            longer=hypot(*(part.longer for part in parts)),
            work=next((part.work for part in parts if part.work is not None), None),
            cycle=parts[0].cycle if len(parts) == 1 else None,
            hiding=max((part.hiding for part in parts), default=1.0),
        )


# ---- A cause that the data show, what it would change to be rid of it, and a cause as reported ---


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
    step_gap_ns: float = 0.0


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

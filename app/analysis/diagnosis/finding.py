"""Findings of the diagnosis, and causes as reported: evidence, figures and uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot
from typing import ClassVar, Final, Literal, TypeAlias

from app.analysis.diagnosis.locations import KEYS, View, Where, Worker
from app.analysis.json_text import OMITTED
from app.analysis.quantities import BoolArray, FloatArray

# Data of the small figure of a cause; the field `kind` distinguishes the classes.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSteps:
    """Slowness of the slowest worker in each step."""

    kind: Literal["worker_steps"] = "worker_steps"
    worker: Worker
    """Slowest worker: (DP rank, stage)."""
    ratio: tuple[float, ...]
    """Computing time of the worker ÷ computing time of its stage's peers, in each compared step."""
    times: float | None = field(default=None, metadata=OMITTED)
    """Computing time of the worker ÷ that of its peers over its slow steps, the mean of forward and
    backward; no key in older reports.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """Computing time of each stage, relative to the mean."""

    kind: Literal["stage_load"] = "stage_load"
    relative: tuple[float, ...]
    """Computing time of each stage ÷ the mean over all stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Stalls of forwards, by step and by worker."""

    kind: Literal["stalls"] = "stalls"
    by_step_s: tuple[float, ...]
    """Time lost in stalls in each step, the sum over all workers, seconds."""
    by_worker: tuple[tuple[int, ...], ...]
    """Number of stalls on each worker, [dp][pp]."""
    longest_s: float
    """Duration of the longest stall, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateLaunches:
    """Delay with which the first operations of each step are launched."""

    kind: Literal["late_launches"] = "late_launches"
    by_step_s: tuple[float, ...]
    """Launch delay of the latest DP rank in each step, seconds."""
    by_dp_s: tuple[float, ...] = field(default=(), metadata=OMITTED)
    """Mean launch delay of each DP rank, seconds; no key if the DP ranks are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLaunches:
    """Time for which computations are held up."""

    kind: Literal["held_launches"] = "held_launches"
    by_step_s: tuple[float, ...]
    """Time for which computations are held up in each step, the sum over all workers, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Slowness of the links between pipeline stages."""

    kind: Literal["links"] = "links"
    ends: tuple[tuple[int, int], ...]
    """Pair of stages at the ends of each link: (stage, stage)."""
    ratio: tuple[tuple[float, ...], ...]
    """Transfer time of each link and DP rank ÷ the median of its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLevels:
    """Slowness of all transfers in each step."""

    kind: Literal["transfer_levels"] = "transfer_levels"
    by_step: tuple[float, ...]
    """Transfer time of the median link in each step ÷ transfer time in the quietest steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputingLevels:
    """Slowness of the computations of all workers in each step."""

    kind: Literal["computing_levels"] = "computing_levels"
    by_step: tuple[float, ...]
    """Computing time of the median worker in each step ÷ computing time in its best steps."""
    when: str
    """Steps in which the workers are slow, in words."""
    growth: float | None = field(default=None, metadata=OMITTED)
    """Share by which each recorded step is longer than the previous one; None unless steps grow
    steadily.
    """
    likely: str = field(default="", metadata=OMITTED)
    """Likeliest reason of the slowness, in words; no key if the session shows no reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Slowness of each step's slowest worker, if the slowest worker changes from step to step."""

    kind: Literal["rotation"] = "rotation"
    by_step: tuple[float, ...]
    """Computing time of each step's slowest worker ÷ the worker's time in its median step."""
    slowest: tuple[tuple[int, ...], ...]
    """Number of steps in which each worker is the slowest, [dp][pp]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRanks:
    """Shares of the waiting that each tensor-, context- or expert-parallel rank causes."""

    kind: Literal["late_ranks"] = "late_ranks"
    worker: Worker
    """Worker of the group, or of the first rank of an expert-parallel group: (DP rank, stage)."""
    ranks: tuple[int, ...]
    """Global ranks of the tensor-, context- or expert-parallel group whose members `share`
    compares.
    """
    share: tuple[float, ...]
    """Share of the group's waiting that each rank causes; the shares add up to 1."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Histogram of microbatches over their time ÷ the mean time."""

    __pydantic_config__: ClassVar = KEYS

    from_: float
    """The lower edge of the first class and the upper edge of the last one."""
    to: float
    """The lower edge of the first class and the upper edge of the last one."""
    counts: tuple[int, ...]
    """Number of microbatches in each class; all classes are equally wide."""


@dataclass(frozen=True, slots=True)
class Squares:
    """An even sample of microbatches: recorded sequence lengths and times."""

    sum_of_squares: tuple[float, ...]
    """Σs² of each sampled microbatch's sequence lengths s, tokens²."""
    relative: tuple[float, ...]
    """Time of each sampled microbatch ÷ the mean time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Differences in the times of microbatches."""

    kind: Literal["lengths"] = "lengths"
    spread: Spread
    """Histogram of the times of microbatches."""
    squares: Squares | None = field(default=None, metadata=OMITTED)
    """Sequence lengths and times of sampled microbatches; no key if the metadata lack lengths."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Uncertainty:
    """Uncertainty of the step time without a cause, beyond the variation among steps."""

    # relative half width of the 95 % interval of the step time without the cause
    reference: float = 0.0
    # additional length of that step by delays of a healthy job that no replay shows, as a
    # difference of logarithms
    longer: float = 0.0
    # (steps,): work of each step ÷ the mean work; without the cause every step has the mean work
    work: FloatArray | None = None
    # number of steps from one occurrence of the cause to the next, if the cause is periodic
    cycle: int | None = None
    # Share of the workers that the cause keeps waiting (less if it does so part of the time):
    # waiting hides late launches of these workers.
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


# Name of the cause for lost time that no other cause explains.
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Changes of a session that remove a cause, by node; arrays broadcast to (steps, dp)."""

    # durations that replace the recorded durations before all other changes, for ranks with another
    # number of microbatches
    instead_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    less_ns: Mapping[int, FloatArray] = field(default_factory=dict)  # time off computations
    times: Mapping[int, FloatArray] = field(default_factory=dict)  # factors of what remains
    transfers_ns: Mapping[int, FloatArray] = field(default_factory=dict)  # longest transfers
    on_time: Mapping[int, BoolArray] = field(default_factory=dict)  # launches not late


@dataclass(frozen=True, slots=True)
class Evidence:
    """A sentence of evidence, and the view of the session that shows it."""

    text: str
    view: View | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """Doubt about a finding: it may be another cause with the same sign, or an accident."""

    max_confidence: float  # of the finding and of the alternative
    # place and evidence of the alternative cause, whose name is in the registry; None if only the
    # finding itself is in doubt
    alternative: Alternative | None = None
    # Whether part of the finding's time may belong to another cause, and remain when this cause is
    # removed.
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Alternative:
    """Evidence, place and removal of the alternative cause of a finding in doubt."""

    evidence: tuple[Evidence, ...] = ()
    where: Where = field(default_factory=Where)
    # Changes that remove the alternative cause; None if it has the same changes as the finding
    change: Change | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """Late launches due to a cause."""

    # launch delays by node, shape (steps, dp), ns; replays contain these unless the cause is
    # removed
    late_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    # Nodes whose `late_ns` includes the regular delay of all DP ranks: for these nodes the replayed
    # graph has no regular delay.
    regular: frozenset[int] = frozenset()
    # regular launch delays that remain without the cause, by (node, its input), ns
    lags_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    # part of a rank's regular gap between steps that `late_ns` of the first operations includes, ns
    step_gap_ns: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """A cause whose sign is in the data, before its cost is known."""

    change: Change  # removes it from the session
    evidence: tuple[Evidence, ...]
    where: Where = field(default_factory=Where)
    figure: FigureData | None = None
    launches: Launches = field(default_factory=Launches)
    uncertainty: Uncertainty = field(default_factory=Uncertainty)
    doubt: Doubt | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GapLoss:
    """Time between steps that a cause takes; no replay covers this time."""

    lost_ns: FloatArray  # (analyzed steps,): before each step; 0 if unknown
    evidence: tuple[Evidence, ...]
    max_confidence: float
    figure: FigureData | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """A cause that costs enough to be named."""

    cause: str  # the name of a kind of cause, or ``unknown``
    contribution: float | None  # its fair share of the lost time
    cost_s: float | None  # that share in seconds of a mean step and the gap before it
    confidence: float | None  # 0 to 1
    evidence: tuple[Evidence, ...]
    where: Where = field(default_factory=Where)
    figure: FigureData | None = None
    saves: float | None = None  # share of a mean step that its removal alone saves
    at_most: bool = False  # whether `saves` is an upper bound
    runner_up: str | None = None  # the next best explanation
    between_s: float = 0.0  # the part of `cost_s` that passes between steps


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Times of the steps of the most frequent shape with and without the causes, (steps,), s."""

    steps_s: FloatArray  # replayed, with the late launches that have a cause
    # Step times replayed without the causes; ideal times if the causes do not explain the loss and
    # the ideal is faster.
    reference_s: FloatArray
    unknown_share: float  # share of the lost time that no cause explains
    recorded_s: float  # mean recorded step
    uncertainty: Uncertainty = field(default_factory=Uncertainty)  # of the reference
    hosts_wait: bool = False  # whether launches regularly lag behind the transfers they wait for

"""The data of the small figure of a cause: `kind` says which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from app.analysis.diagnosis.places import KEYS, Worker
from app.analysis.json_text import OMITTED


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

"""The data of the small figure of a cause: `kind` says which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from app.analysis.diagnosis.places import KEYS, Worker
from app.analysis.json_text import OMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSteps:
    """How slow the slowest worker is in each step.

    Parameters
    ----------
    worker : (DP rank, stage)
        The slowest one.
    ratio : tuple of float
        Its computing time ÷ that of its stage's peers, in each compared step.
    times : float, optional
        The same over its slow steps, the mean of forward and backward; no key in older reports.
    """

    kind: Literal["worker_steps"] = "worker_steps"
    worker: Worker
    ratio: tuple[float, ...]
    times: float | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """How much each stage has to compute.

    Parameters
    ----------
    relative : tuple of float
        Computing time of each stage ÷ the mean of all.
    """

    kind: Literal["stage_load"] = "stage_load"
    relative: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Forwards that stall.

    Parameters
    ----------
    by_step_s : tuple of float
        Seconds lost in stalls in each step, all workers added.
    by_worker : tuple of tuple of int
        Stalls on each worker, [dp][pp].
    longest_s : float
        The longest stall, seconds.
    """

    kind: Literal["stalls"] = "stalls"
    by_step_s: tuple[float, ...]
    by_worker: tuple[tuple[int, ...], ...]
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LateLaunches:
    """How late the first operations of each step are launched.

    Parameters
    ----------
    by_step_s : tuple of float
        Seconds, the latest DP rank of each step.
    by_dp_s : tuple of float
        Seconds, the mean of each DP rank; no key where the ranks are alike.
    """

    kind: Literal["late_launches"] = "late_launches"
    by_step_s: tuple[float, ...]
    by_dp_s: tuple[float, ...] = field(default=(), metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLaunches:
    """How long computations are held up.

    Parameters
    ----------
    by_step_s : tuple of float
        Seconds in each step, all workers added.
    """

    kind: Literal["held_launches"] = "held_launches"
    by_step_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How slow the links between pipeline stages are.

    Parameters
    ----------
    ends : tuple of (stage, stage)
        The stages at the ends of each link.
    ratio : tuple of tuple of float
        Transfer time ÷ the median of its type, of each link and DP rank.
    """

    kind: Literal["links"] = "links"
    ends: tuple[tuple[int, int], ...]
    ratio: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLevels:
    """How slow all transfers are in each step.

    Parameters
    ----------
    by_step : tuple of float
        Transfer time of the median link ÷ that in the quietest steps.
    """

    kind: Literal["transfer_levels"] = "transfer_levels"
    by_step: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRanks:
    """For which of its ranks the slowest group waits: tensor, context or expert-parallel.

    Parameters
    ----------
    worker : (DP rank, stage)
        The group's place; of an expert-parallel group that of its first rank.
    ranks : tuple of int
        Its global ranks.
    share : tuple of float
        Of the waiting, for each rank; together 1.
    """

    kind: Literal["late_ranks"] = "late_ranks"
    worker: Worker
    ranks: tuple[int, ...]
    share: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram of microbatches by their time ÷ the mean.

    Parameters
    ----------
    from_, to : float
        The lower edge of the first class and the upper edge of the last one.
    counts : tuple of int
        Microbatches of each class; all classes are equally wide.
    """

    __pydantic_config__: ClassVar = KEYS

    from_: float
    to: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Squares:
    """An even sample of microbatches: their recorded sequence lengths against their time.

    Parameters
    ----------
    sum_of_squares : tuple of float
        Sum of the squares of a microbatch's sequence lengths, tokens².
    relative : tuple of float
        Time of the same microbatch ÷ the mean.
    """

    sum_of_squares: tuple[float, ...]
    relative: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Microbatches that take different times.

    Parameters
    ----------
    spread : Spread
        How their times differ.
    squares : Squares, optional
        Their sequence lengths; no key where the metadata do not hold sequence lengths.
    """

    kind: Literal["lengths"] = "lengths"
    spread: Spread
    squares: Squares | None = field(default=None, metadata=OMITTED)


FigureData: TypeAlias = (
    WorkerSteps
    | StageLoad
    | Stalls
    | LateLaunches
    | HeldLaunches
    | Links
    | TransferLevels
    | LateRanks
    | Lengths
)

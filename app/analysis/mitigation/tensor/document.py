"""Types of ``paceline.mitigation/1``: advice on the workload of a tensor-parallel group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

SCHEMA: Final = "paceline.mitigation/1"


class Method(StrEnum):
    """Method of workload control, in order of preference among methods of equal time."""

    NONE = "none"
    STICKY = "sticky"
    WATERFILL = "waterfill"
    MIGRATE = "migrate"
    SEMI = "semi"
    ZERO = "zero"

    @property
    def short(self) -> str:
        """Return the method's short name, for example ``ZERO``, ``MIG`` or ``water-filled``."""
        return _SHORT[self]


_SHORT: Final = {
    Method.NONE: "none",
    Method.ZERO: "ZERO",
    Method.MIGRATE: "MIG",
    Method.SEMI: "SEMI",
    Method.WATERFILL: "water-filled",
    Method.STICKY: "sticky",
}


class Criterion(StrEnum):
    """Target time of stragglers: mean or minimum time of the ranks."""

    T_MIN = "t_min"
    T_AVG = "t_avg"


class LossRisk(StrEnum):
    """Risk of resizing for the model's accuracy."""

    NONE = "none"  # every column is computed
    SMALL = "small"  # within the accuracy budget; the loss has to be measured
    BEYOND_BUDGET = "beyond_budget"


@dataclass(frozen=True, slots=True)
class RankShare:
    """Share of work of a rank under an alternative."""

    rank: int
    """Rank within the group, from 0."""
    time_s: float
    """T without any plan: seconds of a step without waiting at collectives."""
    predicted_time_s: float
    """T under the alternative, seconds."""
    gamma: float
    """The share of its columns that is not computed: `resized_columns` ÷ K."""
    resized_columns: int
    """Columns that no rank computes in the step."""
    migrated_columns: int
    """Columns that other ranks compute."""
    received_columns: int
    """Columns that the rank computes for others."""
    to: Mapping[str, int]
    """Migrated columns by the rank that computes them."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Division of the work over ranks by one method, with its predicted step time."""

    method: Method
    """Method of workload control."""
    criterion: Criterion | None
    """Target time of stragglers in Eq. 1; None for methods without one."""
    predicted_time_s: float
    """T of the slowest rank, for which the step waits, seconds."""
    speedup: float
    """The slowest rank's time without a plan ÷ the predicted one."""
    loss_risk: LossRisk
    """``none`` where every column is computed, ``small`` within the accuracy budget,
    ``beyond_budget`` above it."""
    within_budget: bool
    """Whether no rank's γ is above the accuracy budget."""
    extra_bytes: int | None
    """Additional traffic, bytes: in each step, with ``sticky`` once. None where the specification
    has no sizes."""
    ranks: tuple[RankShare, ...]
    """All ranks of the group."""

    @property
    def gamma(self) -> float:
        """Return the largest share of a rank's columns that is left out."""
        return max(rank.gamma for rank in self.ranks)

    @property
    def migrated_columns(self) -> int:
        """Return the number of columns that ranks compute for other ranks."""
        return sum(rank.migrated_columns for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class MitigationDocument:
    """Advice on a tensor-parallel group, schema ``paceline.mitigation/1``."""

    schema: Literal["paceline.mitigation/1"]
    columns: int
    """K, columns of each rank."""
    unit: int
    """Columns that move or are left out together, such as those of a head."""
    accuracy_budget: float
    """Largest accepted γ."""
    fastest_time_s: float
    """T of the fastest rank without any plan, seconds."""
    slowest_time_s: float
    """T of the slowest rank without any plan, seconds."""
    stragglers: tuple[int, ...]
    """Ranks that take over 1.10 × the fastest's time, the slowest first."""
    costs_sampled: bool
    """Whether the cost of communication was sampled; otherwise predictions count it as free."""
    alternatives: tuple[Alternative, ...]
    """Best first: by predicted time within the budget, then those beyond it."""
    chosen: Method
    """The method of the first alternative, which is always within the budget; ``none`` where no
    rank straggles."""

    @property
    def best(self) -> Alternative:
        """Return the chosen alternative."""
        return next(
            item for item in self.alternatives if item.method is self.chosen and item.within_budget
        )

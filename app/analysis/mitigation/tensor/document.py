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
    SMALL = "small"  # γ is within the budget and at most `SMALL_GAMMA`
    LARGE = "large"  # γ is within the budget and over `SMALL_GAMMA`
    BEYOND_BUDGET = "beyond_budget"


# Largest γ whose risk counts as small. Measured losses (docs/tensor-measured.md) are 1 to 5
# percentage points at this γ and 2 to 13 at larger ones.
SMALL_GAMMA: Final = 0.25


def risk_of(gamma: float, *, within_budget: bool) -> LossRisk:
    """Return the risk of leaving out the share γ of a rank's columns."""
    if not gamma:
        return LossRisk.NONE
    if not within_budget:
        return LossRisk.BEYOND_BUDGET
    return LossRisk.SMALL if gamma <= SMALL_GAMMA else LossRisk.LARGE


@dataclass(frozen=True, slots=True)
class RankShare:
    """Share of the work that a rank gets under another division of the tensor-parallel units."""

    rank: int
    """Number of the rank within the group, from 0."""
    time_s: float
    """T without any plan: the time of a step without waiting at collectives, seconds."""
    predicted_time_s: float
    """T under the alternative, seconds."""
    gamma: float
    """γ, the share of the rank's columns that no rank computes: `resized_columns` ÷ K."""
    resized_columns: int
    """Number of the rank's columns that no rank computes in the step."""
    migrated_columns: int
    """Number of the rank's columns that other ranks compute."""
    received_columns: int
    """Number of columns that the rank computes for other ranks."""
    to: Mapping[str, int]
    """Number of migrated columns by the rank that computes them."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Division of the work over ranks by one method, with its predicted step time."""

    method: Method
    """Method of workload control."""
    criterion: Criterion | None
    """Target time of stragglers in Eq. 1: mean or minimum; None for methods without a target time.
    """
    predicted_time_s: float
    """T of the slowest rank, for which the step waits, seconds."""
    speedup: float
    """Slowest rank's time without a plan ÷ its predicted time."""
    loss_risk: LossRisk
    """Risk by the largest γ: ``none`` if every column is computed, ``beyond_budget`` if γ is above
    the accuracy budget; within the budget ``small`` up to γ = 0.25, else ``large``. The loss itself
    is not predicted and has to be measured.
    """
    within_budget: bool
    """Whether the γ of every rank is within the accuracy budget."""
    extra_bytes: int | None
    """Additional traffic in each step (with ``sticky`` once), bytes; None if the specification has
    no sizes.
    """
    ranks: tuple[RankShare, ...]
    """Share of work of each rank of the group."""

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
    """K, the number of columns of each rank."""
    unit: int
    """Number of columns that move or are left out together, such as the columns of a head."""
    accuracy_budget: float
    """Largest γ whose loss of accuracy is accepted."""
    fastest_time_s: float
    """T of the fastest rank without any plan, seconds."""
    slowest_time_s: float
    """T of the slowest rank without any plan, seconds."""
    stragglers: tuple[int, ...]
    """Ranks that take over 1.10 × the fastest rank's time, the slowest first."""
    costs_sampled: bool
    """Whether the cost of communication was sampled; otherwise predictions count it as free."""
    alternatives: tuple[Alternative, ...]
    """Alternatives within the budget, fastest first, then alternatives beyond the budget."""
    chosen: Method
    """Method of the first alternative, which is always within the budget; ``none`` if no rank
    straggles.
    """

    @property
    def best(self) -> Alternative:
        """Return the chosen alternative."""
        return next(
            item for item in self.alternatives if item.method is self.chosen and item.within_budget
        )

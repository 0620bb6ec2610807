"""Advice on a tensor-parallel group: the types behind ``paceline.mitigation/1``.

`app.analysis.mitigation.tensor.advice` makes them, `app.analysis.json_text` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

SCHEMA: Final = "paceline.mitigation/1"


class Method(StrEnum):
    """How work is shed; in the order of what is preferred among equals."""

    NONE = "none"
    STICKY = "sticky"
    WATERFILL = "waterfill"
    MIGRATE = "migrate"
    SEMI = "semi"
    ZERO = "zero"

    @property
    def short(self) -> str:
        """Return its name where room is short: ``ZERO``, ``MIG``, ``water-filled``."""
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
    """The time that ranks are brought down to."""

    T_MIN = "t_min"
    T_AVG = "t_avg"


class LossRisk(StrEnum):
    """What leaving columns out may do to the model's accuracy."""

    NONE = "none"  # nothing is dropped
    SMALL = "small"  # within the budget: to be measured
    BEYOND_BUDGET = "beyond_budget"


@dataclass(frozen=True, slots=True)
class RankShare:
    """What a rank does under an alternative."""

    rank: int
    """Within the group, from 0."""
    time_s: float
    """T without any plan, seconds of a step without waiting at collectives."""
    predicted_time_s: float
    """The same under the alternative."""
    gamma: float
    """The share of its columns that is not computed: `resized_columns` ÷ K."""
    resized_columns: int
    """Columns that no rank computes in the step."""
    migrated_columns: int
    """Columns that other ranks compute."""
    received_columns: int
    """Columns that it computes for others."""
    to: Mapping[str, int]
    """By rank, how many of the migrated columns each computes."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to shed work, and what it is predicted to bring."""

    method: Method
    """How work is divided."""
    criterion: Criterion | None
    """The time that stragglers are brought down to by Eq. 1; None where the
    method has none."""
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
    """What is sent because of it: in each step, by ``sticky`` once. None where the specification
    has no sizes."""
    ranks: tuple[RankShare, ...]
    """All ranks of the group."""

    @property
    def gamma(self) -> float:
        """Return the largest share that a rank leaves out."""
        return max(rank.gamma for rank in self.ranks)

    @property
    def migrated_columns(self) -> int:
        """Return how many columns other ranks compute."""
        return sum(rank.migrated_columns for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class MitigationDocument:
    """Advice on a tensor-parallel group, schema ``paceline.mitigation/1``."""

    schema: Literal["paceline.mitigation/1"]
    columns: int
    """K, columns of each rank."""
    unit: int
    """Columns that stay together."""
    accuracy_budget: float
    """The largest γ that is accepted."""
    fastest_time_s: float
    """T of the fastest and of the slowest rank without any plan, seconds."""
    slowest_time_s: float
    """T of the fastest and of the slowest rank without any plan, seconds."""
    stragglers: tuple[int, ...]
    """Ranks that take over 1.10 × the fastest's time, the slowest first."""
    costs_sampled: bool
    """Whether the cost of communication was sampled; if not, predictions take it for free."""
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

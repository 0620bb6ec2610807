"""What a plan asks of each rank of a tensor-parallel group, and how many columns of a layer.

Standard library only, like all that reads what a server sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Method(Enum):
    """How a plan takes work from a slow rank."""

    NONE = "none"
    ZERO = "zero"
    MIGRATE = "migrate"
    SEMI = "semi"
    WATERFILL = "waterfill"
    STICKY = "sticky"


class Granularity(Enum):
    """What is shed: columns of each matrix, or hidden units of a pair of layers.

    A hidden unit is a row of the first weight and bias and the column of the second weight that
    reads it, or a head of an attention: parameters move, activations do not.
    """

    COLUMNS = "columns"
    HIDDEN_UNITS = "hidden_units"


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one rank sheds, in columns of the plan's `columns`.

    Parameters
    ----------
    rank : int
        Within the group.
    resized_columns : int
        Left out of the step's products.
    to : tuple of (rank, columns)
        Computed by others, by rank within the group.
    """

    rank: int
    resized_columns: int = 0
    to: tuple[tuple[int, int], ...] = ()

    @property
    def migrated_columns(self) -> int:
        """Columns that others compute."""
        return sum(columns for _, columns in self.to)


@dataclass(frozen=True, slots=True)
class Plan:
    """A division of a group's work, bound to the group's size.

    Parameters
    ----------
    version : int
        Counts the group's plans from 1.
    columns : int
        That a rank has without a plan; the shares of `ranks` are parts of it.
    expires_after_steps : int
        Steps for which the plan holds without being renewed.
    ranks : tuple of RankShare
        Ranks that shed something; the others keep everything.

    Raises
    ------
    PlanError
        If the shares cannot be carried out by a group of `size` ranks.
    """

    version: int
    method: Method
    columns: int
    size: int
    ranks: tuple[RankShare, ...] = ()
    expires_after_steps: int = 200

    def __post_init__(self) -> None:
        _require(self.version >= 0, "version", "counts from 0")
        _require(self.columns > 0, "columns", "a rank has at least one column")
        _require(self.expires_after_steps > 0, "expires_after_steps", "is at least 1")
        seen = [share.rank for share in self.ranks]
        _require(len(set(seen)) == len(seen), "ranks", "name each rank once")
        for number, share in enumerate(self.ranks):
            self._check(share, f"ranks[{number}]")

    def _check(self, share: RankShare, at: str) -> None:
        group = range(self.size)
        _require(share.rank in group, f"{at}.rank", f"the group has ranks 0 to {self.size - 1}")
        targets = [rank for rank, _ in share.to]
        _require(len(set(targets)) == len(targets), f"{at}.to", "names each rank once")
        _require(
            all(rank in group and rank != share.rank for rank in targets),
            f"{at}.to",
            "columns go to other ranks of the group",
        )
        counts = [share.resized_columns, *(columns for _, columns in share.to)]
        _require(min(counts) >= 0, at, "columns are counted from 0")
        _require(sum(counts) <= self.columns, at, f"a rank has {self.columns} columns to shed")

    @property
    def sheds(self) -> bool:
        """Whether anything is other than without a plan."""
        return any(share.resized_columns or share.migrated_columns for share in self.ranks)

    def computed(self, rank: int) -> float:
        """Return what a rank computes, as a share of its columns: 1 without a plan."""
        shed = sum(
            share.resized_columns + share.migrated_columns
            for share in self.ranks
            if share.rank == rank
        )
        received = sum(
            columns for share in self.ranks for target, columns in share.to if target == rank
        )
        return (self.columns - shed + received) / self.columns

    @property
    def gamma(self) -> float:
        """The largest share of a rank's columns that is left out, 0 to 1."""
        return max((share.resized_columns for share in self.ranks), default=0) / self.columns


class PlanError(ValueError):
    """A plan that this group cannot carry out.

    Parameters
    ----------
    path : str
        The field that is wrong.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Loan:
    """Units that `source` has others compute: the last ones that it has."""

    source: int
    # start, stop: the units, of those of `source`
    start: int
    stop: int
    # tuple of (int, int): for each rank of the group, the part that it computes, counted from
    # `start`
    slices: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """How many units are lent."""
        return self.stop - self.start

    def borrowed(self, rank: int) -> int:
        """Return how many of them a rank computes."""
        first, last = self.slices[rank]
        return last - first

    def receivers(self) -> list[int]:
        """Return the ranks that compute at least one of them."""
        return [rank for rank in range(len(self.slices)) if self.borrowed(rank)]


@dataclass(frozen=True, slots=True)
class Division:
    """A plan in a layer's own units: how many each rank leaves out, and who computes what."""

    units: int
    resized: tuple[int, ...]
    loans: tuple[Loan, ...]

    def own(self, rank: int) -> int:
        """Return how many units are left to a rank when others took theirs."""
        lent = sum(loan.count for loan in self.loans if loan.source == rank)
        return self.units - lent


def divide(plan: Plan, units: int) -> Division:
    """Return the plan's shares in units of a layer that has `units` of them on each rank."""
    resized = [0] * plan.size
    loans: list[Loan] = []
    for share in plan.ranks:
        lost = [share.resized_columns, *(columns for _, columns in share.to)]
        kept = plan.columns - sum(lost)
        pruned, *lent, _ = apportion([*lost, kept], units)
        resized[share.rank] = pruned
        if not sum(lent):
            continue
        counts = dict(zip((rank for rank, _ in share.to), lent, strict=True))
        slices: list[tuple[int, int]] = [(0, 0)] * plan.size
        first = 0
        # Renumbered from the source on, so that several sources do not all begin with rank 0.
        for rank in ((share.rank + step) % plan.size for step in range(1, plan.size)):
            slices[rank] = (first, first + counts.get(rank, 0))
            first += counts.get(rank, 0)
        loans.append(Loan(share.rank, units - first, units, tuple(slices)))
    return Division(units, tuple(resized), tuple(loans))


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """Divide `total` in proportion to `parts`, by largest remainders.

    Examples
    --------
    >>> apportion([1, 1, 2], 7)
    [2, 2, 3]
    """
    whole = sum(parts)
    counts = [part * total // whole for part in parts]
    remainders = sorted(range(len(parts)), key=lambda one: (-(parts[one] * total % whole), one))
    for one in remainders[: total - sum(counts)]:
        counts[one] += 1
    return counts


def _require(holds: bool, path: str, message: str) -> None:  # noqa: FBT001 - a condition
    if not holds:
        raise PlanError(path, message)

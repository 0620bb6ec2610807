"""Plans of a tensor-parallel group, their documents, and their division into a layer's units.

Uses the standard library only, like all code that reads data of a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

# Largest value of an integer field, and length of a rank's key. Integers of a plan are exchanged
# between ranks as float64, which represents these exactly.
MOST_STEP: Final = 1 << 53
_LONGEST_KEY: Final = 10
_LONGEST_METHOD: Final = 40


class Method(Enum):
    """The method by which a plan takes work from a slow rank."""

    NONE = "none"
    ZERO = "zero"
    MIGRATE = "migrate"
    SEMI = "semi"
    WATERFILL = "waterfill"
    STICKY = "sticky"


class Granularity(Enum):
    """What is left out or lent: columns of each matrix, or hidden units or heads of a layer pair.

    Parameters of hidden units move, activations do not.
    """

    COLUMNS = "columns"
    HIDDEN_UNITS = "hidden_units"


@dataclass(frozen=True, slots=True)
class RankShare:
    """The part of the plan's `columns` that one rank gives up; ranks are those of the group."""

    rank: int
    resized_columns: int = 0  # left out of the step's products
    to: tuple[tuple[int, int], ...] = ()  # (rank, columns) that other ranks compute

    @property
    def migrated_columns(self) -> int:
        """Number of columns that other ranks compute."""
        return sum(columns for _, columns in self.to)


@dataclass(frozen=True, slots=True)
class Plan:
    """A division of a group's work; raises `PlanError` for shares that the group cannot apply."""

    version: int  # number of the group's plan, from 1
    method: Method
    columns: int  # of a rank without a plan
    size: int  # of the group
    ranks: tuple[RankShare, ...] = ()  # those that shed columns
    expires_after_steps: int = 200  # unless it is renewed

    def __post_init__(self) -> None:
        _require(self.version >= 0, "version", "must be at least 0")
        _require(self.columns > 0, "columns", "must be at least 1")
        _require(self.expires_after_steps > 0, "expires_after_steps", "must be at least 1")
        seen = [share.rank for share in self.ranks]
        _require(len(set(seen)) == len(seen), "ranks", "must contain each rank once")
        group = range(self.size)
        for number, share in enumerate(self.ranks):
            at = f"ranks[{number}]"
            _require(share.rank in group, f"{at}.rank", f"the group has ranks 0 to {self.size - 1}")
            targets = [rank for rank, _ in share.to]
            _require(len(set(targets)) == len(targets), f"{at}.to", "must contain each rank once")
            _require(
                all(rank in group and rank != share.rank for rank in targets),
                f"{at}.to",
                "must contain other ranks of the group",
            )
            counts = [share.resized_columns, *(columns for _, columns in share.to)]
            _require(min(counts) >= 0, at, "columns must not be negative")
            _require(sum(counts) <= self.columns, at, f"a rank has {self.columns} columns to shed")

    @property
    def sheds(self) -> bool:
        """Whether the plan takes columns from any rank."""
        return any(share.resized_columns or share.migrated_columns for share in self.ranks)

    def computed(self, rank: int) -> float:
        """Return the number of columns that a rank computes, relative to its own columns."""
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
    """A plan that the group cannot apply, with the path of the invalid field."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Loan:
    """Units of `source` that other ranks compute: the last units, from `start` to `stop`."""

    source: int
    start: int
    stop: int
    slices: tuple[tuple[int, int], ...]  # the part of each rank of the group, from `start`

    @property
    def count(self) -> int:
        """The number of lent units."""
        return self.stop - self.start

    def borrowed(self, rank: int) -> int:
        """Return the number of lent units that a rank computes."""
        first, last = self.slices[rank]
        return last - first

    def receivers(self) -> list[int]:
        """Return the ranks that compute at least one unit."""
        return [rank for rank in range(len(self.slices)) if self.borrowed(rank)]


@dataclass(frozen=True, slots=True)
class Division:
    """A plan in units of a layer: the number that each rank leaves out, and the loans."""

    units: int
    resized: tuple[int, ...]
    loans: tuple[Loan, ...]

    def own(self, rank: int) -> int:
        """Return the number of its own units that a rank keeps."""
        lent = sum(loan.count for loan in self.loans if loan.source == rank)
        return self.units - lent


def divide(plan: Plan, units: int) -> Division:
    """Return the plan's shares in units of a layer that has `units` units on each rank."""
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
        # Starts at the rank after the source, so that several sources do not all start with rank 0.
        for rank in ((share.rank + step) % plan.size for step in range(1, plan.size)):
            slices[rank] = (first, first + counts.get(rank, 0))
            first += counts.get(rank, 0)
        loans.append(Loan(share.rank, units - first, units, tuple(slices)))
    return Division(units, tuple(resized), tuple(loans))


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """Divide `total` in proportion to `parts`, by the largest-remainder method.

    Examples
    --------
    >>> apportion([1, 1, 2], 7)
    [2, 2, 3]
    """
    whole = sum(parts)
    counts = [part * total // whole for part in parts]
    remainders = sorted(range(len(parts)), key=lambda i: (-(parts[i] * total % whole), i))
    for i in remainders[: total - sum(counts)]:
        counts[i] += 1
    return counts


@dataclass(frozen=True, slots=True)
class Offer:
    """A plan that the service offers to this group."""

    plan: Plan
    expires_step: int  # the first step without the plan
    applies: bool = True  # otherwise it is advice, which ends the previous plan


def read_plan(document: Mapping[str, Any], attempt: int, size: int) -> Offer:
    """Return the plan in a document; raises `PlanError` if it is for another attempt or group."""
    if integer_field(document, "attempt") != attempt:
        raise PlanError("attempt", f"must be {attempt}")
    if integer_field(document, "world_size") != size:
        raise PlanError("world_size", f"must be {size}")
    try:
        method = Method(document.get("method"))
    except ValueError:
        method_name = str(document.get("method"))[:_LONGEST_METHOD]
        raise PlanError("method", f"{method_name!r} is not known") from None
    rows = document.get("ranks")
    if not isinstance(rows, list):
        raise PlanError("ranks", "must be a list")
    plan = Plan(
        version=integer_field(document, "version"),
        method=method,
        columns=integer_field(document, "columns"),
        size=size,
        ranks=tuple(_share(row, f"ranks[{number}]") for number, row in enumerate(rows)),
    )
    return Offer(plan, integer_field(document, "expires_step"), document.get("apply") is True)


def plan_document(offer: Offer, attempt: int) -> dict[str, object]:
    """Return the document of a plan, the inverse of `read_plan`."""
    plan = offer.plan
    return {
        "version": plan.version,
        "attempt": attempt,
        "world_size": plan.size,
        "columns": plan.columns,
        "method": plan.method.value,
        "apply": offer.applies,
        "expires_step": offer.expires_step,
        "ranks": [
            {
                "rank": share.rank,
                "resized_columns": share.resized_columns,
                "to": {str(rank): columns for rank, columns in share.to},
            }
            for share in plan.ranks
        ],
    }


def _share(row: object, at: str) -> RankShare:
    if not isinstance(row, dict):
        raise PlanError(at, "must be an object")
    to = row.get("to") or {}
    if not isinstance(to, dict) or not all(
        rank.isdecimal() and len(rank) <= _LONGEST_KEY for rank in to
    ):
        raise PlanError(f"{at}.to", "must have ranks as keys")
    return RankShare(
        rank=integer_field(row, "rank", at),
        resized_columns=integer_field(row, "resized_columns", at),
        to=tuple((int(rank), integer_field(to, rank, f"{at}.to")) for rank in to),
    )


def integer_field(document: Mapping[str, Any], name: str, at: str = "") -> int:
    """Return an integer field of a document at the path `at`; raises `PlanError`."""
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST_STEP:
        raise PlanError(f"{at}.{name}" if at else name, "must be an integer")
    return value


def _require(holds: bool, path: str, message: str) -> None:  # noqa: FBT001 - a condition
    if not holds:
        raise PlanError(path, message)

"""Changes between two sessions: causes, metadata, and the statistics of their step times.

Two answers that assume no normal distribution: the Mann–Whitney test (Ann. Math. Statist. 18, 1947)
tells whether steps of one session tend to be shorter; a bootstrap (Efron and Tibshirani, An
Introduction to the Bootstrap, 1993, section 16) gives the interval of the difference of the means.
Both treat the steps of a session as independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.report.document import Report
from app.analysis.trace.rank_metadata import KEYS

# A smaller change, as a share of the step time, counts as no change.
NEGLIGIBLE: Final = 0.01
# Metadata fields with an entry per rank: their changes are summarized by host.
_BY_RANK: Final = frozenset({"hosts", "gpus", "producers", *KEYS}) - {"launcher"}


class Change(StrEnum):
    """Kind of change of a cause between two sessions."""

    GONE = "gone"
    CAME = "came"
    LESS = "less"
    MORE = "more"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class CauseChange:
    """A cause and its cost in two sessions."""

    cause: str
    before: float | None
    """The share of the mean step that it costs; None where it was not named."""
    after: float | None
    """The share of the mean step that it costs; None where it was not named."""
    change: Change


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A metadata field with different values; a value is None if its session lacks the field."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class MetadataChanges:
    """The changed metadata fields, and the number of equal fields."""

    changed: tuple[FieldChange, ...]
    equal: int


def cause_changes(before: Report, after: Report) -> tuple[CauseChange, ...]:
    """Return the causes found in either session, the cause with the largest change first."""
    shares = [_shares(report) for report in (before, after)]
    names = dict.fromkeys((*shares[0], *shares[1]))
    changes = [_change(name, shares[0].get(name), shares[1].get(name)) for name in names]
    return tuple(
        sorted(changes, key=lambda change: -abs((change.after or 0.0) - (change.before or 0.0)))
    )


def _shares(report: Report) -> dict[str, float]:
    """Return the cost of each cause as a share of the mean step time."""
    steps = report.step_times.simulated
    mean_s = sum(steps) / len(steps)
    shares: dict[str, float] = {}
    for cause in report.causes:
        cost = (cause.cost_s or 0.0) / mean_s
        shares[cause.cause] = shares.get(cause.cause, 0.0) + cost
    return shares


def _change(name: str, before: float | None, after: float | None) -> CauseChange:
    was, is_ = before or 0.0, after or 0.0
    if abs(is_ - was) < NEGLIGIBLE:
        change = Change.SAME
    elif is_ < NEGLIGIBLE:
        change = Change.GONE
    elif was < NEGLIGIBLE:
        change = Change.CAME
    else:
        change = Change.LESS if is_ < was else Change.MORE
    return CauseChange(name, before, after, change)


def metadata_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> MetadataChanges:
    """Return the differences of the metadata of two sessions, field by field.

    Examples
    --------
    >>> a = {"dp": 2, "hosts": {"0": "node-1"}, "labels": {"team": "x"}}
    >>> b = {"dp": 2, "hosts": {"0": "node-9"}, "labels": {"team": "y"}}
    >>> for change in metadata_changes(a, b).changed:
    ...     print(change.field, change.before, change.after)
    hosts node-1 node-9
    labels.team x y
    """
    sides = [
        dict(_flat({name: value for name, value in side.items() if name not in _BY_RANK}))
        for side in (before, after)
    ]
    names = sorted({*sides[0], *sides[1]})
    changed = [
        FieldChange(name, sides[0].get(name), sides[1].get(name))
        for name in names
        if sides[0].get(name) != sides[1].get(name)
    ]
    return MetadataChanges((*_places(before, after), *changed), len(names) - len(changed))


def _places(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FieldChange]:
    """Yield the removed and the added hosts, or the number of ranks on another host."""
    sides = [side.get("hosts") or {} for side in (before, after)]
    if sides[0] == sides[1]:
        return
    gone, came = (
        sorted(set(own.values()) - set(other.values())) for own, other in (sides, reversed(sides))
    )
    if gone or came:
        yield FieldChange("hosts", ", ".join(gone) or None, ", ".join(came) or None)
        return
    moved = sum(sides[0].get(rank) != sides[1].get(rank) for rank in {*sides[0], *sides[1]})
    yield FieldChange("hosts", "the same", f"the same, {moved} ranks in other places")


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        inner_path = f"{path}.{name}" if path else str(name)
        if isinstance(inner, Mapping):
            yield from _flat(inner, inner_path)
        elif inner is not None:
            yield inner_path, _text(inner)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


# Up to this number of steps per session, and without ties, the exact distribution of U is used.
EXACT_UP_TO: Final = 20
# Smallest number of steps per session for a test and an interval.
FEWEST: Final = 3
DRAWS: Final = 2_000
# A difference whose p is at least this large may be due to chance.
SIGNIFICANT: Final = 0.05
_QUANTILES: Final = (0.025, 0.975)
_SEED: Final = 0

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of the step times of a later and an earlier session."""

    before_s: float
    """Mean step time."""
    after_s: float
    """Mean step time."""
    change_s: float
    """Difference of the means; negative where the later session is faster."""
    change: float
    """The same as a share of `before_s`."""
    ci95_s: tuple[float, float] | None
    """95 % interval of `change_s`; None where one side has too few steps."""
    p: float | None
    """Two-sided p of the Mann–Whitney test; None where one side has too few steps."""
    steps: tuple[int, int]

    @property
    def least_p(self) -> float:
        """Return the smallest p that the test can yield for these numbers of steps."""
        return 2.0 / math.comb(sum(self.steps), self.steps[0])

    @property
    def tells(self) -> bool:
        """Return whether the numbers of steps suffice for a significant p."""
        return self.p is not None and self.least_p < SIGNIFICANT

    @property
    def real(self) -> bool:
        """Return whether the interval of the difference excludes 0."""
        return self.ci95_s is not None and not self.ci95_s[0] <= 0.0 <= self.ci95_s[1]


def difference(before: Sequence[float], after: Sequence[float]) -> Difference:
    """Return the difference of the step times of two sessions.

    Parameters
    ----------
    before, after : sequence of float
        Seconds; neither is empty.
    """
    a, b = np.asarray(before, np.float64), np.asarray(after, np.float64)
    enough = min(a.size, b.size) >= FEWEST
    mean_a, mean_b = float(a.mean()), float(b.mean())
    return Difference(
        before_s=mean_a,
        after_s=mean_b,
        change_s=mean_b - mean_a,
        change=mean_b / mean_a - 1.0,
        ci95_s=_interval(a, b) if enough else None,
        p=mann_whitney(a, b) if enough else None,
        steps=(a.size, b.size),
    )


def mann_whitney(a: FloatArray, b: FloatArray) -> float:
    """Return the two-sided p of the Mann–Whitney test.

    Exact for few steps without ties; else the normal approximation with corrections for ties and
    continuity (Hollander and Wolfe, Nonparametric Statistical Methods, section 4.1).

    Examples
    --------
    >>> ages_m, ages_f = np.array([19., 22, 16, 29, 24]), np.array([20., 11, 17, 12])
    >>> round(mann_whitney(ages_m, ages_f), 4)
    0.1111
    """
    # U: number of pairs with a > b; ties count half.
    larger = (a[:, None] > b[None, :]).sum() + 0.5 * (a[:, None] == b[None, :]).sum()
    u = float(max(larger, a.size * b.size - larger))
    _, ties = np.unique(np.concatenate((a, b)), return_counts=True)
    if ties.max() == 1 and max(a.size, b.size) <= EXACT_UP_TO:
        return _exact(u, a.size, b.size)
    return _approximate(u, a.size, b.size, ties)


def _exact(u: float, m: int, n: int) -> float:
    """Return the exact two-sided p: twice the share of orders whose U is at least as large."""
    counts = np.zeros(m * n + 1)
    counts[0] = 1.0
    # The coefficients of the Gaussian binomial are the numbers of orders with each U.
    for i in range(1, m + 1):
        for value in range(m * n, n + i - 1, -1):
            counts[value] -= counts[value - n - i]
        for value in range(i, m * n + 1):
            counts[value] += counts[value - i]
    return min(1.0, 2.0 * float(counts[math.ceil(u) :].sum() / counts.sum()))


def _approximate(u: float, m: int, n: int, ties: NDArray[np.intp]) -> float:
    size = m + n
    tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / (size * (size - 1))
    variance = m * n / 12.0 * (size + 1 - tied)
    if variance <= 0.0:
        return 1.0
    z = max(0.0, u - m * n / 2.0 - 0.5) / math.sqrt(variance)
    return min(1.0, math.erfc(z / math.sqrt(2.0)))


def _interval(a: FloatArray, b: FloatArray) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of the difference of the mean step times, in seconds."""
    generator = np.random.default_rng(_SEED)
    drawn_a, drawn_b = (
        generator.choice(side, size=(DRAWS, side.size)).mean(axis=1) for side in (a, b)
    )
    low, high = np.quantile(drawn_b - drawn_a, _QUANTILES).tolist()
    return low, high

"""Tensor-parallel group: step times of its ranks, shares of work, and costs of moving columns.

Columns are the contraction dimension of a weight W[O, K], hidden units of an MLP, or heads. Shares
count units, costs count columns. Φ1, Φ2, Ω1 and Ω2 are those of section IV-B of the ZERO-resizing
paper, which leaves their form open: lines with an offset are fitted to a pre-test (Table I).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

# ---- A tensor-parallel group: what its ranks take for a step, and what each does of the others' wo
#
# Columns are the contraction dimension of each rank's weight ``W[O, K]``, or the hidden units of an
# MLP, or the columns of heads: whatever a rank can leave out or hand to another. They go in units
# (a head is one), so that everything here counts units; costs count columns.


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# A rank straggles when it takes this much longer than the fastest of its group; less is noise.
STRAGGLES: Final = 1.10


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """What the ranks of a group take for a step with all of their own columns."""

    time_s: FloatArray  # (ranks,): T, seconds of a step without waiting at collectives
    matmul_s: FloatArray  # (ranks,): M, the part of it that grows with the columns; 0 < M ≤ T
    columns: int  # K, columns of each rank
    unit: int = 1  # columns that stay together; divides `columns`

    @property
    def ranks(self) -> int:
        """Return e, how many ranks there are."""
        return len(self.time_s)

    @property
    def units(self) -> int:
        """Return how many units each rank has."""
        return self.columns // self.unit

    @property
    def fixed_s(self) -> FloatArray:
        """Return what each rank takes whatever its columns, shape (ranks,)."""
        return self.time_s - self.matmul_s

    @property
    def unit_s(self) -> FloatArray:
        """Return what a unit takes on each rank, shape (ranks,)."""
        return self.matmul_s / self.units

    @property
    def fastest_s(self) -> float:
        """Return T_min."""
        return float(self.time_s.min())

    @property
    def stragglers(self) -> IntArray:
        """Return the ranks that take over 1.10 × the fastest's time, the slowest first."""
        slowest_first = np.argsort(-self.time_s, kind="stable")
        return slowest_first[self.time_s[slowest_first] > STRAGGLES * self.fastest_s]


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Who leaves out what, and who computes what for whom; in units."""

    resized: IntArray  # (ranks,): units that a rank leaves out of the step
    # (ranks, ranks): ``[sender, receiver]``: units of the sender that the receiver computes
    moved: IntArray

    @classmethod
    def nothing(cls, ranks: int) -> Shares:
        """Return the shares of a group in which every rank does its own work."""
        return cls(np.zeros(ranks, dtype=np.int64), np.zeros((ranks, ranks), dtype=np.int64))

    @property
    def migrated(self) -> IntArray:
        """Return what each rank hands to others, shape (ranks,)."""
        total: IntArray = self.moved.sum(axis=1)
        return total

    @property
    def received(self) -> IntArray:
        """Return what each rank computes for others, shape (ranks,)."""
        total: IntArray = self.moved.sum(axis=0)
        return total

    @property
    def shed(self) -> IntArray:
        """Return what each rank does not compute of its own, shape (ranks,)."""
        return self.resized + self.migrated


def without_plan(  # noqa: PLR0913, PLR0917 - what was measured, and under what
    time_s: FloatArray,
    matmul_s: FloatArray,
    columns: int,
    shares: Shares,
    unit: int = 1,
    computed: FloatArray | None = None,
) -> Group:
    """Return what ranks would take with all of their own columns, from times under a plan.

    M̂ = M / (1 − γ + absorbed) and T̂ = T − M + M̂, where γ is the share of its columns that a rank
    does not compute, and absorbed what it computes for others, as a share of its own.

    Parameters
    ----------
    time_s, matmul_s : float64 arrays, shape (ranks,)
        As they were measured under the plan, seconds.
    columns, unit : int
        See `Group`.
    shares : Shares
        The plan; each rank computes a unit at least.
    computed : float64 array, shape (ranks,), optional
        What ranks computed indeed, as shares of their own columns, where layers cannot be divided
        as the plan says.

    Examples
    --------
    >>> import numpy as np
    >>> shed = Shares(np.array([3, 0]), np.zeros((2, 2), dtype=np.int64))
    >>> without_plan(np.array([2.5, 1.0]), np.array([2.0, 0.8]), 4, shed).time_s.tolist()
    [8.5, 1.0]
    """
    units = columns // unit
    if computed is None:
        computed = (units - shares.shed + shares.received) / units
    whole_s = matmul_s / computed
    return Group(time_s - matmul_s + whole_s, whole_s, columns, unit)


# ---- What it costs to hand over and to leave out columns, from the samples of a pre-test -------
# Φ1(v) sends v columns and brings their results back, Φ2(v) computes them on a receiver, Ω1 makes
# room for the smaller matrices, Ω2(v) takes the columns apart (section IV-B of the paper on
# ZERO-resizing). The paper leaves the form of the functions open; the times of its Table I lie on
# lines with an offset, and such are fitted here.


Sample = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Affine:
    """A cost that has an offset and grows with the columns; none for none of them."""

    fixed_s: float  # seconds for any columns at all
    column_s: float  # seconds for each

    def __call__(self, columns: float) -> float:
        """Return what a number of columns costs, seconds."""
        return self.fixed_s + self.column_s * columns if columns > 0 else 0.0


FREE: Final = Affine(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost functions of a group."""

    communicate: Affine = FREE  # Φ1, seconds a step
    # Φ2 on a rank without delay, seconds a step; None: as fast as the rank's own columns.
    compute: Affine | None = None
    allocate_s: float = 0.0  # Ω1, seconds a step
    extract: Affine = FREE  # Ω2, seconds a step
    # What handing columns over takes of the rank that sheds them, seconds a step. Where that rank
    # has done its own before the others, no rank waits for it.
    lend: Affine = FREE


def fit(samples: Sequence[Sample]) -> Affine:
    """Return the line of least squares through samples, of which no part is negative.

    Parameters
    ----------
    samples : sequence of (columns, seconds)
        At least one; with one column count only, it is a line through the origin.
    """
    columns, seconds = (np.array(part, dtype=np.float64) for part in zip(*samples, strict=True))
    candidates = [_through_origin(columns, seconds), Affine(float(seconds.mean()), 0.0)]
    centered = columns - columns.mean()
    square = float(centered @ centered)
    if square > 0:
        slope = float(centered @ seconds) / square
        offset = float(seconds.mean() - slope * columns.mean())
        if slope >= 0 and offset >= 0:
            return Affine(offset, slope)
    elif columns[0] > 0:
        return candidates[0]
    return min(candidates, key=lambda line: _error(line, columns, seconds))


def _through_origin(columns: FloatArray, seconds: FloatArray) -> Affine:
    square = float(columns @ columns)
    return Affine(0.0, float(columns @ seconds) / square if square else 0.0)


def _error(line: Affine, columns: FloatArray, seconds: FloatArray) -> float:
    residual = line.fixed_s + line.column_s * columns - seconds
    return float(residual @ residual)


def fit_constant(samples: Sequence[Sample]) -> float:
    """Return the median of what was sampled, seconds: Ω1 does not depend on the columns."""
    return float(np.median([seconds for _, seconds in samples]))

"""Tensor-parallel group: step times and work shares of its ranks, costs of moving columns.

Columns are the contraction dimension of a weight W[O, K], hidden units of an MLP, or heads. Shares
count units, costs count columns. The cost functions Φ1, Φ2, Ω1 and Ω2 are defined in section IV-B
of the ZERO-resizing paper, which leaves their form open; here, lines with an offset are fitted to
the samples of a pre-test. Φ1 also has a term for each further sender, which the paper's equations
lack and its Table I needs: four senders of a quarter of their columns take three times the extra
time of one sender of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.quantities import FloatArray, IntArray

# A rank is a straggler if it takes this many times the fastest rank's time; a smaller difference is
# noise.
STRAGGLES: Final = 1.10


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Step times of a group's ranks when every rank computes all its own columns."""

    time_s: FloatArray  # (ranks,): T, seconds of a step without waiting at collectives
    matmul_s: FloatArray  # (ranks,): M, the part of T proportional to the columns; 0 < M ≤ T
    columns: int  # K, columns of each rank
    unit: int = 1  # columns that are moved together, such as those of a head; divides `columns`

    @property
    def ranks(self) -> int:
        """Return e, the number of ranks."""
        return len(self.time_s)

    @property
    def units(self) -> int:
        """Return the number of units that each rank owns."""
        return self.columns // self.unit

    @property
    def fixed_s(self) -> FloatArray:
        """Return T − M, the part of the time that columns do not affect, s, shape (ranks,)."""
        return self.time_s - self.matmul_s

    @property
    def unit_s(self) -> FloatArray:
        """Return the time of a unit on each rank, seconds, shape (ranks,)."""
        return self.matmul_s / self.units

    @property
    def fastest_s(self) -> float:
        """Return T_min, the fastest rank's time, seconds."""
        return float(self.time_s.min())

    @property
    def stragglers(self) -> IntArray:
        """Return the ranks that take over 1.10 × the fastest rank's time, slowest rank first."""
        slowest_first = np.argsort(-self.time_s, kind="stable")
        return slowest_first[self.time_s[slowest_first] > STRAGGLES * self.fastest_s]


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Numbers of units that each rank leaves out (resizing) and hands over (migration)."""

    resized: IntArray  # (ranks,): units that a rank leaves out of the step
    moved: IntArray  # (ranks, ranks), ``[sender, receiver]``: units that the receiver computes

    @classmethod
    def nothing(cls, ranks: int) -> Shares:
        """Return the shares of a group in which every rank computes all its own units."""
        return cls(np.zeros(ranks, dtype=np.int64), np.zeros((ranks, ranks), dtype=np.int64))

    @property
    def migrated(self) -> IntArray:
        """Return the number of units that each rank hands to other ranks, shape (ranks,)."""
        total: IntArray = self.moved.sum(axis=1)
        return total

    @property
    def received(self) -> IntArray:
        """Return the number of units that each rank computes for other ranks, shape (ranks,)."""
        total: IntArray = self.moved.sum(axis=0)
        return total

    @property
    def shed(self) -> IntArray:
        """Return the number of each rank's own units that it does not compute, shape (ranks,)."""
        return self.resized + self.migrated


def without_plan(  # noqa: PLR0913, PLR0917 - what was measured, and under what
    time_s: FloatArray,
    matmul_s: FloatArray,
    columns: int,
    shares: Shares,
    unit: int = 1,
    computed: FloatArray | None = None,
) -> Group:
    """Return a group's times with all own columns, converted from its times under a plan.

    M̂ = M / (1 − γ + absorbed) and T̂ = T − M + M̂. γ is the share of its own columns that a rank
    does not compute, absorbed the number of columns that it computes for other ranks ÷ the number
    of its own.

    Parameters
    ----------
    time_s, matmul_s : float64 arrays, shape (ranks,)
        Measured under the plan, seconds.
    columns, unit : int
        See `Group`.
    shares : Shares
        The plan; each rank computes at least one unit.
    computed : float64 array, shape (ranks,), optional
        Columns that ranks really computed, as shares of their own columns, if layers have coarser
        units than the plan.

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


Sample = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Affine:
    """Cost that is affine in the number of columns, and zero for zero columns."""

    fixed_s: float  # seconds for any number of columns
    column_s: float  # seconds for each column

    def __call__(self, columns: float) -> float:
        """Return the cost of a number of columns, seconds."""
        return self.fixed_s + self.column_s * columns if columns > 0 else 0.0


FREE: Final = Affine(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Communication(Affine):
    """Φ1: affine in the columns of all senders together, with a term for each further sender."""

    sender_s: float = 0.0  # seconds for each sender after the first one

    def __call__(self, columns: float, senders: int = 1) -> float:
        """Return the cost of sending columns and returning their results, seconds."""
        if columns <= 0:
            return 0.0
        return self.fixed_s + self.column_s * columns + self.sender_s * (senders - 1)


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of moving columns and of leaving them out, seconds per step."""

    communicate: Communication = Communication(0.0, 0.0)  # Φ1: send columns, return their results
    # Φ2: compute received columns on a rank without delay; None: received columns take as long as
    # the rank's own columns.
    compute: Affine | None = None
    allocate_s: float = 0.0  # Ω1: allocate the smaller matrices
    extract: Affine = FREE  # Ω2: extract the remaining columns
    # Time that a rank needs to hand its shed columns over; hidden if the rank would wait anyway.
    lend: Affine = FREE


def fit(samples: Sequence[Sample]) -> Affine:
    """Return the least-squares line through samples, with non-negative offset and slope.

    Parameters
    ----------
    samples : sequence of (columns, seconds)
        At least one sample; with a single column count, the line passes through the origin.
    """
    columns, seconds = (np.array(part, dtype=np.float64) for part in zip(*samples, strict=True))
    total = float(columns @ columns)
    through_origin = Affine(0.0, float(columns @ seconds) / total if total else 0.0)
    candidates = [through_origin, Affine(float(seconds.mean()), 0.0)]
    centered = columns - columns.mean()
    square = float(centered @ centered)
    if square > 0:
        slope = float(centered @ seconds) / square
        offset = float(seconds.mean() - slope * columns.mean())
        if slope >= 0 and offset >= 0:
            return Affine(offset, slope)
    elif columns[0] > 0:
        return through_origin
    residuals = [line.fixed_s + line.column_s * columns - seconds for line in candidates]
    errors = [float(residual @ residual) for residual in residuals]
    return candidates[int(np.argmin(errors))]


def fit_communication(samples: Sequence[tuple[float, float, int]]) -> Communication:
    """Return Φ1 through samples: a line through those of one sender, and a term for each further.

    The term is what samples of several senders take beyond the line, by least squares; without such
    samples further senders are free. Without samples of one sender the line is through all.

    Parameters
    ----------
    samples : sequence of (columns, seconds, senders)
        The columns are those of all senders together; at least one sample.

    Examples
    --------
    >>> fit_communication([(1, 3.0, 1), (3, 5.0, 1), (4, 12.0, 4)])
    Communication(fixed_s=2.0, column_s=1.0, sender_s=2.0)
    """
    single = [(columns, seconds) for columns, seconds, senders in samples if senders == 1]
    if not single or len(single) == len(samples):
        line = fit([(columns, seconds) for columns, seconds, _ in samples])
        return Communication(line.fixed_s, line.column_s)
    line = fit(single)
    columns, seconds, senders = (np.array(part, float) for part in zip(*samples, strict=True))
    further = senders - 1
    beyond_s = seconds - line.fixed_s - line.column_s * columns
    sender_s = max(0.0, float(further @ beyond_s) / float(further @ further))
    return Communication(line.fixed_s, line.column_s, sender_s)


def fit_constant(samples: Sequence[Sample]) -> float:
    """Return Ω1 as the median of the samples, seconds; Ω1 does not depend on the columns."""
    return float(np.median([seconds for _, seconds in samples]))

"""What it costs to hand over and to leave out columns, from the samples of a pre-test.

Φ1(v) sends v columns and brings their results back, Φ2(v) computes them on a receiver, Ω1 makes
room for the smaller matrices, Ω2(v) takes the columns apart (section IV-B of the paper on
ZERO-resizing). The paper leaves the form of the functions open; the times of its Table I lie on
lines with an offset, and such are fitted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.mitigation.tensor.group import FloatArray

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

"""How residuals moved since a process group began, kept in few numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Float64, Int64

_MOST: Final = 64
_DAY_NS: Final = 86_400 * 1e9


@dataclass(frozen=True, slots=True)
class Slope:
    """A steady growth: as a share a day, and the step at which it began."""

    per_day: float
    from_step: int


@dataclass(slots=True)
class Trail:
    """Means of stretches of steps; when there are too many, each two become one.

    Parameters
    ----------
    values : float64[points, subjects]
    steps, ends_ns : int64[points]
    stride : int
        How many stretches a point is the mean of.
    """

    values: Float64 = field(default_factory=lambda: np.empty((0, 0)))
    steps: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    ends_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    stride: int = 1
    pending: Float64 = field(default_factory=lambda: np.empty((0, 0)))

    def grow(self, at: Int64, number: int) -> None:
        """Make room for subjects that are new."""
        for name in ("values", "pending"):
            old = getattr(self, name)
            new = np.full((len(old), number), np.nan)
            new[:, at] = old
            setattr(self, name, new)

    def add(self, values: Float64, step: int, end_ns: int) -> None:
        """Add the means of a stretch that ended with a step."""
        self.pending = np.concatenate([self.pending, values[None]])
        if len(self.pending) < self.stride:
            return
        self.values = np.concatenate([self.values, self.pending.mean(axis=0)[None]])
        self.steps = np.append(self.steps, step)
        self.ends_ns = np.append(self.ends_ns, end_ns)
        self.pending = self.pending[:0]
        if len(self.values) >= _MOST:
            self.values = (self.values[::2] + self.values[1::2]) / 2
            self.steps, self.ends_ns = self.steps[1::2], self.ends_ns[1::2]
            self.stride *= 2

    def slope(self, subject: int) -> Slope | None:
        """Return how a subject grew: level at first, then a line; the best such bend.

        Returns
        -------
        Slope or None
            None where too little is known, or it did not grow.
        """
        known = ~np.isnan(self.values[:, subject])
        values, ends, steps = self.values[known, subject], self.ends_ns[known], self.steps[known]
        if len(values) < 4:  # noqa: PLR2004
            return None
        days = (ends - ends[0]) / _DAY_NS
        best: tuple[float, float, int] | None = None
        for bend in range(len(values) - 2):
            ramp = np.maximum(days - days[bend], 0)
            design = np.stack([np.ones_like(ramp), ramp], axis=1)
            found, *_ = np.linalg.lstsq(design, values, rcond=None)
            error = float(((values - design @ found) ** 2).sum())
            if best is None or error < best[0]:
                best = error, float(found[1]), int(steps[bend])
        if best is None or best[1] <= 0:
            return None
        return Slope(per_day=best[1], from_step=best[2])

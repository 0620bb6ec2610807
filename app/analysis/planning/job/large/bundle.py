"""Prices that keep most from all pipelines that are known: a proximal bundle method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

# How far the first step may go, in prices, and steps to each one's end.
_REACH: Final = 0.3
_NEWTON: Final = 8
_EPSILON: Final = 1e-9


class Bundle:
    """What is known of the bound as prices change: planes that it is below; a proximal bundle."""

    def __init__(self, scale: FloatArray, target_ps: int, *, positive: bool) -> None:
        self.scale, self.target_ps, self.positive, self.weight = scale, target_ps, positive, 0.0
        self.offsets: list[float] = []
        self.slopes: list[FloatArray] = []

    def add(self, at: FloatArray, value: float, slope: FloatArray) -> None:
        """Add the plane of a pipeline: what it says at some prices, and by how much for each."""
        self.offsets.append(value - float(slope @ at))
        slope = slope / self.scale
        self.slopes.append(slope)
        if not self.weight:
            reach = max(float(np.abs(at * self.scale).max()), _EPSILON)
            self.weight = float(np.abs(slope).max()) / (_REACH * reach)

    def next(self, center: FloatArray, value: float) -> tuple[FloatArray, float]:
        """Return the prices that promise most near some, and what they promise."""
        if not self.weight:  # no price changes anything
            return center, value
        offsets, slopes = np.array(self.offsets), np.array(self.slopes)
        origin = center * self.scale
        at = origin.copy()

        def soft(point: FloatArray, width: float) -> tuple[float, FloatArray]:
            planes = -(offsets + slopes @ point) / width
            top = planes.max()
            weights = np.exp(planes - top)
            away = point - origin
            lost = self.weight / 2 * float(away @ away)
            return -width * float(top + np.log(weights.sum())) - lost, weights / weights.sum()

        for width in (self.target_ps * 1e-2, self.target_ps * 1e-3, self.target_ps * 1e-4):
            for _ in range(_NEWTON):
                here, share = soft(at, width)
                mean = share @ slopes
                gradient = mean - self.weight * (at - origin)
                bend = (slopes.T * share) @ slopes - np.outer(mean, mean)
                step = np.linalg.solve(bend / width + self.weight * np.eye(len(at)), gradient)
                length = 1.0
                while length > _EPSILON and soft(at + length * step, width)[0] < here:
                    length /= 2
                if length <= _EPSILON:
                    break
                at = at + length * step
        if self.positive:
            at = at.clip(0)
        return at / self.scale, float((offsets + slopes @ at).min())

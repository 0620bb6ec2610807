"""Measured times of work on this processor, and predictions held against them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_REPEATS: Final = 15


def measured_ms(work: Callable[[], object]) -> float:
    """Return the processor time of some work at its best: other processes do not count."""
    work()
    taken = []
    for _ in range(_REPEATS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken) * 1e3


@dataclass(frozen=True, slots=True)
class Held:
    """A prediction held against what was measured, ms; `whole`: of the whole small model."""

    what: str
    predicted: float
    measured: float
    whole: bool = False

    @property
    def off(self) -> float:
        """Return how far the prediction is above what was measured, as a share of it."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        return (
            f"{self.what}: predicted {self.predicted:.2f} ms, measured {self.measured:.2f} ms, "
            f"{100 * self.off:+.0f} %"
        )

"""Recent step time of a job: the cost of a notice and the gain of its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import NO_BEAT, Float64, Int64, Pulses

# The latest steps that are kept.
_KEPT: Final = 512
# Fewer steps than these say nothing.
FEWEST: Final = 8
# A step of this multiple of the median is one of a checkpoint or a stall.
_STALL: Final = 3.0


@dataclass(slots=True)
class Pace:
    """The latest steps of an attempt of a job, in rising order; bounded, whatever comes.

    Parameters
    ----------
    steps, rows : int64[steps]
        Step, and how many ranks sent it.
    step_ns : float64[steps]
        The mean over these ranks of how long it took, nanoseconds.
    """

    steps: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    step_ns: Float64 = field(default_factory=lambda: np.zeros(0, np.float64))
    rows: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))

    def advance(self, pulses: Pulses) -> Pace:
        """Take rows, and return the steps that they hold."""
        own = (pulses.phase == NO_BEAT) & (pulses.step_ns > 0)
        steps, which = np.unique(pulses.step[own], return_inverse=True)
        counts = np.bincount(which, minlength=len(steps)).astype(np.int64)
        sums = np.bincount(which, weights=pulses.step_ns[own], minlength=len(steps))
        came = Pace(steps, sums / np.maximum(counts, 1), counts)
        together, at = np.unique(np.concatenate([self.steps, steps]), return_inverse=True)
        rows = np.concatenate([self.rows, counts])
        total = np.bincount(
            at, weights=np.concatenate([self.step_ns, came.step_ns]) * rows, minlength=len(together)
        )
        number = np.bincount(at, weights=rows, minlength=len(together))
        self.steps = together[-_KEPT:].astype(np.int64)
        self.rows = number[-_KEPT:].astype(np.int64)
        self.step_ns = (total / np.maximum(number, 1))[-_KEPT:]
        return came

    def mean_ns(self, first: int | None = None, end: int | None = None) -> float | None:
        """Return how long a step takes from `first` on and before `end`, without stalls.

        Returns
        -------
        float or None
            Nanoseconds; None of less than eight steps.
        """
        start = 0 if first is None else int(np.searchsorted(self.steps, first))
        stop = len(self.steps) if end is None else int(np.searchsorted(self.steps, end))
        found = self.step_ns[start:stop]
        if len(found) < FEWEST:
            return None
        typical = float(np.median(found))
        return float(np.where(found > _STALL * typical, typical, found).mean())

    def lost_ns(self, first: int, baseline_ns: float, end: int | None = None) -> float:
        """Return by how much all ranks took longer than `baseline_ns` a step, together.

        Parameters
        ----------
        first, end : int
            The first step that counts, and the one after the last.
        """
        counts = self.steps >= first
        if end is not None:
            counts &= self.steps < end
        found = self.step_ns[counts]
        if not len(found):
            return 0.0
        typical = float(np.median(found))
        found = np.where(found > _STALL * typical, typical, found)
        return float(((found - baseline_ns) * self.rows[counts]).sum())

    def ranks(self) -> int:
        """Return how many ranks send a step."""
        return int(np.median(self.rows)) if len(self.rows) else 0

    def to_bytes(self) -> bytes:
        """Return the part of the response that is stored."""
        return np.vstack([self.steps, np.rint(self.step_ns), self.rows]).astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, kept: bytes | None) -> Pace:
        """Return what `to_bytes` gave; an empty one of anything else."""
        if not kept or len(kept) % 24:
            return cls()
        steps, step_ns, rows = np.frombuffer(kept, "<i8").reshape(3, -1)
        return cls(steps.astype(np.int64), step_ns.astype(np.float64), rows.astype(np.int64))

"""Recent step times of a job, from which the cost of a slowdown is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import (
    NO_BEAT,
    Pulses,
)
from app.analysis.quantities import FloatArray, IntArray

# Number of latest steps whose times are kept.
_KEPT: Final = 512
# Minimum number of steps from which a mean is computed.
FEWEST: Final = 8
# A step longer than this multiple of the median contains a checkpoint or a stall.
_STALL: Final = 3.0


@dataclass(slots=True)
class Pace:
    """The times of the latest 512 steps of an attempt of a job, sorted by step number.

    Parameters
    ----------
    steps, rows : int64[steps]
        Step number, and number of ranks that sent the step.
    step_ns : float64[steps]
        Mean step time of these ranks, nanoseconds.
    """

    steps: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    step_ns: FloatArray = field(default_factory=lambda: np.zeros(0, np.float64))
    rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def advance(self, pulses: Pulses) -> Pace:
        """Add the step times in rows, and return the pace of these rows alone."""
        own = (pulses.phase == NO_BEAT) & (pulses.step_ns > 0)
        steps, which = np.unique(pulses.step[own], return_inverse=True)
        counts = np.bincount(which, minlength=len(steps)).astype(np.int64)
        sums = np.bincount(which, weights=pulses.step_ns[own], minlength=len(steps))
        batch = Pace(steps, sums / np.maximum(counts, 1), counts)
        merged, at = np.unique(np.concatenate([self.steps, steps]), return_inverse=True)
        rows = np.concatenate([self.rows, counts])
        total = np.bincount(
            at, weights=np.concatenate([self.step_ns, batch.step_ns]) * rows, minlength=len(merged)
        )
        number = np.bincount(at, weights=rows, minlength=len(merged))
        self.steps = merged[-_KEPT:].astype(np.int64)
        self.rows = number[-_KEPT:].astype(np.int64)
        self.step_ns = (total / np.maximum(number, 1))[-_KEPT:]
        return batch

    def mean_ns(self, first: int | None = None, end: int | None = None) -> float | None:
        """Return the mean time of steps `first` to `end` - 1, with stalls set to the median.

        Returns
        -------
        float or None
            Nanoseconds; None for fewer than eight steps.
        """
        start = 0 if first is None else int(np.searchsorted(self.steps, first))
        stop = len(self.steps) if end is None else int(np.searchsorted(self.steps, end))
        times_ns = self.step_ns[start:stop]
        return float(_without_stalls(times_ns).mean()) if len(times_ns) >= FEWEST else None

    def lost_ns(self, first: int, baseline_ns: float, end: int | None = None) -> float:
        """Return the GPU-nanoseconds over `baseline_ns` in steps `first` to `end` - 1."""
        counts = self.steps >= first
        if end is not None:
            counts &= self.steps < end
        times_ns = self.step_ns[counts]
        if not len(times_ns):
            return 0.0
        return float(((_without_stalls(times_ns) - baseline_ns) * self.rows[counts]).sum())

    def ranks(self) -> int:
        """Return the median number of ranks that sent a step."""
        return int(np.median(self.rows)) if len(self.rows) else 0

    def to_bytes(self) -> bytes:
        """Return the pace as bytes for the database."""
        return np.vstack([self.steps, np.rint(self.step_ns), self.rows]).astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, kept: bytes | None) -> Pace:
        """Return the pace that `to_bytes` stored; an empty pace for None or damaged bytes."""
        if not kept or len(kept) % 24:
            return cls()
        steps, step_ns, rows = np.frombuffer(kept, "<i8").reshape(3, -1)
        return cls(steps.astype(np.int64), step_ns.astype(np.float64), rows.astype(np.int64))


def _without_stalls(times_ns: FloatArray) -> FloatArray:
    """Return step times in which the median replaces stalls."""
    typical = float(np.median(times_ns))
    return np.where(times_ns > _STALL * typical, typical, times_ns)

"""The last steps of a process group, as far as notices need them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Float64, Int64
from app.analysis.pulse.evidence.expected import Residuals
from app.analysis.pulse.evidence.measured import Stretch

KEPT: Final = 128
# Of each step, next to the residuals: see `Stretch`.
_JOB: Final = ("step_ns", "longest_ns", "tokens")


def _wide() -> Float64:
    return np.empty((0, 0))


@dataclass(slots=True)
class History:
    """Rows of the last `KEPT` steps.

    Parameters
    ----------
    numbers, ends_ns : int64[steps]
    values : float64[steps, subjects]
        Residuals; see `Residuals`.
    logs, own_past : float64[steps, stages]
    lengths : float64[steps, ranks]
    job : float64[steps, 3]
        Step, longest computing and tokens.
    parts_ns : float64[steps, parts]
    """

    numbers: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    ends_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    values: Float64 = field(default_factory=_wide)
    logs: Float64 = field(default_factory=_wide)
    own_past: Float64 = field(default_factory=_wide)
    lengths: Float64 = field(default_factory=_wide)
    job: Float64 = field(default_factory=lambda: np.empty((0, len(_JOB))))
    parts_ns: Float64 = field(default_factory=lambda: np.empty((0, 4)))

    def grow(self, columns: dict[str, tuple[Int64, int]]) -> None:
        """Give arrays more columns: by name, where those that are there go, and how many."""
        for name, (at, number) in columns.items():
            old = getattr(self, name)
            new = np.full((len(old), number), np.nan)
            new[:, at] = old
            setattr(self, name, new)

    def add(self, numbers: Int64, ends_ns: Int64, residuals: Residuals, stretch: Stretch) -> None:
        """Add steps; all are kept until `trim`. Residuals are rounded: the state is small then."""
        job = np.stack([getattr(stretch, name) for name in _JOB], axis=1)
        for name, rows in (
            *(("numbers", numbers), ("ends_ns", ends_ns), ("values", _rounded(residuals.values))),
            *(("logs", residuals.logs), ("own_past", residuals.own_past)),
            *(("lengths", _rounded(residuals.lengths)), ("job", job)),
            ("parts_ns", stretch.parts_ns),
        ):
            setattr(self, name, np.concatenate([getattr(self, name), rows]))

    def trim(self) -> None:
        """Forget all but the last steps."""
        if len(self.numbers) > KEPT:
            for name in self.__slots__:
                setattr(self, name, getattr(self, name)[-KEPT:])

    def last(self, count: int) -> tuple[Residuals, Stretch]:
        """Return the last steps."""
        rows = slice(len(self.numbers) - count, None)
        residuals = Residuals(
            self.values[rows], self.logs[rows], self.own_past[rows], self.lengths[rows]
        )
        step, longest, tokens = self.job[rows].T
        return residuals, Stretch(step, longest, tokens, self.parts_ns[rows])


def _rounded(values: Float64) -> Float64:
    return values.astype(np.float32).astype(np.float64)

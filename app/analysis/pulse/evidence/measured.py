"""What is computed of steps before anything about them is learned: once for many of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.analysis.pulse.columns import Bool, Float64
from app.analysis.pulse.evidence.medians import median_of_rows
from app.analysis.pulse.steps import Steps

_PARTS = ("wait_ns", "data_ns", "optimizer_ns", "gc_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Measures of the job in some steps.

    Parameters
    ----------
    step_ns : float64[steps]
        Median over the ranks.
    longest_ns : float64[steps]
        The longest computing of any rank.
    tokens : float64[steps]
        Median over the ranks; 0 where unknown.
    parts_ns : float64[steps, parts]
        Waiting, data, optimizer and garbage collection, the median of the ranks.
    """

    step_ns: Float64
    longest_ns: Float64
    tokens: Float64
    parts_ns: Float64

    def some(self, rows: slice) -> Stretch:
        """Return some of the steps."""
        return Stretch(
            self.step_ns[rows], self.longest_ns[rows], self.tokens[rows], self.parts_ns[rows]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Steps, and what follows from each of them alone.

    Parameters
    ----------
    steps : Steps
    there : bool[steps, ranks]
        Who sent the step.
    logs : float64[steps, ranks]
        Logarithm of a rank's own computing; NaN where it says nothing.
    lengths : float64[steps, ranks]
        Logarithm of tokens to the usual number; 0 where unknown.
    known_tokens : float64[steps]
        Median over the ranks of which they are known.
    stretch : Stretch
    """

    steps: Steps
    there: Bool
    logs: Float64
    lengths: Float64
    known_tokens: Float64
    stretch: Stretch

    @classmethod
    def of(cls, steps: Steps, lengths: Float64) -> Measured:
        """Return what is measured in some steps."""
        measures = steps.measures
        # Whether a pause of the collector is part of computing is unknown: it never counts.
        own = own_computing(measures)
        tokens = measures["tokens"]
        middle = median_of_rows(tokens)
        collecting = measures["gc_ns"]
        parts = [median_of_rows(measures[name]) for name in _PARTS]
        more = np.maximum(collecting - parts[-1][:, None], 0)
        known = np.isnan(tokens) | (tokens > 0)
        return cls(
            steps,
            ~np.isnan(measures["step_ns"]),
            np.log(np.where(own > 0, own, np.nan)),
            lengths,
            middle if known.all() else median_of_rows(np.where(tokens > 0, tokens, np.nan)),
            Stretch(
                median_of_rows(measures["step_ns"]),
                np.fmax.reduce(own + more, axis=1),
                middle,
                np.stack(parts, axis=1),
            ),
        )

    def some(self, rows: slice) -> Measured:
        """Return some of the steps."""
        return Measured(
            self.steps.some(rows),
            self.there[rows],
            self.logs[rows],
            self.lengths[rows],
            self.known_tokens[rows],
            self.stretch.some(rows),
        )


def own_computing(measures: Mapping[str, Float64]) -> Float64:
    """Return computing without the collector; NaN where it took more than half."""
    computing = measures["compute_ns"]
    own = computing - measures["gc_ns"]
    return np.where(own > computing / 2, own, np.nan)

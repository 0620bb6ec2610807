"""Whole steps: what all ranks of a process group did in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.analysis.pulse.columns import Float64, Int64

# How long a step waits for ranks that are missing.
WAITS_NS: Final = 10_000_000_000
# More ranks are not told apart.
MOST_RANKS: Final = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Whole steps of one process group, in order.

    Parameters
    ----------
    group : int
        Counts the process groups: another one begins with an attempt, and where steps repeat or
        ranks get other places within it.
    ranks, dp_ranks, pp_ranks : int64[ranks]
    steps, closed_ns : int64[steps]
        The numbers of the steps, and when each was there.
    ended_ns : int64[steps, ranks]
    measures : mapping of str to float64[steps, ranks]
        NaN where a rank is missing.
    """

    group: int
    attempt: int
    ranks: Int64
    dp_ranks: Int64
    pp_ranks: Int64
    steps: Int64
    closed_ns: Int64
    ended_ns: Int64
    measures: dict[str, Float64]

    def some(self, rows: slice) -> Steps:
        """Return some of the steps."""
        return Steps(
            self.group,
            self.attempt,
            self.ranks,
            self.dp_ranks,
            self.pp_ranks,
            self.steps[rows],
            self.closed_ns[rows],
            self.ended_ns[rows],
            {name: values[rows] for name, values in self.measures.items()},
        )

"""What proves a lower bound: every possible time of the slowest stage, in intervals.

A leaf says of the templates whose slowest stage takes low_ps to high_ps that none costs less than
`bound_ps`. Every time that any stage can take is in a leaf; the smallest bound is the
certificate's. By t_oobleck, which prices a single stage by a rule of its own, the leaves are about
templates of several stages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """An interval of the slowest stage's time, both ends included, in ps.

    `bound_ps` is None where no template has its slowest stage there.
    """

    low_ps: int
    high_ps: int
    bound_ps: int | None


@dataclass(frozen=True, slots=True)
class Certificate:
    """The leaves in order, what they prove, and how many intervals were looked into."""

    objective: str
    leaves: tuple[Leaf, ...]
    lower_bound_ps: int
    upper_bound_ps: int
    explored: int

    @property
    def closed(self) -> bool:
        """Return whether the upper bound is proven to be the optimum."""
        return self.lower_bound_ps >= self.upper_bound_ps

    @property
    def gap(self) -> float:
        """Return how far above the lower bound the upper one is, as a fraction."""
        return max(self.upper_bound_ps / self.lower_bound_ps - 1, 0.0)

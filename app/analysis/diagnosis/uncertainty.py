"""How far a step without causes may be off, which makes the interval of the slowdown wider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from app.analysis.replay.layout.dense import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Uncertainty:
    """How far a step without a cause may be off, apart from what steps differ by."""

    # Relative half width of the 95 % interval of the step time without the cause.
    reference: float = 0.0
    # How much longer that step may be in addition, by what a healthy job does too and no replay
    # shows; of large values the difference of the logarithms.
    longer: float = 0.0
    # (steps,): what each step computes ÷ the mean; without the cause all of them compute the mean
    work: FloatArray | None = None
    # Steps from one occurrence to the next, where the cause recurs by its nature.
    cycle: int | None = None
    # The share of the workers that the cause keeps waiting, less where it does so part of the
    # time: what they launch late does not show.
    hiding: float = 1.0

    @staticmethod
    def combine(parts: Sequence[Uncertainty]) -> Uncertainty:
        """Return the uncertainty of a step without several causes, which are independent."""
        return Uncertainty(
            reference=hypot(*(part.reference for part in parts)),
            longer=hypot(*(part.longer for part in parts)),
            work=next((part.work for part in parts if part.work is not None), None),
            cycle=parts[0].cycle if len(parts) == 1 else None,
            hiding=max((part.hiding for part in parts), default=1.0),
        )

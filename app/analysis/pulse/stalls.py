"""Stalls: single long steps, counted by the part of the step that grew; they cause no notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import (
    Steps,
)
from app.analysis.pulse.notices import Part, Stall
from app.analysis.quantities import BoolArray, FloatArray

# A step is a stall if it takes longer than this multiple of the usual step time.
_LONG: Final = 1.3
# A part of the step is the cause of a stall if it grew by more than this share of the time by which
# the step was too long.
_EXPLAINS: Final = 0.5
_LINED_UP: Final = 0.5
_KEPT: Final = 33
_MOST_IN_A_ROW: Final = 4
_ORDER: Final = (Part.WAITING, Part.DATA, Part.OPTIMIZER, Part.GC, Part.COMPUTING)
_MOST_RANKS: Final = 8
_PARTS: Final = (
    (Part.DATA, "data_ns"),
    (Part.GC, "gc_ns"),
    (Part.OPTIMIZER, "optimizer_ns"),
    (Part.COMPUTING, "compute_ns"),
    (Part.WAITING, "wait_ns"),
)


@dataclass(slots=True)
class StallCount:
    """Number and cost of the stalls with the same cause."""

    cause: Part
    lined_up: bool
    steps: int = 0
    lost_ns: int = 0
    worst: float = 1.0
    first: int = -1
    last: int = -1
    recent: list[int] = field(default_factory=list)
    ranks: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Stalls:
    """The stalls of a job, counted by cause."""

    counts: list[StallCount] = field(default_factory=list)
    seen: int = 0
    # Number of consecutive long steps, of which the latest step is the last.
    run: int = 0

    def look(
        self,
        steps: Steps,
        usual_ns: float,
        computing_ns: float,
        parts_ns: FloatArray,
        first: BoolArray,
    ) -> None:
        """Count the stalls among the given steps.

        Parameters
        ----------
        usual_ns, computing_ns : float
            Usual step time, and usual longest computing in a step; NaN while unknown.
        parts_ns : float64[4]
            Usual waiting, data loading, optimizer and garbage collection of a step.
        first : bool[steps]
            Mask of the first steps of a group, which do not count.
        """
        self.seen += int((~first).sum())
        if np.isnan(usual_ns):
            return
        with np.errstate(invalid="ignore"):
            longest = np.fmax.reduce(steps.measures["step_ns"], axis=1)
            long = ~first & (longest > _LONG * usual_ns)
        usual = dict(zip(_ORDER, (*parts_ns, computing_ns), strict=True))
        at = np.flatnonzero(long)
        before = -1
        for row in at:
            # Many long steps in a row are a slowdown, which gets a notice, not a stall.
            self.run = self.run + 1 if row == before + 1 else 1
            before = int(row)
            if self.run <= _MOST_IN_A_ROW:
                self._count(steps, int(row), float(longest[row]), usual_ns, usual)
        if before != len(long) - 1:
            self.run = 0

    def _count(
        self,
        steps: Steps,
        row: int,
        longest_ns: float,
        usual_ns: float,
        usual: Mapping[Part, float],
    ) -> None:
        excess = longest_ns - usual_ns
        cause, lined_up, ranks = Part.OTHER, len(steps.ranks) > 1, list[int]()
        for part, name in _PARTS:
            values = steps.measures[name][row]
            with np.errstate(invalid="ignore"):
                grown = values - usual[part] > _EXPLAINS * excess
            if grown.any():
                cause = part
                share = grown.sum() / max(1, np.count_nonzero(~np.isnan(values)))
                lined_up = bool(share >= _LINED_UP) and len(values) > 1
                ranks = [] if lined_up else [int(rank) for rank in steps.ranks[grown]]
                break
        for count in self.counts:
            if count.cause is cause and count.lined_up == lined_up:
                break
        else:
            count = StallCount(cause, lined_up, first=int(steps.steps[row]))
            self.counts.append(count)
        count.steps += 1
        count.lost_ns += int(excess)
        count.worst = max(count.worst, longest_ns / usual_ns)
        count.last = int(steps.steps[row])
        count.recent = [*count.recent, count.last][-_KEPT:]
        for rank in ranks[:_MOST_RANKS]:
            if rank in count.ranks or len(count.ranks) < 8 * _MOST_RANKS:
                count.ranks[rank] = count.ranks.get(rank, 0) + 1

    def listed(self) -> tuple[Stall, ...]:
        """Return the stalls of each cause, sorted by descending cost."""
        return tuple(
            Stall(
                cause=count.cause,
                lined_up=count.lined_up,
                ranks=tuple(
                    sorted(sorted(count.ranks, key=lambda rank: -count.ranks[rank])[:_MOST_RANKS])
                ),
                steps=count.steps,
                share=count.steps / max(1, self.seen),
                lost_ns=count.lost_ns,
                worst_factor=count.worst,
                first_step=count.first,
                last_step=count.last,
                period_steps=_period(count.recent),
            )
            for count in sorted(self.counts, key=lambda count: -count.lost_ns)
        )


def _period(steps: list[int]) -> float | None:
    """Return the median number of steps between stalls, if most of the distances are near it."""
    distances = np.diff(steps)
    if len(distances) < 3:  # noqa: PLR2004
        return None
    middle = float(np.median(distances))
    alike = np.abs(distances - middle) <= 0.1 * middle
    return middle if middle > 1 and alike.mean() > 0.6 else None  # noqa: PLR2004

"""Where the time goes, as a report has it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from app.analysis.budget.parts import Part
from app.analysis.budget.split import Split

_NS: Final = 1e-9
# What is lost is said from this share of the time on.
WORTH_SAYING: Final = 0.05
# A file of a thousand jobs asks for it several times of each.
_LOST: Final = attrgetter(*(part for part in Part if part.lost))


@dataclass(frozen=True, slots=True)
class Shares:
    """What the time of all workers passes with, as shares of it that add up to 1."""

    computing: float
    """Computing as long as the median of the stage's peers does in its best stretch."""
    own_slowness: float
    """Computing longer than that, or less long, what all workers do alike taken off."""
    slow_together: float
    """What steps take longer in which all workers compute slower than in their best stretch."""
    waiting: float
    """Waiting for other workers: for stragglers."""
    bubble: float
    """Waiting for the pipeline to fill and drain, as in the replayed ideal step."""
    communication: float
    """Communication that no computation hides, as long as it takes the median of the stage's
    peers."""
    communication_above: float
    """The same beyond that."""
    launch_delays: float
    """Nothing computes and nothing communicates in a step, which is longer for it: hosts are
    late."""
    between_steps: float
    """From the last end of a step to the first start of the next, as long as the median."""
    between_steps_above: float
    """The same beyond the median."""
    missing: float
    """Steps that are left out: incomplete ones between others that are analyzed, and odd ones."""

    def of(self, part: Part) -> float:
        """Return the share of a part."""
        share: float = getattr(self, part)
        return share

    @property
    def lost(self) -> float:
        """Return the share that a job without stragglers and standstills would not need."""
        parts: tuple[float, ...] = _LOST(self)
        return sum(parts)

    @property
    def stragglers(self) -> float:
        """Return the share that is lost to stragglers: what not all workers lose alike."""
        return self.lost - self.slow_together - self.between_steps_above


@dataclass(frozen=True, slots=True)
class Losses:
    """What of the time is lost, as shares of it."""

    stragglers: float
    """To what not all workers lose alike."""
    between: float
    """Between steps, beyond what has to pass there."""
    together: float
    """By all workers together: in steps in which all compute slower."""

    @property
    def lost(self) -> float:
        """Return the share that is lost to any of it."""
        return self.stragglers + self.between + self.together


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the time of the session goes.

    From the first operation of the first step to the last one of the last, without gaps in which
    steps were not recorded: nothing is known of those.
    """

    wall_s: float
    """Seconds that all this takes each worker."""
    shares: Shares
    """Of all workers and steps; none is negative."""
    by_worker: dict[Part, tuple[tuple[float, ...], ...]]
    """The shares of each worker, [dp][pp]; one may be negative."""
    by_step: dict[Part, tuple[float, ...]]
    """The shares of each step, with what follows until the next one."""
    step_wall_s: tuple[float, ...]
    """How long each step takes, with what follows until the next one, seconds."""


def budget_of(split: Split) -> Budget:
    """Return the shares of a split time."""
    wall_ns, parts_ns = split.wall_ns, split.parts_ns
    workers = wall_ns.shape[0] * wall_ns.shape[2]
    whole_ns, step_ns = wall_ns.sum(), wall_ns.sum(axis=(0, 2))
    of_workers_ns = parts_ns.sum(axis=2)
    shares = of_workers_ns.sum(axis=(1, 2)) / max(whole_ns, 1.0)
    # a step, or all that is known of a worker, may take no time at all
    by_worker = (of_workers_ns / np.maximum(wall_ns.sum(axis=1), 1.0)).swapaxes(1, 2)
    by_step = parts_ns.sum(axis=(1, 3)) / np.maximum(step_ns, 1.0)
    return Budget(
        wall_s=float(whole_ns) / workers * _NS,
        # what is nothing may come out below by rounding
        shares=Shares(*np.maximum(shares, 0.0).tolist()),
        by_worker={
            part: tuple(map(tuple, of)) for part, of in zip(Part, by_worker.tolist(), strict=True)
        },
        by_step={part: tuple(of) for part, of in zip(Part, by_step.tolist(), strict=True)},
        step_wall_s=tuple((step_ns / workers * _NS).tolist()),
    )

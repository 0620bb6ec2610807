"""Readable implementations for tensor-parallel groups: formulas, all divisions, all events.

No code of `app.analysis.mitigation` is used.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Cost = Callable[[float, int], float]


def migrating(times: Sequence[float], columns: float, communicate: Cost) -> int:
    """Return x of Eq. 3, for descending times and equal numbers of columns."""
    ranks, fastest = len(times), min(times)
    positive = [0]
    for x in range(1, ranks):
        volume = sum(columns * (times[i] - fastest) / times[i] for i in range(x))
        receivers = range(x, ranks)
        added = max(
            communicate(volume, x) + times[j] / columns * volume / (ranks - x) for j in receivers
        )
        if (times[x - 1] - fastest) - added > 0:
            positive.append(x)
    return max(positive)


def soonest(fixed: Sequence[float], unit: Sequence[float], columns: int) -> float:
    """Return the time of the slowest rank in the best of all divisions into whole columns."""
    ranks, best = len(fixed), float("inf")
    for cut in itertools.combinations(range(1, ranks * columns), ranks - 1):
        parts = [b - a for a, b in itertools.pairwise((0, *cut, ranks * columns))]
        done = max(f + u * n for f, u, n in zip(fixed, unit, parts, strict=True))
        best = min(best, done)
    return best


@dataclass(frozen=True)
class Machine:
    """The speeds of a simulated group, in seconds of one layer and one pass.

    Parameters
    ----------
    fixed, column : sequence of float
        Of each rank: time that does not depend on the columns, and time of each column.
    columns, layers : int
    latency, per_column, per_sender : float
        Of a transfer of migrated columns; for each of these and for each sender after the first.
    allocating, extracting : float
        Of a rank that resizes, for all and for each column.
    all_reduce : float
    """

    fixed: Sequence[float]
    column: Sequence[float]
    columns: int
    layers: int
    latency: float = 0.0
    per_column: float = 0.0
    per_sender: float = 0.0
    allocating: float = 0.0
    extracting: float = 0.0
    all_reduce: float = 0.0

    @property
    def passes(self) -> int:
        """Return the number of passes in a step: a forward and a backward pass of each layer."""
        return 2 * self.layers


@dataclass
class Ran:
    """A simulated step: its end, and the computing time of each rank."""

    end: float
    busy: list[float]
    waits: list[float] = field(default_factory=list)


# An operation of a rank: a computation of a duration, or a collective transfer of a duration.
_Op = tuple[str, float]


@dataclass(frozen=True)
class Shed:
    """A plan in columns by rank; migrated columns are sent in each step, or were sent once."""

    resized: Sequence[int]
    migrated: Sequence[int]
    received: Sequence[int]
    each_step: bool = True


def run_step(
    machine: Machine, rng: random.Random, plan: Shed | None = None, *, noise: float = 0.0
) -> Ran:
    """Run one step event by event.

    Every pass ends with an all-reduce that begins when the last rank has reached it. If columns
    migrate in each step, a transfer precedes each pass, and another one returns the results.
    """
    ranks = len(machine.fixed)
    nothing = [0] * ranks
    plan = plan or Shed(nothing, nothing, nothing)
    programs = [_program(machine, plan, rank) for rank in range(ranks)]
    events = [(0.0, rank) for rank in range(ranks)]
    heapq.heapify(events)
    met: list[tuple[int, float]] = []
    done = Ran(0.0, [0.0] * ranks, [0.0] * ranks)
    while events:
        now, rank = heapq.heappop(events)
        kind, length = next(programs[rank], ("end", 0.0))
        if kind == "end":
            done.end = max(done.end, now)
        elif kind == "compute":
            length *= 1 + noise * rng.uniform(-1, 1)
            done.busy[rank] += length
            heapq.heappush(events, (now + length, rank))
        else:
            met.append((rank, now))
        if len(met) == ranks:
            for other, came in met:
                done.waits[other] += now - came
                heapq.heappush(events, (now + length, other))
            met = []
    return done


def _program(machine: Machine, plan: Shed, rank: int) -> Iterator[_Op]:
    """Return the operations of a rank in a step."""
    sent = sum(plan.migrated) if plan.each_step else 0
    senders = sum(columns > 0 for columns in plan.migrated)
    further = machine.per_sender * (senders - 1)
    transfer = (machine.latency + machine.per_column * sent + further) / 2
    resized = plan.resized[rank]
    columns = machine.columns - resized - plan.migrated[rank] + plan.received[rank]
    for number in range(machine.passes):
        # The backward pass computes two products.
        length = 1 if number < machine.layers else 2
        if sent:
            yield "meet", transfer
        if resized:
            yield "compute", machine.allocating + machine.extracting * resized
        yield "compute", machine.fixed[rank] * length
        yield "compute", machine.column[rank] * length * columns
        if sent:
            yield "meet", transfer
        yield "meet", machine.all_reduce

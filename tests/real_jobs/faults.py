"""Faults of a job, and their effect on the time of each computation and transfer."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from tests.real_jobs.jobs import MICROBATCHES, Job, Place

# Steps of a run: one warm-up step, numbered 0, which is not recorded, and the recorded ones.
RECORDED_STEPS: Final = 6

_SEED: Final = 20
_TOKENS: Final = 8192


@dataclass(frozen=True, slots=True)
class Fault:
    """A healthy job, and the base class of all faults.

    The methods return the values of a healthy job; a fault overrides those that it changes.
    """

    @property
    def says(self) -> str | None:
        """The fault in words."""
        return None

    @property
    def cause(self) -> str | None:
        """The cause that a report should name."""
        return None

    @property
    def worker(self) -> Place | None:
        """The worker that is to blame."""
        return None

    @property
    def stage(self) -> int | None:
        """The stage that is to blame."""
        return None

    def even_share(self, job: Job) -> float:
        """Return the work of each computation without the fault, relative to its healthy work."""
        del job
        return 1.0

    def work(self, job: Job, place: Place, step: int, microbatch: int) -> float:
        """Return the time of a computation relative to its time in a healthy job."""
        del job, place, step, microbatch
        return 1.0

    def pauses(self, job: Job, place: Place, step: int, microbatch: int) -> float:
        """Seconds, at the default pace, for which a forward stalls in the garbage collector."""
        del job, place, step, microbatch
        return 0.0

    def wire_s(self, dp: int, first_stage: int) -> float:
        """Seconds that a transfer between a stage and the next takes on the wire."""
        del dp, first_stage
        return 0.0

    def lengths(self, job: Job) -> dict[int, list[list[list[int]]]] | None:
        """Return the sequences' tokens by step, DP rank and microbatch, as in the metadata."""
        del job
        return None


@dataclass(frozen=True, slots=True)
class SlowWorker(Fault):
    """One worker computes slower."""

    where: Place
    factor: float

    @property
    def says(self) -> str:
        return f"one worker {self.factor:g} times slower"

    @property
    def cause(self) -> str:
        return "slow_worker"

    @property
    def worker(self) -> Place:
        return self.where

    def work(self, job: Job, place: Place, step: int, microbatch: int) -> float:
        del job, step, microbatch
        return self.factor if place == self.where else 1.0


@dataclass(frozen=True, slots=True)
class HeavyStage(Fault):
    """One stage has more to compute."""

    where: int
    factor: float

    @property
    def says(self) -> str:
        return f"stage {self.where} has {self.factor:g} times the work"

    @property
    def cause(self) -> str:
        return "stage_imbalance"

    @property
    def stage(self) -> int:
        return self.where

    def even_share(self, job: Job) -> float:
        return (job.pp - 1 + self.factor) / job.pp

    def work(self, job: Job, place: Place, step: int, microbatch: int) -> float:
        del job, step, microbatch
        return self.factor if place.pp == self.where else 1.0


@dataclass(frozen=True, slots=True)
class EvenShare(Fault):
    """All stages compute the same, but more than usual: the reference of an uneven job."""

    factor: float

    def work(self, job: Job, place: Place, step: int, microbatch: int) -> float:
        del job, place, step, microbatch
        return self.factor


@dataclass(frozen=True, slots=True)
class Pauses(Fault):
    """Forward passes on random workers stall in the garbage collector.

    Parameters
    ----------
    recorded : bool
        Whether the collections are recorded with `gc.callbacks`.
    share : float
        Share of the job's recorded forward passes.
    """

    recorded: bool
    share: float = 0.04

    @property
    def says(self) -> str:
        told = "recorded by gc.callbacks" if self.recorded else "not recorded"
        return f"pauses of 100 to 300 ms in {self.share:.0%} of forwards, {told}"

    @property
    def cause(self) -> str:
        return "garbage_collection"

    def pauses(self, job: Job, place: Place, step: int, microbatch: int) -> float:
        rng = random.Random(_SEED)  # noqa: S311 - which forwards stall is no secret
        forwards = [
            (rank, at, mb)
            for rank in range(job.world)
            for at in range(1, RECORDED_STEPS + 1)
            for mb in range(MICROBATCHES)
        ]
        stalled = rng.sample(forwards, round(self.share * len(forwards)))
        forward = (job.rank(place.dp, place.pp), step, microbatch)
        if forward not in stalled:
            return 0.0
        return 0.1 + 0.2 * stalled.index(forward) / max(1, len(stalled) - 1)


@dataclass(frozen=True, slots=True)
class UnevenLengths(Fault):
    """Microbatches hold sequences of different lengths, on all stages alike."""

    @property
    def says(self) -> str:
        return "sequences of different lengths"

    @property
    def cause(self) -> str:
        return "sequence_length_imbalance"

    def lengths(self, job: Job) -> dict[int, list[list[list[int]]]]:
        rng = random.Random(_SEED)  # noqa: S311 - lengths are no secret
        return {
            step: [[_packed(rng) for _ in range(MICROBATCHES)] for _ in range(job.dp)]
            for step in range(1, RECORDED_STEPS + 1)
        }

    def work(self, job: Job, place: Place, step: int, microbatch: int) -> float:
        lengths = self.lengths(job)
        if step not in lengths:
            return 1.0
        squares = [
            _squares(sequences)
            for lanes in lengths.values()
            for lane in lanes
            for sequences in lane
        ]
        mean = sum(squares) / len(squares)
        # A quarter of a computation is linear in its tokens, whose number is the same in all
        # microbatches.
        return 0.25 + 0.75 * _squares(lengths[step][place.dp][microbatch]) / mean


@dataclass(frozen=True, slots=True)
class SlowLink(Fault):
    """Transfers of one DP rank between two stages take long on the wire."""

    dp: int
    first_stage: int
    takes_s: float

    @property
    def says(self) -> str:
        between = f"stages {self.first_stage} and {self.first_stage + 1}"
        return f"{1000 * self.takes_s:g} ms on the wire between {between} of DP rank {self.dp}"

    @property
    def cause(self) -> str:
        return "network"

    def wire_s(self, dp: int, first_stage: int) -> float:
        return self.takes_s if (dp, first_stage) == (self.dp, self.first_stage) else 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a worker in a scenario.

    Parameters
    ----------
    forward_s : float
        Time of a model chunk's forward pass in a healthy job; a backward pass takes twice that.
    """

    job: Job
    fault: Fault
    place: Place
    forward_s: float
    _cache: dict[tuple[int, int], float] = field(default_factory=dict)

    def computation_s(self, step: int, microbatch: int, *, backward: bool) -> float:
        """Return how long a chunk computes on a microbatch, without stalls."""
        key = (step, microbatch)
        if key not in self._cache:
            self._cache[key] = self.fault.work(self.job, self.place, step, microbatch)
        passes = 2 if backward else 1
        return passes * self.forward_s * self._cache[key]

    def pause_s(self, step: int, microbatch: int, chunk: int) -> float:
        """Return the stall of a forward pass in s; only a stage's first chunk stalls."""
        return 0.0 if chunk else self.fault.pauses(self.job, self.place, step, microbatch)

    def wire_s(self, first_stage: int) -> float:
        """Return how long a transfer of this DP rank between two stages is on the wire."""
        return self.job.wire_s + self.fault.wire_s(self.place.dp, first_stage)


def _packed(rng: random.Random) -> list[int]:
    """Fill a microbatch with sequences of skewed lengths."""
    left, sequences = _TOKENS, []
    while left:
        length = min(left, max(256, int(_TOKENS * rng.random() ** 2)))
        sequences.append(length)
        left -= length
    return sequences


def _squares(sequences: list[int]) -> float:
    return float(sum(length**2 for length in sequences))

"""Which schedule a rank's computations and transfers imply, and so which computation is which.

A recording without labels shows in which order a rank computed forward and backward, and how often
it sent and received. A schedule is implied where it has exactly that order and those numbers:
1F1B and GPipe with one chunk a stage, interleaved 1F1B and looped breadth-first with several. The
orders are those of ``torch.distributed.pipelining.schedules``, which are Megatron-Core's as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_MAX_CHUNKS: Final = 16
_MAX_LETTERS: Final = 40


@dataclass(frozen=True, slots=True)
class Computation:
    """A forward or a backward of a microbatch through a model chunk."""

    backward: bool
    chunk: int
    mb: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a recording shows of one step of a rank.

    Parameters
    ----------
    backwards : tuple of bool
        For each computation in order, whether it is a backward.
    sends, receives : int
        How many there are.
    """

    backwards: tuple[bool, ...]
    sends: int
    receives: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of computations on each stage of a pipeline.

    Parameters
    ----------
    name : str
        What people call it.
    stages : int
        Ranks of the pipeline.
    chunks : int
        Model chunks of a rank.
    """

    name: str
    stages: int
    chunks: int
    microbatches: int

    def order(self, stage: int) -> tuple[Computation, ...]:
        """Return the computations of a rank in order."""
        return tuple(self._order(stage))

    def receives(self, one: Computation, stage: int) -> bool:
        """Return whether the input of a computation comes from another rank."""
        place = one.chunk * self.stages + stage
        return place < self.stages * self.chunks - 1 if one.backward else place > 0

    def sends(self, one: Computation, stage: int) -> bool:
        """Return whether the output of a computation goes to another rank."""
        place = one.chunk * self.stages + stage
        return place > 0 if one.backward else place < self.stages * self.chunks - 1

    def fits(self, seen: Seen, stage: int) -> bool:
        """Return whether it has this order of computations and these numbers of transfers."""
        order = self.order(stage)
        return (
            tuple(one.backward for one in order) == seen.backwards
            and sum(self.sends(one, stage) for one in order) == seen.sends
            and sum(self.receives(one, stage) for one in order) == seen.receives
        )

    def _order(self, stage: int) -> Iterator[Computation]:
        if self.name in {GPIPE, LOOPED}:
            return self._all_forward_first()
        return self._one_forward_one_backward(stage)

    def _all_forward_first(self) -> Iterator[Computation]:
        microbatches = range(self.microbatches)
        for chunk in range(self.chunks):
            yield from (Computation(backward=False, chunk=chunk, mb=mb) for mb in microbatches)
        # PyTorch's looped schedule begins its backwards with the last microbatch.
        back = microbatches[::-1] if self.name == LOOPED else microbatches
        for chunk in reversed(range(self.chunks)):
            yield from (Computation(backward=True, chunk=chunk, mb=mb) for mb in back)

    def _one_forward_one_backward(self, stage: int) -> Iterator[Computation]:
        total = self.microbatches * self.chunks
        rounds = max(1, self.microbatches // self.stages)
        a_round = self.microbatches // rounds
        warmup = (self.chunks - 1) * a_round + (1 + (self.chunks > 1)) * (self.stages - 1 - stage)
        warmup = min(warmup, total)
        forwards = self._in_rounds(total, a_round, backward=False)
        backwards = self._in_rounds(total, a_round, backward=True)
        for _ in range(warmup):
            yield next(forwards)
        for one in forwards:
            yield one
            yield next(backwards)
        yield from backwards

    def _in_rounds(self, total: int, a_round: int, *, backward: bool) -> Iterator[Computation]:
        counts: Counter[int] = Counter()
        for number in range(total):
            chunk = number // a_round % self.chunks
            if backward:
                chunk = self.chunks - 1 - chunk
            yield Computation(backward, chunk, counts[chunk])
            counts[chunk] += 1


ONE_F_ONE_B: Final = "1F1B"
GPIPE: Final = "GPipe"
INTERLEAVED: Final = "interleaved 1F1B"
LOOPED: Final = "looped breadth-first"


def implied_schedule(seen: Seen, stage: int, stages: int) -> Schedule | str:
    """Return the schedule that has what is seen of a step, or why none has.

    Parameters
    ----------
    stage, stages : int
        Place of the rank in its pipeline, and ranks of that.

    Examples
    --------
    >>> found = implied_schedule(Seen((False, True, False, True), 2, 2), 1, 2)
    >>> (found.name, found.microbatches)
    ('1F1B', 2)
    """
    forwards = seen.backwards.count(False)
    backwards = len(seen.backwards) - forwards
    if not forwards or forwards != backwards:
        return f"a step of stage {stage} has {forwards} forwards and {backwards} backwards"
    for candidate in _candidates(forwards, stages):
        if candidate.fits(seen, stage):
            return candidate
    return (
        f"no known schedule computes in the order {_letters(seen.backwards)} with {seen.sends} "
        f"sends and {seen.receives} receives a step on stage {stage} of {stages}"
    )


def _candidates(forwards: int, stages: int) -> Iterator[Schedule]:
    for chunks in range(1, min(forwards, _MAX_CHUNKS) + 1):
        if forwards % chunks:
            continue
        microbatches = forwards // chunks
        if chunks == 1:
            yield Schedule(ONE_F_ONE_B, stages, 1, microbatches)
            yield Schedule(GPIPE, stages, 1, microbatches)
        else:
            rounds = max(1, microbatches // stages)
            if microbatches % rounds == 0:
                yield Schedule(INTERLEAVED, stages, chunks, microbatches)
            yield Schedule(LOOPED, stages, chunks, microbatches)


def _letters(backwards: Sequence[bool]) -> str:
    text = "".join("FB"[backward] for backward in backwards)
    return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]}…"

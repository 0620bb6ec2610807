"""Operations of a pipeline rank without labels, from the schedule that their order implies.

A schedule is implied where it has exactly the recorded order of computations and numbers of
transfers: 1F1B and GPipe with one chunk a stage, interleaved 1F1B and looped breadth-first with
several (orders of ``torch.distributed.pipelining.schedules``, the same in Megatron-Core). Sends
follow the computation of their output. A receive takes its place from the peer's order, else from
its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
)
from app.analysis.trace.recordings.profiler.pipeline_work import (
    LEAST_SHARES,
    Block,
    Computed,
    Transfer,
    blocks_named,
    blocks_of,
    computed_of,
)
from app.analysis.trace.recordings.profiler.scan import Mark, Scan, Span
from app.analysis.trace.recordings.profiler.steps import Steps

# ---- Which schedule a rank's computations and transfers imply, and so which computation is which -
# A recording without labels shows in which order a rank computed forward and backward, and how
# often it sent and received. A schedule is implied where it has exactly that order and those
# numbers: 1F1B and GPipe with one chunk a stage, interleaved 1F1B and looped breadth-first with
# several. The orders are those of ``torch.distributed.pipelining.schedules``, which are
# Megatron-Core's as well.


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


# ---- Operations of a pipeline's rank whose recording labels none -------------------------------
# The order of its computations and transfers implies a schedule (`schedules`), which says of each
# which microbatch and chunk it is. Sends follow the computations whose outputs they carry. A
# receive is that of what its peer sends in the same place of its own order; where peers are not
# known, receives count in the order in which they were waited for, which is that of the
# computations.


# A receive may seem to end after its computation begins: a thread tells that it is there.
_LATE_NS: Final = 2_000_000
# Beyond all times.
_EVER_NS: Final = 1 << 62
# What `ScheduleGPipe` calls the ranges of its microbatches.
_MICROBATCH: Final = re.compile(r"(?:Forward|Backward) \d+")
_BACKWARD: Final = "Backward"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that the schedule identifies."""

    op: str
    step: int
    span: Span
    mb: int = ABSENT
    mc: int = ABSENT


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands in its pipeline: its stage, and the global ranks of all stages."""

    stage: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What is known of a rank's steps: the schedule and its operations, or why there are none.

    Parameters
    ----------
    reason : str
        Why steps were left out, "" where none was.
    unlike : int
        How many were.
    """

    schedule: Schedule | None
    operations: tuple[Operation, ...]
    reason: str = ""
    unlike: int = 0


def read_pipeline(
    scan: Scan, place: Place, transfers: Sequence[Transfer], steps: Mapping[int, Span]
) -> Pipeline:
    """Return the computations and transfers of a rank, by step and microbatch.

    Parameters
    ----------
    transfers : sequence of Transfer
        Those of the pipeline, in the order in which the host issued them.
    steps : mapping
        When the host was in each step.
    """
    apart = [span for _, span in scan.between] + list(scan.optimizers)
    apart += [mark.span for mark in scan.marks if mark.name.startswith("Optimizer.")]
    computed = computed_of(scan, apart)
    named = sorted(
        ((mark.span, mark.name.startswith(_BACKWARD)) for mark in scan.marks if _named(mark)),
        key=lambda one: one[0].start,
    )
    cut = [
        _cut(number, span, computed, transfers, named, place)
        for number, span in sorted(steps.items())
    ]
    cut = [step for step in cut if len(step.computed.host) or step.transfers]
    if not cut:
        return Pipeline(None, (), "none has a computation or a transfer", len(steps))
    found = _implied(cut, place)
    if isinstance(found, str):
        return Pipeline(None, (), found, len(cut))
    operations: list[Operation] = []
    reason, unlike = "", 0
    for step in cut:
        told = _operations(step, found, place)
        if isinstance(told, str):
            reason, unlike = told, unlike + 1
        else:
            operations += told
    return Pipeline(found, tuple(operations), reason, unlike)


def _named(mark: Mark) -> bool:
    return _MICROBATCH.fullmatch(mark.name) is not None


def _implied(steps: Sequence[_Step], place: Place) -> Schedule | str:
    """Return the schedule that most steps imply, or why the most frequent order implies none."""
    reason = ""
    for share in LEAST_SHARES:
        seen = Counter(step.seen(share) for step in steps)
        for one, _ in seen.most_common():
            found = implied_schedule(one, place.stage, len(place.ranks))
            if isinstance(found, Schedule):
                return found
            reason = reason or found
    return reason


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    computed: Computed
    transfers: tuple[Transfer, ...]
    named: Sequence[tuple[Span, bool]]  # of its microbatches, and whether they are backwards

    def blocks(self, least_share: float) -> list[Block]:
        between = sorted({one.issued for one in self.transfers})
        if self.named:
            return blocks_named(self.computed, between, self.named)
        return blocks_of(self.computed, between, least_share)

    def seen(self, least_share: float) -> Seen:
        return _seen(self.blocks(least_share), self.transfers)


def _seen(blocks: Sequence[Block], transfers: Sequence[Transfer]) -> Seen:
    sends = sum(one.sends for one in transfers)
    return Seen(tuple(block.backward for block in blocks), sends, len(transfers) - sends)


def _cut(  # noqa: PLR0913, PLR0917 - what a step is cut out of
    number: int,
    span: Span,
    computed: Computed,
    transfers: Sequence[Transfer],
    named: Sequence[tuple[Span, bool]],
    place: Place,
) -> _Step:
    mine = tuple(one for one in transfers if span.start <= one.issued < span.end)
    first = next((one.issued for one in mine if not one.sends), span.end)
    # All but the first stage compute nothing before they receive: they prepare a batch.
    begin = max(span.start, first) if place.stage else span.start
    inside = [one for one in named if span.start <= one[0].start < span.end]
    return _Step(number, _inside(computed, Span(begin, span.end, -1)), mine, inside)


def _inside(computed: Computed, span: Span) -> Computed:
    inside = (computed.host >= span.start) & (computed.host < span.end)
    return Computed(
        computed.host[inside],
        computed.start[inside],
        computed.end[inside],
        computed.backward[inside],
    )


def _operations(step: _Step, schedule: Schedule, place: Place) -> list[Operation] | str:
    order = schedule.order(place.stage)
    blocks = next(
        (
            blocks
            for share in LEAST_SHARES
            if schedule.fits(_seen(blocks := step.blocks(share), step.transfers), place.stage)
        ),
        None,
    )
    if blocks is None:
        return f"some do not fit the schedule of the others, {schedule.name}"
    computing = list(zip(order, blocks, strict=True))
    receives = _receives(step, schedule, place)
    if isinstance(receives, str):
        return receives
    told = [_computation(one, block, step.number) for one, block in computing]
    sending = [(one, block) for one, block in computing if schedule.sends(one, place.stage)]
    for (one, block), sent in zip(
        sending, (transfer for transfer in step.transfers if transfer.sends), strict=True
    ):
        if sent.issued < block.host.start:
            return "a send is issued before what it sends is computed"
        op = BACKWARD_SEND if one.backward else FORWARD_SEND
        told.append(Operation(op, step.number, sent.span, one.mb, one.chunk))
    at = dict(computing)
    for one, received in receives.items():
        if at[one].span.end < received.span.end - _LATE_NS:
            return "a computation ends before what it needs is received"
        op = BACKWARD_RECV if one.backward else FORWARD_RECV
        told.append(Operation(op, step.number, received.span, one.mb, one.chunk))
    return told


def _computation(one: Computation, block: Block, step: int) -> Operation:
    op = BACKWARD_COMPUTE if one.backward else FORWARD_COMPUTE
    return Operation(op, step, block.span, one.mb, one.chunk)


def _receives(step: _Step, schedule: Schedule, place: Place) -> dict[Computation, Transfer] | str:
    """Return which computation needs which receive."""
    received = [transfer for transfer in step.transfers if not transfer.sends]
    needed = [one for one in schedule.order(place.stage) if schedule.receives(one, place.stage)]
    by_peer = _by_peer(received, place)
    if by_peer is None:
        # Of one thread the wait for each ends in the order of what needs them.
        received.sort(key=lambda one: one.span.end)
        return dict(zip(needed, received, strict=True))
    found: dict[Computation, Transfer] = {}
    for peer, mine in by_peer.items():
        sent = list(_sent_here(schedule, place, peer))
        if len(sent) != len(mine):
            return (
                f"stage {place.stage} receives {len(mine)} times from stage {peer}, which sends "
                f"{len(sent)} times"
            )
        found.update(zip(sent, mine, strict=True))
    return found


def _sent_here(schedule: Schedule, place: Place, peer: int) -> Iterator[Computation]:
    """Return what needs the receives from a peer, in the order in which that sends."""
    stages = schedule.stages
    for one in schedule.order(peer):
        if not schedule.sends(one, peer):
            continue
        position = one.chunk * stages + peer + (-1 if one.backward else 1)
        if position % stages == place.stage:
            yield Computation(one.backward, position // stages, one.mb)


def _by_peer(received: Sequence[Transfer], place: Place) -> dict[int, list[Transfer]] | None:
    """Return receives by the stage that they come from, None where that is not known of each.

    Recordings name peers by their rank in the job or in the process group.
    """
    stages = len(place.ranks)
    neighbors = sorted({(place.stage - 1) % stages, (place.stage + 1) % stages})
    peers = {transfer.peer for transfer in received}
    if len(neighbors) == 1:
        return {neighbors[0]: list(received)}
    for names in ({place.ranks[one]: one for one in neighbors}, {one: one for one in neighbors}):
        if None not in peers and peers <= set(names):
            found: dict[int, list[Transfer]] = {}
            for transfer in received:
                if transfer.peer is not None:
                    found.setdefault(names[transfer.peer], []).append(transfer)
            return found
    return None


def steps_between(steps: Steps, end: int | None) -> Mapping[int, Span]:
    """Return when the host was in each step: from where that begins to where the next one does.

    Parameters
    ----------
    end : int or None
        Where the profiler's last step ends. Where optimizers end steps instead, None: what comes
        before the first of them and after the last is of the first and the last step.
    """
    begins, end = list(steps.begins), _EVER_NS if end is None else end
    if end == _EVER_NS:
        begins[0] = -_EVER_NS
    bounds = pairwise([*begins, end])
    return {
        number: Span(start, stop, -1)
        for number, (start, stop) in zip(steps.numbers, bounds, strict=True)
    }

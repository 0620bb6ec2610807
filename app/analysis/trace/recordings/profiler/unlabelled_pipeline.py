"""Operations of a pipeline rank without labels, from the schedule that their order implies.

A schedule is implied if it has exactly the recorded order of computations and numbers of transfers:
1F1B and GPipe with one chunk per stage, interleaved 1F1B and looped breadth-first with several
chunks (orders of ``torch.distributed.pipelining.schedules``, the same in Megatron-Core). The
schedule gives each computation its microbatch and chunk. A send belongs to the computation of its
output. A receive is matched to the send at the same position in the peer's order; if peers are
unknown, receives are matched to computations in the order in which the rank waited for them.
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
from app.analysis.trace.recordings.profiler.scan import Scan, Span
from app.analysis.trace.recordings.profiler.steps import Steps

_MAX_CHUNKS: Final = 16
_MAX_LETTERS: Final = 40


@dataclass(frozen=True, slots=True)
class Computation:
    """The forward or backward of a microbatch through a model chunk."""

    backward: bool
    chunk: int
    mb: int


@dataclass(frozen=True, slots=True)
class StepOrder:
    """Order of the computations and numbers of the transfers in a recorded step of a rank.

    Parameters
    ----------
    backwards : tuple of bool
        For each computation in order, whether it is a backward.
    sends, receives : int
        Numbers of transfers.
    """

    backwards: tuple[bool, ...]
    sends: int
    receives: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """A pipeline schedule: the order of the computations on each stage.

    Parameters
    ----------
    name : str
        Common name of the schedule.
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
        """Return the computations of a stage in scheduled order."""
        if self.name in {GPIPE, LOOPED}:
            return tuple(self._all_forward_first())
        return tuple(self._one_forward_one_backward(stage))

    def receives(self, computation: Computation, stage: int) -> bool:
        """Return whether the input of a computation comes from another rank."""
        place = computation.chunk * self.stages + stage
        return place < self.stages * self.chunks - 1 if computation.backward else place > 0

    def sends(self, computation: Computation, stage: int) -> bool:
        """Return whether the output of a computation goes to another rank."""
        place = computation.chunk * self.stages + stage
        return place > 0 if computation.backward else place < self.stages * self.chunks - 1

    def fits(self, recorded: StepOrder, stage: int) -> bool:
        """Return whether the schedule gives a stage the recorded order and numbers of transfers."""
        order = self.order(stage)
        return (
            tuple(computation.backward for computation in order) == recorded.backwards
            and sum(self.sends(computation, stage) for computation in order) == recorded.sends
            and sum(self.receives(computation, stage) for computation in order) == recorded.receives
        )

    def _all_forward_first(self) -> Iterator[Computation]:
        microbatches = range(self.microbatches)
        for chunk in range(self.chunks):
            yield from (Computation(backward=False, chunk=chunk, mb=mb) for mb in microbatches)
        # PyTorch's looped schedule runs the backward of the last microbatch first.
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
        for forward in forwards:
            yield forward
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


def implied_schedule(recorded: StepOrder, stage: int, stages: int) -> Schedule | str:
    """Return the schedule that a recorded step implies, or the reason why no schedule fits.

    Parameters
    ----------
    stage, stages : int
        Stage of the rank, and number of ranks of its pipeline.

    Examples
    --------
    >>> schedule = implied_schedule(StepOrder((False, True, False, True), 2, 2), 1, 2)
    >>> (schedule.name, schedule.microbatches)
    ('1F1B', 2)
    """
    forwards = recorded.backwards.count(False)
    backwards = len(recorded.backwards) - forwards
    if not forwards or forwards != backwards:
        return f"a step of stage {stage} has {forwards} forwards and {backwards} backwards"
    for candidate in _candidates(forwards, stages):
        if candidate.fits(recorded, stage):
            return candidate
    letters = "".join("FB"[backward] for backward in recorded.backwards)
    if len(letters) > _MAX_LETTERS:
        letters = f"{letters[:_MAX_LETTERS]}…"
    return (
        f"no known schedule computes in the order {letters} with {recorded.sends} sends and "
        f"{recorded.receives} receives a step on stage {stage} of {stages}"
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


# Maximum time in ns by which a receive may end after its computation begins, because another thread
# may notice the receive's end late.
_LATE_NS: Final = 2_000_000
# A time later than any recorded time.
_EVER_NS: Final = 1 << 62
# Names of `ScheduleGPipe`'s ranges of microbatches.
_MICROBATCH: Final = re.compile(r"(?:Forward|Backward) \d+")
_BACKWARD: Final = "Backward"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation with the microbatch and chunk that the schedule gives it."""

    op: str
    step: int
    span: Span
    mb: int = ABSENT
    mc: int = ABSENT


@dataclass(frozen=True, slots=True)
class Place:
    """Stage of a rank, and the global ranks of its pipeline by stage."""

    stage: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Schedule and operations of a rank's steps, or the reason why no schedule fits.

    Parameters
    ----------
    reason : str
        Why steps were left out; "" if no step was left out.
    unlike : int
        Number of steps that were left out because no schedule fits.
    """

    schedule: Schedule | None
    operations: tuple[Operation, ...]
    reason: str = ""
    unlike: int = 0


def read_pipeline(
    scan: Scan, place: Place, transfers: Sequence[Transfer], steps: Mapping[int, Span]
) -> Pipeline:
    """Return the computations and transfers of a rank with their steps and microbatches.

    Parameters
    ----------
    transfers : sequence of Transfer
        Transfers of the pipeline, in the order in which the host issued them.
    steps : mapping
        Time of each step on the host.
    """
    apart = [span for _, span in scan.between] + list(scan.optimizers)
    apart += [mark.span for mark in scan.marks if mark.name.startswith("Optimizer.")]
    computed = computed_of(scan, apart)
    named = sorted(
        (
            (mark.span, mark.name.startswith(_BACKWARD))
            for mark in scan.marks
            if _MICROBATCH.fullmatch(mark.name)
        ),
        key=lambda microbatch: microbatch[0].start,
    )
    cut = [
        _cut(number, span, computed, transfers, named, place)
        for number, span in sorted(steps.items())
    ]
    cut = [step for step in cut if len(step.computed.host) or step.transfers]
    if not cut:
        return Pipeline(None, (), "none has a computation or a transfer", len(steps))
    schedule = _most_frequent_schedule(cut, place)
    if isinstance(schedule, str):
        return Pipeline(None, (), schedule, len(cut))
    operations: list[Operation] = []
    reason, unlike = "", 0
    for step in cut:
        of_step = _operations(step, schedule, place)
        if isinstance(of_step, str):
            reason, unlike = of_step, unlike + 1
        else:
            operations += of_step
    return Pipeline(schedule, tuple(operations), reason, unlike)


def _most_frequent_schedule(steps: Sequence[_Step], place: Place) -> Schedule | str:
    """Return the schedule that most steps imply, or why the most frequent order implies none."""
    reason = ""
    for share in LEAST_SHARES:
        orders = Counter(_order_of(step.blocks(share), step.transfers) for step in steps)
        for order, _ in orders.most_common():
            schedule = implied_schedule(order, place.stage, len(place.ranks))
            if isinstance(schedule, Schedule):
                return schedule
            reason = reason or schedule
    return reason


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    computed: Computed
    transfers: tuple[Transfer, ...]
    named: Sequence[tuple[Span, bool]]  # ranges of microbatches, and whether each is a backward

    def blocks(self, least_share: float) -> list[Block]:
        """Return the computations of the step; see `blocks_of`."""
        between = sorted({transfer.issued for transfer in self.transfers})
        if self.named:
            return blocks_named(self.computed, between, self.named)
        return blocks_of(self.computed, between, least_share)


def _order_of(blocks: Sequence[Block], transfers: Sequence[Transfer]) -> StepOrder:
    sends = sum(transfer.sends for transfer in transfers)
    return StepOrder(tuple(block.backward for block in blocks), sends, len(transfers) - sends)


def _cut(  # noqa: PLR0913, PLR0917 - parts of all steps
    number: int,
    span: Span,
    computed: Computed,
    transfers: Sequence[Transfer],
    named: Sequence[tuple[Span, bool]],
    place: Place,
) -> _Step:
    """Return the computations, transfers and ranges of a rank that belong to one step."""
    mine = tuple(transfer for transfer in transfers if span.start <= transfer.issued < span.end)
    first = next((transfer.issued for transfer in mine if not transfer.sends), span.end)
    # Stages other than the first only prepare a batch before their first receive, so operators
    # before this receive belong to no computation.
    begin = max(span.start, first) if place.stage else span.start
    inside = (computed.host >= begin) & (computed.host < span.end)
    in_step = Computed(
        computed.host[inside],
        computed.start[inside],
        computed.end[inside],
        computed.backward[inside],
    )
    ranges = [microbatch for microbatch in named if span.start <= microbatch[0].start < span.end]
    return _Step(number, in_step, mine, ranges)


def _operations(step: _Step, schedule: Schedule, place: Place) -> list[Operation] | str:
    """Return the operations of a step, or the reason why the step does not fit the schedule."""
    blocks = next(
        (
            blocks
            for share in LEAST_SHARES
            if schedule.fits(_order_of(blocks := step.blocks(share), step.transfers), place.stage)
        ),
        None,
    )
    if blocks is None:
        return f"some do not fit the schedule of the others, {schedule.name}"
    block_of = dict(zip(schedule.order(place.stage), blocks, strict=True))
    receives = _receives(step, schedule, place)
    if isinstance(receives, str):
        return receives
    operations = [
        Operation(
            BACKWARD_COMPUTE if computation.backward else FORWARD_COMPUTE,
            step.number,
            block.span,
            computation.mb,
            computation.chunk,
        )
        for computation, block in block_of.items()
    ]
    sending = [
        (computation, block)
        for computation, block in block_of.items()
        if schedule.sends(computation, place.stage)
    ]
    sent = (transfer for transfer in step.transfers if transfer.sends)
    for (computation, block), transfer in zip(sending, sent, strict=True):
        if transfer.issued < block.host.start:
            return "a send is issued before what it sends is computed"
        op = BACKWARD_SEND if computation.backward else FORWARD_SEND
        operations.append(
            Operation(op, step.number, transfer.span, computation.mb, computation.chunk)
        )
    for computation, transfer in receives.items():
        if block_of[computation].span.end < transfer.span.end - _LATE_NS:
            return "a computation ends before what it needs is received"
        op = BACKWARD_RECV if computation.backward else FORWARD_RECV
        operations.append(
            Operation(op, step.number, transfer.span, computation.mb, computation.chunk)
        )
    return operations


def _receives(step: _Step, schedule: Schedule, place: Place) -> dict[Computation, Transfer] | str:
    """Return the receive of each computation's input, or why the receives do not match."""
    received = [transfer for transfer in step.transfers if not transfer.sends]
    by_peer = _by_peer(received, place)
    if by_peer is None:
        # Receives are matched in the order of the computations, because a thread waits for them in
        # this order.
        order = schedule.order(place.stage)
        needed = [
            computation for computation in order if schedule.receives(computation, place.stage)
        ]
        received.sort(key=lambda transfer: transfer.span.end)
        return dict(zip(needed, received, strict=True))
    receives: dict[Computation, Transfer] = {}
    for peer, mine in by_peer.items():
        sent = list(_sent_by(peer, schedule, place))
        if len(sent) != len(mine):
            return (
                f"stage {place.stage} receives {len(mine)} times from stage {peer}, which sends "
                f"{len(sent)} times"
            )
        receives.update(zip(sent, mine, strict=True))
    return receives


def _sent_by(peer: int, schedule: Schedule, place: Place) -> Iterator[Computation]:
    """Yield the computations whose inputs a peer stage sends, in the order of the sends."""
    stages = schedule.stages
    for computation in schedule.order(peer):
        if not schedule.sends(computation, peer):
            continue
        position = computation.chunk * stages + peer + (-1 if computation.backward else 1)
        if position % stages == place.stage:
            yield Computation(computation.backward, position // stages, computation.mb)


def _by_peer(received: Sequence[Transfer], place: Place) -> dict[int, list[Transfer]] | None:
    """Return the receives by the sender's stage; None if a sender is unknown.

    Recordings name a peer by its rank in the job or by its rank in the process group.
    """
    stages = len(place.ranks)
    neighbors = sorted({(place.stage - 1) % stages, (place.stage + 1) % stages})
    peers = {transfer.peer for transfer in received}
    if len(neighbors) == 1:
        return {neighbors[0]: list(received)}
    by_global_rank = {place.ranks[stage]: stage for stage in neighbors}
    for stage_of in (by_global_rank, {stage: stage for stage in neighbors}):
        if None not in peers and peers <= set(stage_of):
            by_stage: dict[int, list[Transfer]] = {}
            for transfer in received:
                if transfer.peer is not None:
                    by_stage.setdefault(stage_of[transfer.peer], []).append(transfer)
            return by_stage
    return None


def steps_between(steps: Steps, end: int | None) -> Mapping[int, Span]:
    """Return the host time of each step, from its begin to the begin of the next step.

    Parameters
    ----------
    end : int or None
        End of the profiler's last step, ns. None if optimizers end steps: everything before the
        first optimizer then belongs to the first step, and everything after the last optimizer to
        the last step.
    """
    begins, end = list(steps.begins), _EVER_NS if end is None else end
    if end == _EVER_NS:
        begins[0] = -_EVER_NS
    bounds = pairwise([*begins, end])
    return {
        number: Span(start, stop, -1)
        for number, (start, stop) in zip(steps.numbers, bounds, strict=True)
    }

"""The calls that a host makes in a step, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from app.analysis.synthesis.hosts.job import HostJob, Posting
from app.analysis.trace import model as ops
from app.analysis.trace.model import ABSENT


@dataclass(frozen=True, slots=True)
class Part:
    """One side of a transfer: its op type, the other stage, (microbatch, chunk) of what goes."""

    op: str
    other: int
    of: tuple[int, int]


class When(StrEnum):
    """What a call does with its transfers."""

    EXCHANGE = "exchange"  # posts them and waits for all
    POST = "post"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a host: a computation, transfers, or a collective (with a group's name)."""

    op: str
    mb: int = ABSENT
    mc: int = ABSENT
    parts: tuple[Part, ...] = ()
    when: When = When.EXCHANGE
    group: str = ""


def calls_of_step(job: HostJob, stage: int) -> Iterator[Call]:
    """Yield the calls of one step on a stage."""
    if job.v_shaped:
        yield from _v_shaped(job, stage)
    elif job.posting is Posting.WINDOWED:
        yield from _windowed(job, stage)
    else:
        yield from _one_forward_one_backward(job, stage)
    yield Call(ops.GRADS_REDUCE_SCATTER, group=f"grads {stage}")
    if job.barrier:
        yield Call(ops.OPTIMIZER_CLIP, group="clip")
    yield Call(ops.OPTIMIZER)


class _Sides:
    """The transfers of a stage's microbatches; empty where there is no stage to transfer with."""

    def __init__(self, job: HostJob, stage: int) -> None:
        self._job, self._stage = job, stage

    def _with(self, op: str, other: int, mb: int) -> tuple[Part, ...]:
        there = 0 <= other < self._job.pp and mb < self._job.microbatches
        return (Part(op, other, (mb, 0)),) if there else ()

    def take(self, mb: int) -> tuple[Part, ...]:
        return self._with(ops.FORWARD_RECV, self._stage - 1, mb)

    def give(self, mb: int) -> tuple[Part, ...]:
        return self._with(ops.FORWARD_SEND, self._stage + 1, mb)

    def take_back(self, mb: int) -> tuple[Part, ...]:
        return self._with(ops.BACKWARD_RECV, self._stage + 1, mb)

    def give_back(self, mb: int) -> tuple[Part, ...]:
        return self._with(ops.BACKWARD_SEND, self._stage - 1, mb)


def _transferring(when: When, *parts: tuple[Part, ...]) -> Iterator[Call]:
    joint = tuple(part for some in parts for part in some)
    if joint:
        yield Call("", parts=joint, when=when)


def _one_forward_one_backward(job: HostJob, stage: int) -> Iterator[Call]:
    """Yield 1F1B as Megatron-LM runs it: what is posted together is waited for."""
    count = job.microbatches
    warm = min(job.pp - 1 - stage, count)
    sides = _Sides(job, stage)
    for mb in range(warm):
        yield from _transferring(When.EXCHANGE, sides.take(mb))
        yield Call(ops.FORWARD_COMPUTE, mb, 0)
        yield from _transferring(When.EXCHANGE, sides.give(mb))
    yield from _transferring(When.EXCHANGE, sides.take(warm))
    for i in range(count - warm):
        yield Call(ops.FORWARD_COMPUTE, warm + i, 0)
        yield from _transferring(When.EXCHANGE, sides.give(warm + i), sides.take_back(i))
        yield Call(ops.BACKWARD_COMPUTE, i, 0)
        yield from _transferring(When.EXCHANGE, sides.give_back(i), sides.take(warm + i + 1))
    for mb in range(count - warm, count):
        yield from _transferring(When.EXCHANGE, sides.take_back(mb))
        yield Call(ops.BACKWARD_COMPUTE, mb, 0)
        yield from _transferring(When.EXCHANGE, sides.give_back(mb))


def _windowed(job: HostJob, stage: int) -> Iterator[Call]:
    """Yield 1F1B whose receives are posted ahead, and waited for before their computation."""
    count, window = job.microbatches, job.window
    warm = min(job.pp - 1 - stage, count)
    sides = _Sides(job, stage)
    sending = When.EXCHANGE if job.sends_block else When.POST
    for mb in range(window):
        yield from _transferring(When.POST, sides.take(mb))
        yield from _transferring(When.POST, sides.take_back(mb))
    for slot in range(count + warm):
        if slot < count:
            yield from _transferring(When.WAIT, sides.take(slot))
            yield Call(ops.FORWARD_COMPUTE, slot, 0)
            yield from _transferring(When.POST, sides.take(slot + window))
            yield from _transferring(sending, sides.give(slot))
        back = slot - warm
        if back >= 0:
            yield from _transferring(When.WAIT, sides.take_back(back))
            yield Call(ops.BACKWARD_COMPUTE, back, 0)
            yield from _transferring(When.POST, sides.take_back(back + window))
            yield from _transferring(sending, sides.give_back(back))
    if not job.sends_block:
        every = [side(mb) for mb in range(count) for side in (sides.give, sides.give_back)]
        yield from _transferring(When.WAIT, *every)


def _v_shaped(job: HostJob, stage: int) -> Iterator[Call]:
    """Yield all forwards down one side of the V and up the other, then all backwards."""
    last = job.pp - 1
    for forward, chunks in ((True, (0, 1)), (False, (1, 0))):
        compute = ops.FORWARD_COMPUTE if forward else ops.BACKWARD_COMPUTE
        receive = ops.FORWARD_RECV if forward else ops.BACKWARD_RECV
        send = ops.FORWARD_SEND if forward else ops.BACKWARD_SEND
        for chunk in chunks:
            # forwards of chunk 0 go to the last stage, and so do backwards of chunk 1
            down = (chunk == 0) == forward
            source, target = (stage - 1, stage + 1) if down else (stage + 1, stage - 1)
            for mb in range(job.microbatches):
                if 0 <= source <= last:
                    yield Call("", parts=(Part(receive, source, (mb, chunk)),))
                yield Call(compute, mb, chunk)
                if 0 <= target <= last:
                    yield Call("", parts=(Part(send, target, (mb, chunk)),))

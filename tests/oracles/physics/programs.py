"""The operations that each stage's host launches in a step, in order.

1F1B and interleaved 1F1B follow Narayanan et al. 2021, figures 3 and 4; GPipe Huang et al. 2019;
zero bubble Qi et al. 2023, ZB-H1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from tests.oracles.physics.shape import Posting, Schedule, Shape


class Direction(Enum):
    """The direction of a pass, and of the transfer of its input."""

    FORWARD = auto()
    BACKWARD = auto()
    # A pass for the weights' gradients, if the backward pass does not compute them.
    WEIGHTS = auto()


@dataclass(frozen=True, slots=True)
class Pass:
    """The computation of one microbatch by one chunk; `position` counts chunks along the model."""

    direction: Direction
    position: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Run:
    """An instruction to compute a pass."""

    work: Pass


@dataclass(frozen=True, slots=True)
class Send:
    """An instruction to post the send of a pass's output; `to` is the pass that needs it."""

    of: Pass
    to: Pass


@dataclass(frozen=True, slots=True)
class Receive:
    """An instruction to post the receive of a pass's input, after the pass `after`, if any."""

    to: Pass
    after: Pass | None


@dataclass(frozen=True, slots=True)
class Wait:
    """An instruction to wait until the input of a pass has arrived, or (`sent`) was sent to it."""

    to: Pass
    sent: bool = False


Instruction = Run | Send | Receive | Wait


def passes_of(shape: Shape, stage: int) -> list[Pass]:
    """Return a stage's passes in the order of its schedule."""
    count = shape.microbatches * shape.vpp
    forwards = [_nth(shape, stage, Direction.FORWARD, index) for index in range(count)]
    backwards = [_nth(shape, stage, Direction.BACKWARD, index) for index in range(count)]
    warm_up = min(count, _warm_up(shape, stage))
    order = forwards[:warm_up]
    for index in range(count - warm_up):
        order += [forwards[warm_up + index], backwards[index]]
    order += backwards[count - warm_up :]
    return _weights_later(order, stage) if shape.schedule is Schedule.ZERO_BUBBLE else order


def _weights_later(order: list[Pass], stage: int) -> list[Pass]:
    """Move each pass of weights behind as many other passes as there are stages before this one.

    Then no stage holds more activations than in 1F1B, and the last passes fill the bubble at the
    end.
    """
    found: list[Pass] = []
    waiting: list[Pass] = []
    for work in order:
        found.append(work)
        if work.direction is Direction.BACKWARD:
            waiting.append(Pass(Direction.WEIGHTS, work.position, work.microbatch))
            if len(waiting) > stage:
                found.append(waiting.pop(0))
    return found + waiting


def _warm_up(shape: Shape, stage: int) -> int:
    behind = shape.pp - 1 - stage
    if shape.schedule is Schedule.GPIPE:
        return shape.microbatches * shape.vpp
    if shape.schedule in (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE):
        return behind
    return 2 * behind + (shape.vpp - 1) * shape.pp


def _nth(shape: Shape, stage: int, direction: Direction, index: int) -> Pass:
    """Return a stage's n-th pass of a direction: chunks take turns every PP microbatches."""
    if shape.vpp == 1:
        chunk, microbatch = 0, index
    else:
        turn, inside = divmod(index, shape.pp * shape.vpp)
        chunk, microbatch = divmod(inside, shape.pp)
        microbatch += turn * shape.pp
    if direction is Direction.BACKWARD:
        chunk = shape.vpp - 1 - chunk
    return Pass(direction, chunk * shape.pp + stage, microbatch)


def source_of(shape: Shape, work: Pass) -> Pass | None:
    """Return the pass on another stage whose output a pass needs; None if it needs none."""
    if work.direction is Direction.WEIGHTS:
        return None
    step = -1 if work.direction is Direction.FORWARD else 1
    position = work.position + step
    if not 0 <= position < shape.pp * shape.vpp:
        return None
    return Pass(work.direction, position, work.microbatch)


def target_of(shape: Shape, work: Pass) -> Pass | None:
    """Return the pass on another stage that needs a pass's output; None if there is none."""
    if work.direction is Direction.WEIGHTS:
        return None
    step = 1 if work.direction is Direction.FORWARD else -1
    position = work.position + step
    if not 0 <= position < shape.pp * shape.vpp:
        return None
    return Pass(work.direction, position, work.microbatch)


def program_of(shape: Shape, stage: int) -> list[Instruction]:
    """Return the instructions of a stage's host in a step, between gathering and reducing."""
    order = passes_of(shape, stage)
    if shape.posting is Posting.BLOCKING:
        return _blocking(shape, order)
    program: list[Instruction] = []
    last: dict[Direction, Pass] = {}
    for index, work in enumerate(order):
        if source_of(shape, work) is not None:
            overlap = shape.posting is Posting.OVERLAP
            before = last.get(work.direction) if overlap else (order[index - 1] if index else None)
            program += [Receive(work, before), Wait(work)]
        program.append(Run(work))
        last[work.direction] = work
        target = target_of(shape, work)
        if target is not None:
            program.append(Send(work, target))
    return program


def _blocking(shape: Shape, order: list[Pass]) -> list[Instruction]:
    """Return a program whose neighbouring send and receive are posted and waited for together."""
    program: list[Instruction] = []
    if source_of(shape, order[0]) is not None:
        program += [Receive(order[0], None), Wait(order[0])]
    for work, following in zip(order, [*order[1:], None], strict=True):
        program.append(Run(work))
        target = target_of(shape, work)
        needs = following is not None and source_of(shape, following) is not None
        # In the steady state both are for the same neighbor, and are one call.
        fused = needs and following is not None and following.direction is not work.direction
        posts: list[Instruction] = [] if target is None else [Send(work, target)]
        waits: list[Instruction] = [] if target is None else [Wait(target, sent=True)]
        receive: list[Instruction] = []
        awaited: list[Instruction] = []
        if needs and following is not None:
            receive, awaited = [Receive(following, work)], [Wait(following)]
        if fused:
            program += [*posts, *receive, *waits, *awaited]
        else:
            program += [*posts, *waits, *receive, *awaited]
    return program

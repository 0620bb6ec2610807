"""Execution of a job's events: the start and the end of each.

Every stage has a host that launches in program order, a stream that computes in order, and a
stream for each kind of transfer. A transfer moves data once both of its ends are posted, a
collective once all of its members have reached it. All stages begin a step together, because the
gradient norm is computed before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tests.oracles.physics.programs import (
    Direction,
    Instruction,
    Pass,
    Receive,
    Run,
    Send,
    Wait,
    program_of,
    source_of,
)
from tests.oracles.physics.world import Times, World


class DeadlockError(Exception):
    """No stage can continue: the programs wait for one another."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An operation of all DP ranks in all steps, from the step's start; arrays (steps, dp)."""

    kind: str
    stage: int
    chunk: int
    microbatch: int
    start_s: Times
    end_s: Times


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """The executed events and steps.

    Parameters
    ----------
    events : list of Event
    step_s : array, shape (steps,)
        From the start of a step to the end of its last operation.
    """

    events: list[Event]
    step_s: Times


@dataclass(slots=True)
class _Stage:
    """The progress of a stage's host and streams."""

    number: int
    program: list[Instruction]
    host_s: Times
    computing_s: Times
    next: int = 0
    # By kind of transfer: the last transfer on the kind's stream.
    streams: dict[str, Pass] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    """The progress of the step."""

    events: list[Event] = field(default_factory=list)
    ended_s: dict[Pass, Times] = field(default_factory=dict)
    sent_s: dict[Pass, Times] = field(default_factory=dict)
    posted_s: dict[Pass, Times] = field(default_factory=dict)
    arrived_s: dict[Pass, Times] = field(default_factory=dict)
    sent_to_experts_s: dict[Pass, Times] = field(default_factory=dict)


def execute(world: World) -> Execution:
    """Execute a world.

    Raises
    ------
    DeadlockError
    """
    shape = world.shape
    state = _State()
    stages = [_begin(world, state, number) for number in range(shape.pp)]
    while any(stage.next < len(stage.program) for stage in stages):
        if not any(_advance(world, state, stage) for stage in stages):
            raise DeadlockError([stage.program[stage.next] for stage in stages][:1])
    finished = [_finish(world, state, stage) for stage in stages]
    return Execution(state.events, _end(world, state, finished))


def _begin(world: World, state: _State, number: int) -> _Stage:
    """Gather the parameters of a stage's chunks, all of which its first pass needs."""
    shape = world.shape
    host_s = world.between_s[number] + world.before_s[number]
    free_s = host_s
    for chunk in range(shape.vpp):
        start_s = np.maximum(free_s, host_s)
        end_s = _collected(world, number, start_s, world.gather_s[number, chunk])
        _note(state, "params-all-gather", number, chunk, 0, start_s, end_s)
        free_s = end_s
    host_s = host_s + world.data_s[number]
    return _Stage(number, program_of(shape, number), host_s, free_s)


def _collected(world: World, stage: int, start_s: Times, moving_s: Times) -> Times:
    """Return the end of a collective of a stage's DP ranks, given its duration."""
    together_s = _latest(start_s, world.shape.groups)
    return np.asarray(together_s + moving_s[:, None] + world.of_group_s[stage])


def _advance(world: World, state: _State, stage: _Stage) -> bool:
    """Launch all possible operations; return whether there was one."""
    moved = False
    while stage.next < len(stage.program) and _launch(
        world, state, stage, stage.program[stage.next]
    ):
        stage.next += 1
        moved = True
    return moved


def _launch(world: World, state: _State, stage: _Stage, instruction: Instruction) -> bool:
    match instruction:
        case Run(work):
            _run(world, state, stage, work)
        case Send(of, to):
            start_s = np.maximum(state.ended_s[of], stage.host_s)
            return _post(world, state, stage, f"{_word(to)}-send", start_s, state.sent_s, to)
        case Receive(to, after):
            free_s = stage.host_s if after is None else state.ended_s[after]
            start_s = np.maximum(free_s, stage.host_s)
            return _post(world, state, stage, f"{_word(to)}-recv", start_s, state.posted_s, to)
        case Wait(to):
            arrived_s = state.arrived_s.get(to)
            if arrived_s is None:
                return False
            stage.computing_s = np.maximum(stage.computing_s, arrived_s)
            if world.shape.host_waits:
                stage.host_s = np.maximum(stage.host_s, arrived_s)
    return True


def _word(work: Pass) -> str:
    return work.direction.name.lower()


def _run(world: World, state: _State, stage: _Stage, work: Pass) -> None:
    chunk = work.position // world.shape.pp
    side = 0 if work.direction is Direction.FORWARD else 1
    place = (stage.number, chunk, work.microbatch)
    weights = work.direction is Direction.WEIGHTS
    # Native code launches both parts of a backward pass in one go.
    pause_s = 0.0 if weights else world.pause_s[(*place, side)]
    launched_s = stage.host_s + (0.0 if weights else world.launch_s[(*place, side)])
    start_s = np.maximum(stage.computing_s, launched_s)
    # A pause between the kernels of a pass is visible by the part that exceeds the host's lead.
    ahead_s = np.maximum(start_s - launched_s, 0.0)
    computing_s = world.computing_s(work.direction.name, place)
    slowest = world.rank_s[:, stage.number, side].max(axis=0)
    slowest = slowest * world.context_s[:, stage.number, side].max(axis=0)
    late_s = world.late_s[:, stage.number, chunk, work.microbatch].max(axis=0) if side == 0 else 0.0
    duration_s = computing_s * slowest + late_s + np.maximum(pause_s - ahead_s, 0.0)
    end_s = start_s + duration_s
    if world.shape.ep > 1 and not weights:
        sent_s, end_s = _among_experts(world, (*place, side), start_s, duration_s)
        state.sent_to_experts_s[work] = sent_s
    stage.host_s = launched_s + pause_s
    stage.computing_s = end_s
    state.ended_s[work] = end_s
    kind = "backward-wgrad" if weights else _word(work)
    _note(state, f"{kind}-compute", stage.number, chunk, work.microbatch, start_s, end_s)
    if work in state.sent_to_experts_s:
        sent_s = state.sent_to_experts_s[work]
        half_s = 0.5 * duration_s
        for come_s, done_s in (
            (start_s + half_s, sent_s),
            (sent_s + half_s * world.tokens[(*place, side)], end_s),
        ):
            begin_s = np.maximum(come_s - 0.02 * duration_s, start_s)
            _note(state, "ep-all-to-all", stage.number, chunk, work.microbatch, begin_s, done_s)


def _among_experts(
    world: World, place: tuple[int, int, int, int], start_s: Times, duration_s: Times
) -> tuple[Times, Times]:
    """Return when all ranks of each group have sent their tokens, and when all experts are done.

    The first half of a pass has no experts. Then tokens are sent to the ranks with their experts,
    and no rank continues before the results of all have returned.
    """
    half_s = 0.5 * duration_s
    sent_s = _of_group(world, start_s + half_s)
    return sent_s, _of_group(world, sent_s + half_s * world.tokens[place])


def _of_group(world: World, times_s: Times) -> Times:
    """Return the latest of the DP ranks that share experts, for each of them."""
    return _latest(times_s, world.shape.dp // world.shape.ep)


def _latest(times_s: Times, groups: int) -> Times:
    """Return the latest of the DP ranks of each group of neighbors, for each of them."""
    of_groups = times_s.reshape(len(times_s), groups, -1)
    latest = of_groups.max(axis=-1, keepdims=True)
    return np.asarray(np.broadcast_to(latest, of_groups.shape).reshape(times_s.shape))


def _post(  # noqa: PLR0917 - an end of a transfer
    world: World,
    state: _State,
    stage: _Stage,
    kind: str,
    start_s: Times,
    ends: dict[Pass, Times],
    to: Pass,
) -> bool:
    """Post one end of a transfer, once its stream is free; the second end starts the transfer."""
    before = stage.streams.get(kind)
    if before is not None:
        if before not in state.arrived_s:
            return False
        start_s = np.maximum(start_s, state.arrived_s[before])
    ends[to] = start_s
    stage.streams[kind] = to
    if to in state.sent_s and to in state.posted_s:
        forward = to.direction is Direction.FORWARD
        boundary = to.position - 1 if forward else to.position
        moving = world.activation_s if forward else world.gradient_s
        begin_s = np.maximum(state.sent_s[to], state.posted_s[to])
        end_s = begin_s + moving[boundary, to.microbatch]
        state.arrived_s[to] = end_s
        _note_transfer(world, state, to, end_s)
    return True


def _note_transfer(world: World, state: _State, to: Pass, end_s: Times) -> None:
    source = source_of(world.shape, to)
    assert source is not None
    pp = world.shape.pp
    word = _word(to)
    for kind, at, start_s in (
        ("send", source, state.sent_s[to]),
        ("recv", to, state.posted_s[to]),
    ):
        stage, chunk = at.position % pp, at.position // pp
        _note(state, f"{word}-{kind}", stage, chunk, to.microbatch, start_s, end_s)


def _finish(world: World, state: _State, stage: _Stage) -> Times:
    """Reduce the gradients of a stage after its last pass."""
    free_s = stage.computing_s
    for chunk in range(world.shape.vpp):
        start_s = np.maximum(free_s, stage.host_s)
        end_s = _collected(world, stage.number, start_s, world.scatter_s[stage.number, chunk])
        _note(state, "grads-reduce-scatter", stage.number, chunk, 0, start_s, end_s)
        free_s = end_s
    return free_s


def _end(world: World, state: _State, finished_s: list[Times]) -> Times:
    """Reduce the gradient norm, update the weights, and return the durations of the steps."""
    together_s = np.max([free_s.max(axis=1) for free_s in finished_s], axis=0) + world.clip_s
    last_s: Times = np.zeros_like(together_s)
    for number, free_s in enumerate(finished_s):
        norm_s = np.broadcast_to(together_s[:, None], free_s.shape)
        _note(state, "optimizer-clip-main-grad", number, 0, 0, free_s, norm_s)
        end_s = norm_s + world.optimizer_s[number]
        _note(state, "optimizer", number, 0, 0, norm_s, end_s)
        last_s = np.maximum(last_s, end_s.max(axis=1))
    return last_s


def _note(  # noqa: PLR0917 - an event
    state: _State,
    kind: str,
    stage: int,
    chunk: int,
    microbatch: int,
    start_s: Times,
    end_s: Times,
) -> None:
    state.events.append(Event(kind, stage, chunk, microbatch, start_s, end_s))


def events_of(execution: Execution, kind: str) -> Iterator[Event]:
    """Yield the events of one kind."""
    return (event for event in execution.events if event.kind == kind)

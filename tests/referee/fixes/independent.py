"""Fixes in jobs of the second physics: the same draws, executed with the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.mitigation.fixes import ByChunk
from app.analysis.report.build import analyze
from tests.oracles.physics.draw import MIXED_FAULTS, Drawn, draw_worlds
from tests.oracles.physics.execute import Execution, execute
from tests.oracles.physics.record import Recording, record
from tests.oracles.physics.world import Times, World
from tests.referee.fixes.balanced import length_factors
from tests.referee.fixes.layers import by_stage, chunk_factors, in_order
from tests.referee.fixes.promise import (
    TEMPLATE,
    Advised,
    OfJob,
    Promise,
    Refereed,
    advised,
    divisions_of_template,
    shown_template,
)
from tests.referee.judging import NONE, draw_fault, trace_of

PHYSICS: Final = "independent"
_EVERYWHERE: Final = ("slow_together", "rotating")
# Names that ranks record for operations between steps.
_CHECKPOINT: Final = "checkpoint"
_EVALUATION: Final = "evaluation"
_LENGTHS: Final = "sequence_length_imbalance"

# Takes a job and a fix of it, and returns the job with the fix.
Make = Callable[[Drawn, Advised], World]


def referee(seed: int, healthy: float, only: str | None) -> Refereed:
    """Draw the job of a seed, analyze it, and execute it with each recommended fix."""
    fault = only if only is not None else _draw_fault(seed, healthy)
    drawn = draw_worlds(seed, fault)
    now_world = drawn.struck.world
    now = execute(now_world)
    recording = record(now_world, now, gap_s=drawn.gap_s)
    layers = layers_of(drawn, seed)
    if layers is not None:
        recording = _naming(recording, layers)
    report = analyze(trace_of(recording)).report

    def realised(world: World, *, of_turns: bool) -> float:
        after = execute(world)
        if of_turns:
            # The time before the first step is not recorded.
            gaps_s = drawn.gap_s * (drawn.shape.steps - 1)
            return float((now.step_s[1:].sum() + gaps_s) / (after.step_s[1:].sum() + gaps_s))
        return float(spans_s(now_world, now).sum() / spans_s(world, after).sum())

    of_job = OfJob(seed, PHYSICS, fault or NONE)
    promises: list[Promise] = []
    unexecuted: list[str] = []
    for item in advised(report):
        make = MAKES.get(item.fix.action)
        if make is None:
            unexecuted.append(item.fix.action)
            continue
        fix, made = item.fix, make(drawn, item)
        promises.append(
            of_job.promise(
                fix.action,
                fix.predicted_gain,
                realised(made, of_turns=item.of_turns),
                at_most=fix.at_most,
                itself=item.described,
            )
        )
    template = shown_template(report)
    if template is not None:
        today, after = divisions_of_template(template, report)
        made = arranged(drawn.struck.world, today, after, template.worker_of_stage)
        promises.append(
            of_job.promise(
                TEMPLATE,
                template.predicted_gain,
                realised(made, of_turns=False),
                at_most=template.at_most,
            )
        )
    return of_job.refereed(promises, unexecuted, healthy=fault is None)


def spans_s(world: World, execution: Execution) -> Times:
    """Return how long steps take from the first launch of any worker, shape (steps,)."""
    first_s: Times = (world.between_s + world.before_s).min(axis=(0, 2))
    return execution.step_s - first_s


def _draw_fault(seed: int, healthy: float) -> str | None:
    """Return a random fault, in half of the cases one of the mixed kinds."""
    rng = np.random.default_rng([seed, 0x313])
    fault = draw_fault(seed, healthy)
    mixed = fault is not None and rng.random() < 0.5
    return list(MIXED_FAULTS)[int(rng.integers(len(MIXED_FAULTS)))] if mixed else fault


def layers_of(drawn: Drawn, seed: int) -> int | None:
    """Return the layers of each chunk in the metadata; None without them."""
    rng = np.random.default_rng([seed, 0x1A7E])
    if drawn.shape.pp == 1 or rng.random() < 0.3 or drawn.struck.world.layers is not None:
        return None
    return int(rng.integers(3, 17))


def _naming(recording: Recording, layers: int) -> Recording:
    meta = recording.metadata
    by_chunk = [[layers] * meta["vpp"] for _ in range(meta["pp"])]
    return replace(recording, metadata={**meta, "layers": by_chunk})


def _replaced(drawn: Drawn, item: Advised) -> World:
    """Give faulty workers their drawn healthy speed."""
    world, healthy = drawn.struck.world.copy(), drawn.usual
    for dp, pp in drawn.struck.workers & set(item.workers):
        world.forward_s[pp, ..., dp] = healthy.forward_s[pp, ..., dp]
        world.backward_s[pp, ..., dp] = healthy.backward_s[pp, ..., dp]
        world.rank_s[:, pp, ..., dp] = healthy.rank_s[:, pp, ..., dp]
        world.late_s[:, pp, ..., dp] = healthy.late_s[:, pp, ..., dp]
    return world


def _rank_replaced(drawn: Drawn, item: Advised) -> World:
    world, healthy, tp = drawn.struck.world.copy(), drawn.usual, drawn.shape.tp
    for (dp, pp), rank in zip(item.where.workers, item.where.ranks, strict=True):
        if item.fix.cause == "context_parallel_straggler":
            place = rank // tp % drawn.shape.cp
            world.context_s[place, pp, ..., dp] = healthy.context_s[place, pp, ..., dp]
            continue
        world.rank_s[rank % tp, pp, ..., dp] = healthy.rank_s[rank % tp, pp, ..., dp]
        world.late_s[rank % tp, pp, ..., dp] = healthy.late_s[rank % tp, pp, ..., dp]
    return world


def _work_shed(drawn: Drawn, item: Advised) -> World:
    """Let ranks compute the columns that the plans leave them."""
    world = drawn.struck.world.copy()
    assert item.report.tensor is not None
    for group in item.report.tensor.groups:
        dp, pp = group.worker
        for share in group.advice.best.ranks:
            less = share.resized_columns + share.migrated_columns - share.received_columns
            world.rank_s[share.rank, pp, ..., dp] *= 1 - less / group.advice.columns
    return world


def _defragmented(drawn: Drawn, item: Advised) -> World:
    world, healthy = drawn.struck.world.copy(), drawn.usual
    for dp, pp in item.where.workers:
        world.late_s[:, pp, ..., dp] = healthy.late_s[:, pp, ..., dp]
    return world


def _repaired(drawn: Drawn, item: Advised) -> World:
    """Give links, and a stage's collectives, their drawn healthy times."""
    world, healthy, shape = drawn.struck.world.copy(), drawn.usual, drawn.shape
    for dp, one, other in item.where.links or ():
        # The last stage's chunk sends to the next chunk of the first stage.
        around = abs(one - other) == shape.pp - 1
        lower = {shape.pp - 1} if around else set()
        lower |= {min(one, other)} if abs(one - other) == 1 else set()
        for at in range(shape.pp * shape.vpp - 1):
            if at % shape.pp in lower:
                world.activation_s[at, ..., dp] = healthy.activation_s[at, ..., dp]
                world.gradient_s[at, ..., dp] = healthy.gradient_s[at, ..., dp]
    stages = {pp for _, pp in item.where.workers}
    stages |= set() if item.where.stage is None else {item.where.stage}
    for stage in stages:
        world.gather_s[stage] = healthy.gather_s[stage]
        world.scatter_s[stage] = healthy.scatter_s[stage]
        world.of_group_s[stage] = healthy.of_group_s[stage]
    return world


def _loaded_ahead(drawn: Drawn, item: Advised) -> World:
    """Remove the waits for batches, but not those for checkpoints."""
    world, healthy = drawn.struck.world.copy(), drawn.healthy
    ranks = slice(None) if item.where.dp is None else slice(item.where.dp, item.where.dp + 1)
    before_s, data_s = world.saving_s
    world.before_s[..., ranks] = (healthy.before_s + before_s)[..., ranks]
    world.data_s[..., ranks] = (healthy.data_s + data_s)[..., ranks]
    if world.between not in (_CHECKPOINT, _EVALUATION):
        world.between_s[..., ranks] = 0.0
    return world


def _saved_in_background(drawn: Drawn, _item: Advised) -> World:
    world = drawn.struck.world
    before_s, data_s = world.saving_s
    saved = replace(world, before_s=world.before_s - before_s, data_s=world.data_s - data_s)
    return _without_between(saved) if world.between == _CHECKPOINT else saved


def _evaluated_elsewhere(drawn: Drawn, _item: Advised) -> World:
    world = drawn.struck.world
    return _without_between(world) if world.between == _EVALUATION else world


def _standing_no_more(drawn: Drawn, _item: Advised) -> World:
    """Remove pauses without a recorded reason, including those of unrecorded checkpoints."""
    world = drawn.struck.world
    if world.between is not None:
        return world
    return _without_between(replace(world, before_s=world.before_s - world.saving_s[0]))


def _without_between(world: World) -> World:
    return replace(world, between_s=np.zeros_like(world.between_s))


def _launched_faster(drawn: Drawn, item: Advised) -> World:
    world, healthy, shape = drawn.struck.world.copy(), drawn.usual, drawn.shape
    everybody = [(dp, pp) for dp in range(shape.dp) for pp in range(shape.pp)]
    for dp, pp in item.where.workers or everybody:
        world.launch_s[pp, ..., dp] = healthy.launch_s[pp, ..., dp]
    return world


def _collected_together(drawn: Drawn, item: Advised) -> World:
    """Pause all workers before the planned steps, and at no other time.

    Each worker's pause is as long as one of its pauses around that step.
    """
    struck, healthy, shape = drawn.struck.world, drawn.usual, drawn.shape
    if drawn.fault is None or "gc" not in drawn.fault.name:
        return struck
    pauses_s = (struck.pause_s - healthy.pause_s) + (struck.launch_s - healthy.launch_s)
    world = replace(
        struck, pause_s=healthy.pause_s, launch_s=healthy.launch_s, before_s=struck.before_s.copy()
    )
    rng = np.random.default_rng([shape.steps, shape.dp, 0x6C])
    for step in planned_steps(shape.steps, interval_of(item)):
        near = pauses_near(pauses_s, step)
        world.before_s[:, step] += rng.choice(near, size=(shape.pp, shape.dp))
    return world


def planned_steps(steps: int, every: int) -> Iterable[int]:
    """Return the steps before which all workers collect."""
    return range(every - 1, steps, every) if every <= steps else range(steps - 1, steps)


def pauses_near(pauses: Times, step: int) -> Times:
    """Return the pauses around a step; the last axis but one counts steps."""
    for reach in range(pauses.shape[-2] + 1):
        some = pauses[..., max(step - reach, 0) : step + reach + 1, :]
        found = some[some > 0]
        if len(found) >= 8:
            return np.asarray(found)
    return np.asarray(pauses[pauses > 0])


def interval_of(item: Advised) -> int:
    """Return the recommended interval between collections, in steps."""
    assert item.fix.collections is not None
    return item.fix.collections.every


def _divided(drawn: Drawn, item: Advised) -> World:
    """Divide the layers as the report recommends; for an upper bound, evenly by their times."""
    division = item.fix.division
    if division is None:
        world = drawn.struck.world.copy()
        for taken_s, surplus in zip(passes_of(world), world.surplus, strict=True):
            taken_s[:] *= (surplus.mean() / surplus)[:, :, None, None, None]
        return world
    return arranged(drawn.struck.world, division.today, division.layers)


def arranged(
    world: World, today: ByChunk, after: ByChunk, workers: Sequence[int] | None = None
) -> World:
    """Return a job with a new division of layers, each with its true cost.

    Workers that move to another stage keep their speed and their hosts' delays.
    """
    shape = world.shape
    places = np.arange(shape.pp) if workers is None else np.array(workers)
    before, then = in_order(today), in_order(after)
    world = moved(world, places)
    for taken_s, surplus in zip(passes_of(world), world.surplus, strict=True):
        of_chunk = in_turn(surplus)
        # A worker's times contain its old chunk's cost, which is replaced by the new chunk's.
        had = by_stage(before * of_chunk, shape.pp)[places]
        gets = by_stage(chunk_factors(before, then, of_chunk) * before * of_chunk, shape.pp)
        taken_s[:] *= (gets / had)[:, :, None, None, None]
    share = by_stage(then / before, shape.pp)
    world.gather_s[:] *= share[:, :, None]
    world.scatter_s[:] *= share[:, :, None]
    counts = np.array([sum(chunks) for chunks in today]), np.array([sum(c) for c in after])
    world.optimizer_s[:] *= (counts[1] / counts[0])[:, None, None]
    return world


def passes_of(world: World) -> tuple[Times, Times]:
    """Return the times of forward and backward passes."""
    return world.forward_s, world.backward_s


def moved(world: World, places: NDArray[np.int64]) -> World:
    """Return a job in which each stage has the workers of another stage."""
    return replace(
        world.copy(),
        forward_s=world.forward_s[places],
        backward_s=world.backward_s[places],
        launch_s=world.launch_s[places],
        pause_s=world.pause_s[places],
        rank_s=world.rank_s[:, places],
        late_s=world.late_s[:, places],
        context_s=world.context_s[:, places],
        tokens=world.tokens[places],
    )


def in_turn(by_chunk: Times) -> Times:
    """Return values of chunks, given as (stages, chunks), in the order of the model."""
    return by_chunk.T.ravel()


def _evened(drawn: Drawn, item: Advised) -> World:
    """Divide the sequences as recommended; for an upper bound, make all microbatches equal."""
    world, plan = drawn.struck.world, item.fix.balancing
    if drawn.fault is None or drawn.fault.cause != _LENGTHS:
        return world
    if plan is None or world.lengths is None:
        return drawn.without
    factors = length_factors(world.lengths, (world.forward_s / drawn.healthy.forward_s)[0, 0], plan)
    return replace(
        world, forward_s=world.forward_s * factors, backward_s=world.backward_s * factors
    )


def _redistributed(drawn: Drawn, item: Advised) -> World:
    """Let each DP rank run its number of microbatches; those that it does not run take no time."""
    world, plan = drawn.struck.world, item.fix.redistribution
    assert plan is not None
    counts = np.array(plan.microbatches)
    # More microbatches than today repeat the times of the first ones.
    numbers = np.arange(counts.max())
    repeated = numbers % world.shape.microbatches

    def on(axis: int, times: Times) -> Times:
        longer = np.moveaxis(np.take(times, repeated, axis=axis), axis, 0)
        runs = (numbers[:, None] < counts).reshape(len(numbers), *(1,) * (times.ndim - 2), -1)
        return np.moveaxis(np.where(runs, longer, 0.0), 0, axis)

    return replace(
        world,
        shape=replace(world.shape, microbatches=len(numbers)),
        forward_s=on(2, world.forward_s),
        backward_s=on(2, world.backward_s),
        activation_s=on(1, world.activation_s),
        gradient_s=on(1, world.gradient_s),
        launch_s=on(2, world.launch_s),
        pause_s=on(2, world.pause_s),
        late_s=on(3, world.late_s),
        tokens=np.take(world.tokens, repeated, axis=2),
    )


def _at_best_speed(drawn: Drawn, _item: Advised) -> World:
    """Let all workers compute without the common, or the rotating, slowdown."""
    world, usual = drawn.struck.world.copy(), drawn.usual
    if drawn.fault is None or drawn.fault.cause not in _EVERYWHERE:
        return world
    world.forward_s[:], world.backward_s[:] = usual.forward_s, usual.backward_s
    return world


def _without_traffic(drawn: Drawn, _item: Advised) -> World:
    usual = drawn.usual
    return replace(
        drawn.struck.world,
        activation_s=usual.activation_s,
        gradient_s=usual.gradient_s,
        gather_s=usual.gather_s,
        scatter_s=usual.scatter_s,
    )


def _experts_balanced(drawn: Drawn, _item: Advised) -> World:
    world = drawn.struck.world
    return replace(world, tokens=np.ones_like(world.tokens))


def _contexts_even(drawn: Drawn, _item: Advised) -> World:
    """Give all context-parallel ranks of a group the same work."""
    world = drawn.struck.world
    even = np.broadcast_to(world.context_s.mean(axis=0), world.context_s.shape)
    return replace(world, context_s=even)


MAKES: Final[Mapping[str, Make]] = {
    "separate_traffic": _without_traffic,
    "balance_experts": _experts_balanced,
    "divide_sequences": _contexts_even,
    "replace_worker": _replaced,
    "cool_device": _replaced,
    "replace_rank": _rank_replaced,
    "shed_work": _work_shed,
    "defragment_memory": _defragmented,
    "repair_link": _repaired,
    "load_ahead": _loaded_ahead,
    "save_in_background": _saved_in_background,
    "evaluate_elsewhere": _evaluated_elsewhere,
    "name_standstill": _standing_no_more,
    "launch_faster": _launched_faster,
    "plan_garbage_collection": _collected_together,
    "restore_speed": _at_best_speed,
    "even_steps": _at_best_speed,
    "even_stages": _divided,
    "even_microbatches": _evened,
    "redistribute_microbatches": _redistributed,
}

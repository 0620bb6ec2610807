"""Fixes of jobs of the second physics: the same draws executed with the fix made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.report.build import analyze
from tests.oracles.physics.draw import Drawn, draw_worlds
from tests.oracles.physics.execute import execute
from tests.oracles.physics.record import Recording, record
from tests.oracles.physics.world import Times, World
from tests.referee.fixes.balanced import length_factors
from tests.referee.fixes.layers import by_stage, chunk_factors, in_order
from tests.referee.fixes.promise import Advised, Promise, Refereed, advised
from tests.referee.judging import NONE, draw_fault, trace_of

PHYSICS: Final = "independent"
_STAGE: Final = "stage_imbalance"
_LENGTHS: Final = "sequence_length_imbalance"

# Given a job and a fix of it, returns the job with the fix made.
Make = Callable[[Drawn, Advised], World]


def referee(seed: int, healthy: float, only: str | None) -> Refereed:
    """Draw the job of a seed, analyze it, and make each fix that its report advises."""
    fault = only if only is not None else draw_fault(seed, healthy)
    drawn = draw_worlds(seed, fault)
    now = execute(drawn.struck.world)
    recording = record(drawn.struck.world, now, gap_s=drawn.gap_s)
    layers = layers_of(drawn, seed)
    if layers is not None:
        recording = _naming(recording, layers)
    report = analyze(trace_of(recording)).report
    promises, unexecuted = [], []
    for item in advised(report):
        make = MAKES.get(item.fix.action)
        if make is None:
            unexecuted.append(item.fix.action)
            continue
        after = execute(make(drawn, item))
        promises.append(
            Promise(
                seed=seed,
                physics=PHYSICS,
                fault=fault or NONE,
                action=item.fix.action,
                at_most=item.fix.at_most,
                promised=1 / (1 - item.fix.predicted_gain),
                realised=float(now.step_s.sum() / after.step_s.sum()),
            )
        )
    return Refereed(seed, PHYSICS, fault or NONE, fault is None, tuple(promises), tuple(unexecuted))


def layers_of(drawn: Drawn, seed: int) -> int | None:
    """Return how many layers each chunk has, as the metadata say; None where they do not."""
    rng = np.random.default_rng([seed, 0x1A7E])
    if drawn.shape.pp == 1 or rng.random() < 0.3:
        return None
    return int(rng.integers(3, 17))


def _naming(recording: Recording, layers: int) -> Recording:
    meta = recording.metadata
    by_chunk = [[layers] * meta["vpp"] for _ in range(meta["pp"])]
    return replace(recording, metadata={**meta, "layers": by_chunk})


def _replaced(drawn: Drawn, item: Advised) -> World:
    """Give workers that are at fault the speed that they were drawn with."""
    world, healthy = drawn.struck.world.copy(), drawn.healthy
    for dp, pp in drawn.struck.workers & set(item.workers):
        world.forward_s[pp, ..., dp] = healthy.forward_s[pp, ..., dp]
        world.backward_s[pp, ..., dp] = healthy.backward_s[pp, ..., dp]
        world.rank_s[:, pp, ..., dp] = healthy.rank_s[:, pp, ..., dp]
        world.late_s[:, pp, ..., dp] = healthy.late_s[:, pp, ..., dp]
    return world


def _rank_replaced(drawn: Drawn, item: Advised) -> World:
    world, healthy, tp = drawn.struck.world.copy(), drawn.healthy, drawn.shape.tp
    for (dp, pp), rank in zip(item.where.workers, item.where.ranks, strict=True):
        if item.fix.cause == "context_parallel_straggler":
            place = rank // tp % drawn.shape.cp
            world.context_s[place, pp, ..., dp] = healthy.context_s[place, pp, ..., dp]
            continue
        world.rank_s[rank % tp, pp, ..., dp] = healthy.rank_s[rank % tp, pp, ..., dp]
        world.late_s[rank % tp, pp, ..., dp] = healthy.late_s[rank % tp, pp, ..., dp]
    return world


def _work_shed(drawn: Drawn, item: Advised) -> World:
    """Let ranks compute as many columns as the plans leave them."""
    world = drawn.struck.world.copy()
    assert item.report.tensor is not None
    for group in item.report.tensor.groups:
        dp, pp = group.worker
        for share in group.advice.best.ranks:
            less = share.resized_columns + share.migrated_columns - share.received_columns
            world.rank_s[share.rank, pp, ..., dp] *= 1 - less / group.advice.columns
    return world


def _defragmented(drawn: Drawn, item: Advised) -> World:
    world, healthy = drawn.struck.world.copy(), drawn.healthy
    for dp, pp in item.where.workers:
        world.late_s[:, pp, ..., dp] = healthy.late_s[:, pp, ..., dp]
    return world


def _repaired(drawn: Drawn, item: Advised) -> World:
    """Make links, and a stage's collectives, what they were drawn as."""
    world, healthy, shape = drawn.struck.world.copy(), drawn.healthy, drawn.shape
    for dp, one, other in item.where.links or ():
        # The last stage's chunk sends to the first stage's next one.
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
    return world


def _loaded_ahead(drawn: Drawn, item: Advised) -> World:
    world, healthy = drawn.struck.world.copy(), drawn.healthy
    ranks = slice(None) if item.where.dp is None else slice(item.where.dp, item.where.dp + 1)
    world.data_s[..., ranks] = healthy.data_s[..., ranks]
    world.before_s[..., ranks] = healthy.before_s[..., ranks]
    return world


def _saved_in_background(drawn: Drawn, _item: Advised) -> World:
    return replace(drawn.struck.world, data_s=drawn.healthy.data_s, before_s=drawn.healthy.before_s)


def _launched_faster(drawn: Drawn, item: Advised) -> World:
    world, healthy, shape = drawn.struck.world.copy(), drawn.healthy, drawn.shape
    everybody = [(dp, pp) for dp in range(shape.dp) for pp in range(shape.pp)]
    for dp, pp in item.where.workers or everybody:
        world.launch_s[pp, ..., dp] = healthy.launch_s[pp, ..., dp]
    return world


def _collected_together(drawn: Drawn, item: Advised) -> World:
    """Pause all workers before the planned steps, and none elsewhere.

    A collection takes what those of that time take, on each worker another one.
    """
    struck, healthy, shape = drawn.struck.world, drawn.healthy, drawn.shape
    if drawn.fault is None or drawn.fault.cause != "garbage_collection":
        return struck
    pauses_s = (struck.pause_s - healthy.pause_s) + (struck.launch_s - healthy.launch_s)
    world = replace(
        struck, pause_s=healthy.pause_s, launch_s=healthy.launch_s, before_s=healthy.before_s.copy()
    )
    rng = np.random.default_rng([shape.steps, shape.dp, 0x6C])
    for step in planned_steps(shape.steps, interval_of(item)):
        near = pauses_near(pauses_s, step)
        world.before_s[:, step] += rng.choice(near, size=(shape.pp, shape.dp))
    return world


def planned_steps(steps: int, every: int) -> Iterable[int]:
    """Return the steps before which all collect."""
    return range(every - 1, steps, every) if every <= steps else range(steps - 1, steps)


def pauses_near(pauses: Times, step: int) -> Times:
    """Return the pauses around a step; the axis before the last counts steps."""
    for reach in range(pauses.shape[-2] + 1):
        some = pauses[..., max(step - reach, 0) : step + reach + 1, :]
        found = some[some > 0]
        if len(found) >= 8:
            return np.asarray(found)
    return np.asarray(pauses[pauses > 0])


def interval_of(item: Advised) -> int:
    """Return every how many steps a report advises to collect."""
    assert item.fix.collections is not None
    return item.fix.collections.every


def _divided(drawn: Drawn, item: Advised) -> World:
    """Divide the layers as the report says; as a bound, evenly by what they take."""
    world, division = drawn.struck.world.copy(), item.fix.division
    heavy = drawn.fault is not None and drawn.fault.cause == _STAGE
    if division is None:
        return drawn.without if heavy else world
    usual = drawn.healthy if heavy else world
    surplus = {
        name: getattr(world, name) / getattr(usual, name) for name in ("forward_s", "backward_s")
    }
    today, after = in_order(division.today), in_order(division.layers)
    for name, by_pass in surplus.items():
        by_chunk = in_turn(by_pass.mean(axis=(2, 3, 4)))
        factor = by_stage(chunk_factors(today, after, by_chunk), drawn.shape.pp)
        getattr(world, name)[:] *= factor[:, :, None, None, None]
    share = by_stage(after / today, drawn.shape.pp)
    world.gather_s[:] *= share[:, :, None]
    world.scatter_s[:] *= share[:, :, None]
    counts = [sum(chunks) for chunks in division.today], [sum(c) for c in division.layers]
    world.optimizer_s[:] *= (np.array(counts[1]) / np.array(counts[0]))[:, None, None]
    return world


def in_turn(by_chunk: Times) -> Times:
    """Return values of chunks in the order of the model, given as (stages, chunks)."""
    return by_chunk.T.ravel()


def _evened(drawn: Drawn, item: Advised) -> World:
    """Divide the sequences as the report says; as a bound, let every microbatch take the mean."""
    world, plan = drawn.struck.world, item.fix.balancing
    if drawn.fault is None or drawn.fault.cause != _LENGTHS:
        return world
    if plan is None or world.lengths is None:
        return drawn.without
    factors = length_factors(world.lengths, (world.forward_s / drawn.healthy.forward_s)[0, 0], plan)
    return replace(
        world, forward_s=world.forward_s * factors, backward_s=world.backward_s * factors
    )


MAKES: Final[Mapping[str, Make]] = {
    "replace_worker": _replaced,
    "cool_device": _replaced,
    "replace_rank": _rank_replaced,
    "shed_work": _work_shed,
    "defragment_memory": _defragmented,
    "repair_link": _repaired,
    "load_ahead": _loaded_ahead,
    "save_in_background": _saved_in_background,
    "launch_faster": _launched_faster,
    "plan_garbage_collection": _collected_together,
    "even_stages": _divided,
    "even_microbatches": _evened,
}

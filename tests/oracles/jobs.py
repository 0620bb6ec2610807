"""Plans of whole jobs by trying all: on few nodes, every unit, division and share of the batch.

Times and sizes of blocks are the program's own. The time and memory of a stage, the possible
pipelines and their iteration are implemented again here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache

from app.analysis.planning.job.search import sizes_of
from app.analysis.planning.job.space import Space, Unit, space_of
from app.analysis.planning.job.spec import JobSpec

NEVER = math.inf


def least_time_ps(spec: JobSpec) -> float:
    """Return t_std of the best plan; infinite if no plan fits."""
    return min((_at(space_of(spec, sizes)) for sizes in sizes_of(spec)), default=NEVER)


def _at(space: Space) -> float:
    spec = space.spec
    nodes = tuple(device.nodes for device in spec.devices)
    alike = len(nodes) == 1
    best = NEVER
    for units in _divisions(nodes, space.slots, idle=spec.allow_idle):
        dp = sum(replicas for _, replicas in units)
        if dp > space.microbatches or spec.fixed.dp not in {None, dp}:
            continue
        if alike and len(set(units)) > 1:
            continue
        best = min(best, _shared(space, units, dp))
    return best


def _divisions(
    nodes: tuple[int, ...], slots: int, *, idle: bool
) -> Iterator[tuple[tuple[tuple[int, ...], int], ...]]:
    """Yield every way to divide nodes into units with their replicas, each once."""
    candidates = sorted(
        (mine, replicas)
        for mine in itertools.product(*(range(n + 1) for n in nodes))
        for replicas in range(1, slots + 1)
        if any(mine) and slots % replicas == 0
    )

    def rest(
        left: tuple[int, ...], first: int
    ) -> Iterator[tuple[tuple[tuple[int, ...], int], ...]]:
        if idle or not any(left):
            yield ()
        for position in range(first, len(candidates)):
            mine, _ = candidates[position]
            if all(a <= b for a, b in zip(mine, left, strict=True)):
                after = tuple(b - a for a, b in zip(mine, left, strict=True))
                for others in rest(after, position):
                    yield (candidates[position], *others)

    return (units for units in rest(nodes, 0) if units)


def _shared(space: Space, units: tuple[tuple[tuple[int, ...], int], ...], dp: int) -> float:
    """Return the time of the best shares of the batch among the pipelines of some units."""
    chunks, total = space.sizes.interleave, space.microbatches

    @cache
    def time(unit: tuple[tuple[int, ...], int], microbatches: int) -> float:
        return _pipeline(space, *unit, dp, microbatches)

    pipelines = [unit for unit in units for _ in range(unit[1])]
    # least[n]: the least time of the pipelines so far, with n microbatches in all
    least = {0: 0.0}
    for unit in pipelines:
        stages = sum(unit[0]) * space.slots // unit[1]
        each = stages if chunks > 1 else 1
        after: dict[int, float] = {}
        for done, until in least.items():
            for n in range(each, total - done + 1, each):
                both = max(until, time(unit, n))
                if both < after.get(done + n, NEVER):
                    after[done + n] = both
        least = after
    return least.get(total, NEVER)


def _pipeline(
    space: Space, nodes: tuple[int, ...], replicas: int, dp: int, microbatches: int
) -> float:
    used = [kind for kind, number in enumerate(nodes) if number]
    here = space.slots // replicas
    stages = sum(nodes) * here
    if stages > space.layers or space.spec.fixed.pp not in {None, stages}:
        return NEVER
    best = NEVER
    for order in itertools.permutations(used):
        kinds = [kind for kind in order for _ in range(nodes[kind] * here)]
        for cut in _cuts(space.layers, stages):
            if space.sizes.interleave > 1 and (
                stages == 1 or len(set(cut)) > 1 or cut[0] % space.sizes.interleave
            ):
                continue
            times = [_stage(space, kinds, cut, j, here, dp) for j in range(stages)]
            slowest = max(times)
            bubble = (
                math.ceil((sum(times) - slowest) / space.sizes.interleave)
                if (slowest < NEVER)
                else NEVER
            )
            best = min(best, bubble + microbatches * slowest)
    if best == NEVER:
        return NEVER
    tails = {space.tail_ps(Unit(nodes, tuple(used), replicas), dp)}
    return best + tails.pop()


def _cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for ends in itertools.combinations(range(1, layers), stages - 1):
        at = (0, *ends, layers)
        yield tuple(b - a for a, b in itertools.pairwise(at))


def _stage(  # noqa: PLR0917 - as the units say
    space: Space, kinds: list[int], cut: tuple[int, ...], position: int, here: int, dp: int
) -> float:
    """Return the time of a stage for one microbatch; infinite if its memory does not suffice."""
    cost, chunks, stages = space.costs[kinds[position]], space.sizes.interleave, len(kinds)
    time, held = cut[position] * cost.block_ps, cost.working_bytes
    tables = 0
    if chunks == 1:
        flight = float(min(stages - position, space.microbatches))
    else:
        ahead = 2 * (stages - position - 1) + (chunks - 1) * stages + 1
        flight = min(ahead / chunks, float(space.microbatches))
    held += flight * cut[position] * cost.stored_bytes
    if position == 0:
        time += cost.embedding_ps
        tables += 1
        held += flight * cost.input_bytes
    if position == stages - 1:
        time += cost.head_ps
        tables += 1
        held += cost.logits_bytes
    for neighbor in (position - 1, position + 1) if stages > 1 else ():
        there = 0 <= neighbor < stages
        same = position // here == neighbor // here if there else stages <= here
        one = cost.receive_inside_ps if same else cost.receive_between_ps
        time += (chunks if there else chunks - 1) * one
    share = dp if space.spec.shard_optimizer else 1
    copied = 4 if space.spec.gradient_bytes == 2 else 0
    each = space.spec.transformer.number_bytes + space.spec.gradient_bytes + (12 + copied) / share
    held += each * (cut[position] * cost.block_parameters + tables * cost.table_parameters)
    return time if held <= cost.capacity_bytes else NEVER

"""The cost of sending and extracting columns (Algorithm 2, line 1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.plan import Method, Plan, RankShare, apportion
from paceline_client.tensor.watch import StepTime
from paceline_client.tensor.workload import Workload

Samples = tuple[tuple[int, float], ...]

# Shares of a rank's columns that are sampled, in sixteenths. They cover the range of plans, because
# a line through small samples does not predict large ones.
_LENT: Final = (1, 4, 8, 14)
_LEVEL: Final = (1, 4, 8)
_LEFT_OUT: Final = (4, 14)
_WHOLE: Final = 16
# How often all samples are repeated. Other load of the machine passes, so the fastest step of each
# sample counts.
_ROUNDS: Final = 3
_LOOK_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Costs:
    """Samples of a group's cost functions: (columns, additional seconds of a step)."""

    # Φ1: outside the slowest rank's own time, for columns of a rank that is ahead of the others.
    communicate: Samples
    extract: Samples  # Ω2: of a rank outside its products, for columns that it leaves out
    lend: Samples = ()  # in addition to Φ1 if the rank that lends is not ahead

    def document(self) -> dict[str, Samples]:
        """Return the samples for a report."""
        given = {"communicate": self.communicate, "extract": self.extract, "lend": self.lend}
        return {name: samples for name, samples in given.items() if samples}


@dataclass(frozen=True, slots=True)
class _Times:
    """The shortest times outside the slowest rank's own time, and outside its products."""

    outside_s: float
    rest_s: float


def pre_test(
    workload: Workload, tp: TensorGroup, step: Callable[[], object], steps: int = 2
) -> Costs:
    """Sample costs on a group without stragglers and without a plan, on all ranks together.

    `tp` has a watch. `step` trains for a step and is called about 90 times; in half of them, ranks
    leave columns out. If the model must not lose accuracy, it must not update the model, or the
    model must be loaded afterwards. Each sample takes `steps` steps in each round.
    """
    columns, size = workload.columns, tp.size
    # The other ranks must keep some columns.
    level = [part for part in _LEVEL if part * size < (_WHOLE - 1) * (size - 1)]
    plans: list[Plan | None] = [None]
    plans += [_lending(columns * part // _WHOLE, columns, size) for part in _LENT]
    plans += [_lending(columns * part // _WHOLE, columns, size, level=True) for part in level]
    plans += [
        Plan(0, Method.ZERO, columns, size, (RankShare(0, columns * part // _WHOLE),))
        for part in _LEFT_OUT
    ]
    rounds = [[_measure(workload, tp, plan, step, steps) for plan in plans] for _ in range(_ROUNDS)]
    workload.apply(None)
    outside_s = [min(one.outside_s for one in found) for found in zip(*rounds, strict=True)]
    rest_s = [min(one.rest_s for one in found) for found in zip(*rounds, strict=True)]
    ahead = dict(zip(_LENT, outside_s[1:], strict=False))
    not_ahead = dict(zip(level, outside_s[1 + len(_LENT) :], strict=False))
    left_out = dict(zip(_LEFT_OUT, rest_s[-len(_LEFT_OUT) :], strict=True))

    def over(taken_s: dict[int, float], without_s: Callable[[int], float]) -> Samples:
        return tuple(
            (columns * part // _WHOLE, max(0.0, one_s - without_s(part)))
            for part, one_s in taken_s.items()
        )

    return Costs(
        over(ahead, lambda _: outside_s[0]),
        over(left_out, lambda _: rest_s[0]),
        over(not_ahead, lambda part: max(ahead[part], outside_s[0])),
    )


def _lending(count: int, columns: int, size: int, *, level: bool = False) -> Plan:
    """Return a plan by which the first rank lends `count` columns to the others.

    With `level`, the others leave out columns so that all ranks compute the same number.
    """
    even = apportion([1] * (size - 1), count)
    lent = tuple((rank + 1, part) for rank, part in enumerate(even) if part)
    rest = tuple(RankShare(rank + 1, count + part) for rank, part in enumerate(even))
    shares = (RankShare(0, 0, lent), *(rest if level else ()))
    return Plan(0, Method.MIGRATE, columns, size, shares)


def _measure(
    workload: Workload, tp: TensorGroup, plan: Plan | None, step: Callable[[], object], steps: int
) -> _Times:
    watch = tp.watch
    workload.apply(plan)
    # The first step allocates memory for the new shapes.
    step()
    watch.end_step(-1)
    took_s = []
    for number in range(steps):
        began_s = time.perf_counter()
        step()
        watch.end_step(number)
        took_s.append(time.perf_counter() - began_s)
    own: dict[int, StepTime] = {}
    while steps - 1 not in own:
        own |= {one.step: one for one in watch.finished()}
        time.sleep(_LOOK_S)
    ended = range(steps)
    mine = torch.tensor(
        [
            took_s,
            [own[number].time_s for number in ended],
            [own[number].time_s - own[number].matmul_s for number in ended],
        ],
        dtype=torch.float64,
    )
    if dist.get_backend(tp.process_group) != "gloo":
        mine = mine.to(workload.device)
    everyone = mine.new_empty(tp.size, *mine.shape)
    dist.all_gather(list(everyone), mine, group=tp.process_group)
    # The difference step by step cancels the noise of a rank's own work.
    step_s, time_s, rest_s = everyone.unbind(1)
    outside_s = step_s.amax(0) - time_s.amax(0)
    return _Times(float(outside_s.min()), float(rest_s[0].min()))

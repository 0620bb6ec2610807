"""What handing columns over and taking them apart costs (Algorithm 2, line 1)."""

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

# Shares of a rank's columns that are sampled, in sixteenths: the least and the most that plans ask
# for, because a line through samples far below says little of what lies above.
_LENT: Final = (1, 4, 8, 14)
_LEVEL: Final = (1, 4, 8)
_LEFT_OUT: Final = (4, 14)
_WHOLE: Final = 16
# So often all of them are sampled one after the other. What else runs on a machine passes: of each
# sample the fastest step counts.
_ROUNDS: Final = 3
_LOOK_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Costs:
    """Samples of a group's cost functions.

    Parameters
    ----------
    communicate : tuple of (columns, seconds)
        Φ1: what a step takes longer, outside the slowest rank's own time, while columns are lent by
        a rank that is ahead of the others.
    extract : tuple of (columns, seconds)
        Ω2: what a rank's step takes longer, outside its products, while columns are left out.
    lend : tuple of (columns, seconds)
        What a step takes longer still where the rank that lends them is not ahead.
    """

    communicate: Samples
    extract: Samples
    lend: Samples = ()

    def document(self) -> dict[str, Samples]:
        """Return the samples as a report has them."""
        said = {"communicate": self.communicate, "extract": self.extract, "lend": self.lend}
        return {name: samples for name, samples in said.items() if samples}


@dataclass(frozen=True, slots=True)
class _Times:
    """The fastest of some steps: outside the slowest rank's own time, and outside its products."""

    outside_s: float
    rest_s: float


def pre_test(
    workload: Workload, tp: TensorGroup, step: Callable[[], object], steps: int = 2
) -> Costs:
    """Sample costs on a group without stragglers, on all ranks together.

    Parameters
    ----------
    workload : Workload
        Without a plan.
    tp : TensorGroup
        With a watch.
    step : callable
        Trains for a step. It is called some 90 times; in half of them ranks leave columns out. Who
        may lose nothing has a step that does not update the model, or loads it afterwards.
    steps : int
        For each sample and round, of which the fastest of all rounds counts.
    """
    columns, size = workload.columns, tp.size
    # Others leave out at most what still leaves them something to do.
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
    """Return a plan by which the first rank lends `columns` columns to the others.

    Parameters
    ----------
    level : bool
        Whether the others leave out so much that all have the same to compute.
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
    # The first step makes room for other shapes.
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
    # Step by step: noise of a rank's own work is in both, and no part of the difference.
    step_s, time_s, rest_s = everyone.unbind(1)
    outside_s = step_s.amax(0) - time_s.amax(0)
    return _Times(float(outside_s.min()), float(rest_s[0].min()))

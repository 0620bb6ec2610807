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

# Shares of a rank's columns that are sampled, in eighths.
_EIGHTHS: Final = (1, 2, 4)
_LOOK_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Costs:
    """Samples of a group's cost functions.

    Parameters
    ----------
    communicate : tuple of (columns, seconds)
        Φ1: what a step takes longer, beside the slowest rank's own time, while columns are lent.
    extract : tuple of (columns, seconds)
        Ω2: what a rank's step takes longer, beside its products, while columns are left out.
    """

    communicate: Samples
    extract: Samples


@dataclass(frozen=True, slots=True)
class _Times:
    """The fastest of some steps: beside the slowest rank's own time, and beside its products."""

    outside_s: float
    rest_s: float


def pre_test(
    workload: Workload, tp: TensorGroup, step: Callable[[], object], steps: int = 3
) -> Costs:
    """Sample costs on a group without stragglers, on all ranks together.

    Parameters
    ----------
    workload : Workload
        Without a plan.
    tp : TensorGroup
        With a watch.
    step : callable
        Trains for a step. It is called some 30 times: these are steps of the training, in a few of
        which the first rank leaves columns out.
    steps : int
        For each sample, of which the fastest counts.
    """
    columns = workload.columns
    without = _measure(workload, tp, None, step, steps)
    communicate: list[tuple[int, float]] = []
    extract: list[tuple[int, float]] = []
    for eighths in _EIGHTHS:
        count = columns * eighths // 8
        even = apportion([1] * (tp.size - 1), count)
        lent = RankShare(0, 0, tuple((rank + 1, part) for rank, part in enumerate(even)))
        for share, method in ((lent, Method.MIGRATE), (RankShare(0, count), Method.ZERO)):
            plan = Plan(0, method, columns, tp.size, (share,))
            found = _measure(workload, tp, plan, step, steps)
            if method is Method.MIGRATE:
                communicate.append((count, max(0.0, found.outside_s - without.outside_s)))
            else:
                extract.append((count, max(0.0, found.rest_s - without.rest_s)))
    workload.apply(None)
    return Costs(tuple(communicate), tuple(extract))


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
    own: list[StepTime] = []
    while not own or own[-1].step < steps - 1:
        own += watch.finished()
        time.sleep(_LOOK_S)
    own = [one for one in own if one.step >= 0]
    mine = torch.tensor(
        [
            min(took_s),
            min(one.time_s for one in own),
            min(one.time_s - one.matmul_s for one in own),
        ],
        dtype=torch.float64,
    )
    if dist.get_backend(tp.process_group) != "gloo":
        mine = mine.to(workload.device)
    everyone = mine.new_empty(tp.size, len(mine))
    dist.all_gather(list(everyone), mine, group=tp.process_group)
    step_s, time_s, rest_s = everyone.t().tolist()
    return _Times(max(step_s) - max(time_s), rest_s[0])

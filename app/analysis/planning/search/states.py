"""Which devices a part of the pipeline uses: the states of the search and the ways between them.

The search builds the pipeline from its end. A state says what the stages so far use: whole nodes
of each type (`v`, a number in mixed radix) and, in its `slot`, the node that is in use and how
many of its devices are free. Slot 0 is *closed*: no node is in use. A *step* adds a stage in front.

A stage on g devices stands at a position of its node that g divides. Where no device may idle, the
nodes' devices are used up one after another; else a stage takes the last position that fits and a
node may be closed before it is used up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.analysis.planning.problem import BETWEEN, INSIDE, Option, PlanningProblem
from app.analysis.planning.search.kernels import IntArray, Steps

CLOSED = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A stage added in front: from one slot to another.

    `gain` are the whole nodes by which `v` grows; `opened` the type of the node in use afterwards,
    -1 where it is closed. `left` says where the next stage in front will be, `right` where the one
    behind is.
    """

    source: int
    target: int
    option: int
    gain: tuple[int, ...]
    opened: int
    left: int
    right: int


@dataclass(frozen=True, slots=True, eq=False)
class StateSpace:
    """The states of a problem and the steps between them."""

    steps: Steps
    slots: int
    # fewest_stages, most_stages: (combinations, slots): stages that a state can consist of, by
    # its devices alone
    fewest_stages: IntArray
    most_stages: IntArray
    idle: bool

    @property
    def states(self) -> int:
        """Return the number of states, reachable or not."""
        return len(self.steps.digits) * self.slots


def build_states(problem: PlanningProblem) -> StateSpace:
    """Return the states of a problem."""
    devices, idle = problem.spec.devices, problem.spec.allow_idle
    nodes = np.array([device.nodes for device in devices], dtype=np.int64)
    stride = np.concatenate([np.cumprod((nodes + 1)[::-1])[::-1][1:], [1]]).astype(np.int64)
    digits = np.stack(
        np.unravel_index(np.arange(int(np.prod(nodes + 1))), tuple(nodes + 1)), axis=1
    ).astype(np.int64)
    # Within one `v` a step never leads to an earlier slot: fewer free devices come later.
    slots = [(-1, 0)] + [
        (i, free)
        for i, device in enumerate(devices)
        for free in range(device.gpus_per_node - 1, 0, -1)
    ]
    steps = sorted(_steps(problem, slots, idle=idle), key=lambda step: step.target)
    gain = np.array([step.gain for step in steps], dtype=np.int64)
    counts = np.bincount([step.target for step in steps], minlength=len(slots))
    per_node = np.array([device.gpus_per_node for device in devices], dtype=np.int64)
    closed = digits.sum(axis=1)
    used = (digits * per_node).sum(axis=1)
    in_use = np.array([0] + [devices[i].gpus_per_node - free for i, free in slots[1:]])
    fewest = closed[:, None] + np.array([i >= 0 for i, _ in slots])[None, :]
    if problem.spec.replicate:
        # a stage may take several nodes
        fewest = np.minimum(fewest, 1)
    return StateSpace(
        Steps(
            nodes=nodes,
            digits=digits,
            slot_type=np.array([i for i, _ in slots], dtype=np.int64),
            first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            source=np.array([step.source for step in steps], dtype=np.int64),
            option=np.array([step.option for step in steps], dtype=np.int64),
            drop=gain @ stride,
            left=np.array([step.left for step in steps], dtype=np.int64),
            right=np.array([step.right for step in steps], dtype=np.int64),
            gain=gain,
        ),
        slots=len(slots),
        fewest_stages=fewest.astype(np.int64),
        most_stages=used[:, None] + in_use[None, :],
        idle=idle,
    )


def _steps(problem: PlanningProblem, slots: list[tuple[int, int]], *, idle: bool) -> list[Step]:
    number = {slot: n for n, slot in enumerate(slots)}
    devices = problem.spec.devices
    none = (0,) * len(devices)
    steps: list[Step] = []
    for index, option in enumerate(problem.options):
        if option.nodes:
            steps.append(Step(CLOSED, CLOSED, index, option.nodes, -1, BETWEEN, BETWEEN))
            continue
        whole = tuple(int(i == option.device) for i in range(len(devices)))
        gpus_per_node = devices[option.device].gpus_per_node
        for free in range(option.gpus, gpus_per_node + 1):
            position = _position(free, option, idle=idle)
            if position is None:
                continue
            fresh = free == gpus_per_node
            source = CLOSED if fresh else number[option.device, free]
            right = BETWEEN if fresh else INSIDE
            if position > 0:
                target = number[option.device, position]
                steps.append(Step(source, target, index, none, option.device, INSIDE, right))
            if position == 0 or idle:
                steps.append(Step(source, CLOSED, index, whole, -1, BETWEEN, right))
    return steps


def _position(free: int, option: Option, *, idle: bool) -> int | None:
    """Return where a stage stands in a node with `free` free devices, None where it does not fit.

    Of several positions the last is as good as any: it leaves the most devices.
    """
    last = (free - option.gpus) // option.gpus * option.gpus
    if not idle and last != free - option.gpus:
        return None
    return last

"""Pass of the optimal search: the cheapest template whose stages take a limited time.

A dynamic program builds the pipeline from its end. A state is the set of devices in use: the number
of whole nodes of each type, encoded as a number `v` in mixed radix, and the `slot`, which is the
type and the number of free devices of the open node (0: closed, no open node). A step adds a stage
in front. A stage on g devices starts at a position in its node that is a multiple of g. If no
device may idle, nodes are filled one after another; otherwise a stage takes the last position that
fits, and a node may be closed before it is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from app.analysis.planning.problem import BETWEEN, INSIDE, Option, PlanningProblem
from app.analysis.planning.search.kernels import (
    FAR,
    PassCosts,
    Steps,
    cheapest,
    lay_out,
    reach_from_end,
    reach_from_start,
    steps_into,
)
from app.analysis.planning.template import Template, fits, number_nodes
from app.analysis.quantities import IntArray

CLOSED = 0

# Maximum number of cells of a pass, 8 bytes each, which bounds its memory.
MOST_CELLS: Final = 150_000_000
_MOST_TRANSITIONS: Final = 4096

# How a pass counts the stages from a stage to the end, which determine the stage's microbatches in
# flight and so its memory: exactly, or by a lower or an upper bound.
EXACT: Final = "exact"
AT_LEAST: Final = "at_least"
AT_MOST: Final = "at_most"


@dataclass(frozen=True, slots=True)
class Step:
    """Addition of a stage in front of a partial pipeline, from slot `source` to slot `target`.

    `gain` are the whole nodes by which `v` grows; `opened` is the type of the open node after the
    step, -1 if no node is open. `left` and `right` are the links to the stage before and to the
    stage after the added stage: ``INSIDE`` the node or ``BETWEEN`` nodes.
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
    """States of a planning problem, and the steps between states."""

    steps: Steps
    slots: int
    fewest_stages: IntArray  # (combinations, slots): lower bound of stages by a state's devices
    most_stages: IntArray  # (combinations, slots): upper bound of stages by a state's devices
    idle: bool  # whether devices may idle

    @property
    def states(self) -> int:
        """Return the number of states, reachable or unreachable."""
        return len(self.steps.digits) * self.slots


def build_states(problem: PlanningProblem) -> StateSpace:
    """Return the states of a planning problem with the steps between them."""
    devices, idle = problem.spec.devices, problem.spec.allow_idle
    nodes = np.array([device.nodes for device in devices], dtype=np.int64)
    stride = np.concatenate([np.cumprod((nodes + 1)[::-1])[::-1][1:], [1]]).astype(np.int64)
    digits = np.stack(
        np.unravel_index(np.arange(int(np.prod(nodes + 1))), tuple(nodes + 1)), axis=1
    ).astype(np.int64)
    # Slots are sorted by descending number of free devices, so that a step within one `v` always
    # leads to a later slot.
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
        # A replicated stage takes several nodes, so one stage may use all of them.
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
    """Return a stage's position in a node with `free` free devices; None if there is no position.

    The last possible position is never worse than the others, since it leaves the most devices
    free.
    """
    last = (free - option.gpus) // option.gpus * option.gpus
    if not idle and last != free - option.gpus:
        return None
    return last


class TooManyCellsError(Exception):
    """The pass would need more cells than its limit."""


class Variant(NamedTuple):
    """Price of a stage in a pass: `factor` × time + `apart` × transfers + `summand`, ps.

    The price is valid for stage times from `shortest_ps` to `longest_ps`, and for a step from one
    phase to the same or the next phase.
    """

    from_phase: int
    to_phase: int
    factor: int
    summand: int
    shortest_ps: int
    longest_ps: int
    counted: int = 1  # whether the stage's time includes its transfers
    apart: int = 0


@dataclass(frozen=True, slots=True)
class SearchGoal:
    """Goal of a pass: the least sum of stage prices."""

    longest_ps: int  # limit of a stage's time
    variants: tuple[Variant, ...]
    cutoff: int = FAR  # larger sums are pruned


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of a pass's table, with the cost of the cell's layers."""

    v: int
    slot: int
    phase: int
    count: int
    layer: int
    value: int


@dataclass(frozen=True, slots=True)
class Transition:
    """Transition into a cell by a stage: cell after the stage, step, and cost of the stage."""

    step: int
    behind: Cell
    cost: int


class SearchPasses:
    """Passes of one search, which share states, bounds and the limit of cells."""

    def __init__(
        self,
        problem: PlanningProblem,
        space: StateSpace,
        counting: str,
        most_cells: int | None = None,
    ) -> None:
        self.problem = problem
        self.most_cells, self.cells = most_cells, 0  # limit and sum of the cells of all passes
        self.space = space
        self.layers = problem.layers
        self.counting = counting if problem.limited else AT_LEAST
        fewest = np.minimum(space.fewest_stages, problem.spec.microbatches).ravel()
        most = np.minimum(
            np.minimum(space.most_stages, self.layers), problem.spec.microbatches
        ).ravel()
        self.counts = int(most.max()) + 1 if self.counting == EXACT else 1
        self.fixed_count = most if self.counting == AT_MOST else fewest
        self.memory_first = self._memory_first(int(most.max()) + 1)
        self.cost = problem.cost_ps
        # For each layer: lower bound of the cost of all layers before it.
        layers = np.arange(self.layers)
        single = self.problem.cost_ps[:, layers + 1, layers].min(axis=0)
        if self.problem.spec.replicate:
            single = np.maximum(single - 1, 0)  # a replicated stage is rounded as a whole
        self.rest = np.concatenate([[0], np.cumsum(single)]).astype(np.int64)

    def _memory_first(self, counts: int) -> IntArray:
        """Return ``[option, n, b]``: lowest first layer within memory, with n stages to the end."""
        problem = self.problem
        shape = (len(problem.options), counts, self.layers + 1)
        if not problem.limited:
            return np.zeros((shape[0], counts, shape[2]), dtype=np.int64)
        lowest = np.empty(shape, dtype=np.int64)
        inside = np.tri(self.layers + 1, k=-1, dtype=bool)
        capacity = problem.capacity_bytes[:, None, None]
        for n in range(counts):
            needed = problem.static_bytes + n * problem.activation_bytes
            lowest[:, n] = ((needed > capacity) & inside).sum(axis=2)
        return lowest

    def lowest_first(self, longest_ps: int) -> IntArray:
        """Return ``[option, n, b]``: lowest first layer of a stage that ends before layer b."""
        inside = np.tri(self.layers + 1, k=-1, dtype=bool)
        by_time = ((self.problem.cost_ps > longest_ps) & inside).sum(axis=2)
        lowest: IntArray = np.maximum(by_time[:, None, :], self.memory_first)
        return lowest

    def bounds(self, lowest: IntArray) -> tuple[IntArray, IntArray]:
        """Return by state the lowest and highest layer at which it can be part of a template."""
        space, layers = self.space, self.layers
        least = lowest[:, min(1, lowest.shape[1] - 1)]
        low = self._from_end(least)
        ends = np.arange(layers + 1)
        fits_to = np.full_like(least, -1)
        for begin in range(layers):
            ok = (least <= begin) & (ends > begin)
            fits_to[:, begin] = np.where(ok.any(axis=1), layers - ok[:, ::-1].argmax(axis=1), -1)
        fits_to = np.maximum.accumulate(fits_to, axis=1)
        high = reach_from_start(space.steps, fits_to, low, space.idle)
        # Each stage has at least one layer, and each remaining node at least one stage.
        fewest = self.space.fewest_stages.ravel()
        np.minimum(high, self.layers - fewest, out=high)
        if not self.space.idle and not self.problem.spec.replicate:
            np.maximum(low, self.problem.spec.nodes - fewest, out=low)
        return low, high

    def _from_end(self, least: IntArray) -> IntArray:
        """Return the lowest layer that each state reaches from the model's end."""
        usable = np.where(least < np.arange(self.layers + 1), least, self.layers + 1)
        fits_from = np.minimum.accumulate(usable[:, ::-1], axis=1)[:, ::-1]
        return reach_from_end(self.space.steps, np.ascontiguousarray(fits_from), self.layers)

    def feasible(self, longest_ps: int) -> bool:
        """Return False if a bound proves that no template has all stages within `longest_ps`."""
        lowest = self.lowest_first(longest_ps)
        low = self._from_end(lowest[:, min(1, lowest.shape[1] - 1)])
        return any(low[s] == 0 for s in self.last_states())

    def last_states(self) -> range:
        """Return the states in which a template is complete."""
        slots, states = self.space.slots, self.space.states
        return (
            range(slots, states, slots)
            if self.space.idle
            else range(states - slots, states, states)
        )

    def single_stages(self) -> list[Template]:
        """Return the templates with a single stage that fit the memory."""
        steps, problem = self.space.steps, self.problem
        options = [
            int(steps.option[step])
            for step in range(int(steps.first[CLOSED]), int(steps.first[CLOSED + 1]))
            if steps.source[step] == CLOSED
            and (self.space.idle or bool((steps.gain[step] == steps.nodes).all()))
            and bool((steps.gain[step] <= steps.nodes).all())
        ]
        templates = [number_nodes(problem, [(0, self.layers, option, False)]) for option in options]
        return [template for template in templates if fits(problem, template)]

    def run(self, goal: SearchGoal, most_cells: int | None = None) -> Table | None:
        """Return the pass's table; None if no template meets the goal.

        Parameters
        ----------
        most_cells : int, optional
            Maximum number of cells of this pass, given if only a small pass is worth its time.

        Raises
        ------
        TooManyCellsError
            There are more cells than `MOST_CELLS`, than the search has left, or than `most_cells`.
        """
        lowest = self.lowest_first(goal.longest_ps)
        low, high = self.bounds(lowest)
        phases = 1 + max(variant.to_phase for variant in goal.variants)
        begin = lay_out(low, high, phases * self.counts)
        left = MOST_CELLS if self.most_cells is None else self.most_cells - self.cells
        if begin[-1] > min(left, left if most_cells is None else most_cells):
            raise TooManyCellsError
        self.cells += int(begin[-1])
        costs = PassCosts(
            self.cost,
            self.problem.input_ps,
            self.problem.gradient_ps,
            lowest,
            np.array(goal.variants, dtype=np.int64),
            self.counts,
            self.fixed_count,
            low,
            high,
            begin,
        )
        table = Table(self, costs, goal, phases)
        return table if table.best is not None else None


class Table:
    """Filled cells of one pass; `ends` are the cells with all layers, cheapest first."""

    def __init__(
        self, passes: SearchPasses, costs: PassCosts, goal: SearchGoal, phases: int
    ) -> None:
        self.passes, self.phases = passes, phases
        self._costs = costs
        self.values = cheapest(passes.space.steps, costs, passes.rest, goal.cutoff)
        counts, slots, phase = self.passes.counts, self.passes.space.slots, self.phases - 1
        low, high, begin = self._costs.low, self._costs.high, self._costs.begin
        cells = []
        for s in self.passes.last_states():
            if not low[s] <= 0 <= high[s]:
                continue
            width = int(high[s] - low[s]) + 1
            for count in range(counts):
                at = int(begin[s]) + (phase * counts + count) * width - int(low[s])
                cells.append(Cell(s // slots, CLOSED, phase, count, 0, int(self.values[at])))
        ends = sorted(cells, key=lambda cell: cell.value)
        self.ends = [cell for cell in ends if cell.value < FAR]
        self.best = self.ends[0] if self.ends else None

    def transitions(self, cell: Cell, budget: int) -> list[Transition]:
        """Return the transitions into a cell whose total cost is at most `budget`."""
        rows = steps_into(
            cell.v, cell.slot, cell.phase, cell.count, cell.layer, budget,
            self.passes.space.steps, self._costs, self.values, _MOST_TRANSITIONS,
        )  # fmt: skip
        return [
            Transition(int(row[0]), Cell(*(int(x) for x in row[2:8])), int(row[8])) for row in rows
        ]

    def template_to(self, cell: Cell) -> Template:
        """Return a template that attains the cell's cost."""
        path: list[tuple[Transition, Cell]] = []
        while cell.layer < self.passes.layers:
            transition = self.transitions(cell, cell.value)[0]
            path.append((transition, cell))
            cell = transition.behind
        return self.template_of(path)

    def template_of(self, path: list[tuple[Transition, Cell]]) -> Template:
        """Return the template of a path that begins at the pipeline's start."""
        steps = self.passes.space.steps
        parts, same_node = [], False
        for transition, cell in path:
            index = int(steps.option[transition.step])
            parts.append((cell.layer, transition.behind.layer, index, same_node))
            same_node = int(steps.right[transition.step]) == INSIDE
        if same_node:
            raise AssertionError("the last stage cannot have a neighbor inside its node")
        return number_nodes(self.passes.problem, parts)


def cheapest_within(longest_ps: int, cutoff: int = FAR, shortest_ps: int = 0) -> SearchGoal:
    """Return the goal that minimizes ΣL with every stage's time between two limits, ps."""
    return SearchGoal(longest_ps, (Variant(0, 0, 1, 0, shortest_ps, longest_ps),), cutoff)


def candidate_times(problem: PlanningProblem, *, with_transfers: bool = True) -> IntArray:
    """Return every possible time of a stage, ps, in ascending order."""
    inside = np.tri(problem.layers + 1, k=-1, dtype=bool)
    cost = problem.cost_ps[:, inside]
    if not with_transfers:
        return np.unique(cost)
    ends, begins = np.nonzero(inside)
    kinds = (INSIDE, BETWEEN)
    totals = {
        (left, right): problem.input_ps[left, begins] + problem.gradient_ps[right, ends]
        for left in kinds
        for right in kinds
    }
    distinct = np.unique(np.stack(list(totals.values())), axis=0)
    return np.unique(np.concatenate([(cost + row).ravel() for row in distinct]))

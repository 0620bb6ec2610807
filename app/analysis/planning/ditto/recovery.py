"""From a virtual template back to real devices: the paper's section 6.

Recovery counts devices of each type. It does not look at nodes: where the stages are put into
nodes afterwards, a node's stages need not follow each other in the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.planning.ditto.folding import Folding
from app.analysis.planning.problem import PlanningProblem, powers_of_two
from app.analysis.planning.template import Node, Stage, Template, t_oobleck

# A device is used only where it replaces more than this of itself (the authors' greedy).
CODE_RULE_SHARE = 0.6

Piece = tuple[int, int, int]  # first layer, end, option


class UnrecoverableError(Exception):
    """The virtual template cannot be made of the real devices; the message says why."""


@dataclass(frozen=True, slots=True)
class _Partial:
    """A template of the first virtual stages: devices used of each type, stages."""

    used: tuple[int, ...]
    pieces: tuple[Piece, ...]
    cost: int


def recover(
    problem: PlanningProblem, folding: Folding, virtual: list[tuple[int, int]]
) -> Template | None:
    """Merge virtual one-device stages by dynamic programming (Algorithm 2).

    Parameters
    ----------
    virtual : list of (first layer, end)

    Returns
    -------
    Template or None
        None where the devices do not allow it.
    """
    devices = problem.spec.devices
    choices = [
        (i, x, factor * x, problem.option_index(i, x))
        for i, (device, factor) in enumerate(zip(devices, folding.factors, strict=True))
        for x in powers_of_two(device.gpus_per_node)
    ]
    limits = tuple(device.gpus for device in devices)
    nothing = _Partial((0,) * len(devices), (), 0)
    best: list[_Partial | None] = [nothing] + [None] * len(virtual)
    for at in range(1, len(virtual) + 1):
        # as in the authors' program, a single stage is tried before any longer template
        for single in (True, False):
            for kind, gpus, covered, option in choices:
                before = best[at - covered] if covered <= at else None
                if before is None or (at == covered) != single:
                    continue
                used = tuple(n + gpus * (i == kind) for i, n in enumerate(before.used))
                piece = (virtual[at - covered][0], virtual[at - 1][1], option)
                pieces = (*before.pieces, piece)
                cost = _cost(problem, pieces) if used[kind] <= limits[kind] else None
                standing = best[at]
                if cost is not None and (standing is None or cost < standing.cost):
                    best[at] = _Partial(used, pieces, cost)
    last = best[-1]
    return None if last is None else into_nodes(problem, last.pieces)


def recover_greedily(
    problem: PlanningProblem, folding: Folding, virtual: list[tuple[int, int, int]], rule: str
) -> Template:
    """Give the strongest devices to the stages where they help most (Algorithm 1).

    Parameters
    ----------
    virtual : list of (first layer, end, devices)
        A template of the virtual cluster.
    rule : str
        ``paper``, or ``code``: also leave stages alone of which a device would replace too little.

    Raises
    ------
    UnrecoverableError
        Devices remain or missing.
    """
    devices = problem.spec.devices
    weakest = folding.weakest
    widths = [gpus for *_, gpus in virtual]
    pieces: list[Piece] = [
        (first, end, problem.option_index(weakest, gpus)) for first, end, gpus in virtual
    ]
    replaced = [False] * len(pieces)
    order = sorted(
        (i for i in range(len(devices)) if i != weakest),
        key=lambda i: (
            -folding.factors[i],
            int(problem.cost_ps[problem.option_index(i, 1), -1, 0]),
        ),
    )
    for kind in order:
        remaining = devices[kind].gpus
        while remaining > 0:
            tries = []
            for j, width in enumerate(widths):
                share = min(width / folding.factors[kind], remaining)
                if replaced[j] or (rule == "code" and share <= CODE_RULE_SHARE):
                    continue
                gpus = min(_power_of_two(share), _largest_fitting(remaining, kind, problem))
                option = problem.option_index(kind, gpus)
                changed = tuple(
                    (first, end, option if i == j else index)
                    for i, (first, end, index) in enumerate(pieces)
                )
                cost = _cost(problem, changed)
                if cost is not None:
                    tries.append((cost, j, gpus, option))
            if not tries:
                raise UnrecoverableError(
                    f"no stage remains for {remaining} of {devices[kind].gpus} {devices[kind].name}"
                )
            _, j, gpus, option = min(tries)
            pieces[j] = (*pieces[j][:2], option)
            replaced[j] = True
            remaining -= gpus
    weak = sum(width for width, done in zip(widths, replaced, strict=True) if not done)
    if weak != devices[weakest].gpus:
        raise UnrecoverableError(
            f"the other stages need {weak} {devices[weakest].name}, "
            f"there are {devices[weakest].gpus}"
        )
    template = into_nodes(problem, tuple(pieces))
    if template is None:
        raise UnrecoverableError("its stages do not fit into the nodes")
    return template


def _power_of_two(devices: float) -> int:
    """Return the smallest power of two that is at least `devices`."""
    power = 1
    while power < devices:
        power *= 2
    return power


def _largest_fitting(remaining: int, kind: int, problem: PlanningProblem) -> int:
    return powers_of_two(min(remaining, problem.spec.devices[kind].gpus_per_node))[-1]


def _cost(problem: PlanningProblem, pieces: tuple[Piece, ...]) -> int | None:
    """Return Oobleck's time, which both programs recover by; it knows no transfers."""
    times = [int(problem.cost_ps[option, end, first]) for first, end, option in pieces]
    return t_oobleck(times, problem.spec.microbatches)


def into_nodes(problem: PlanningProblem, pieces: tuple[Piece, ...]) -> Template | None:
    """Put stages into nodes, the widest first; None where they do not fit."""
    free: dict[Node, int] = {
        (i, n): device.gpus_per_node
        for i, device in enumerate(problem.spec.devices)
        for n in range(device.nodes)
    }
    nodes: dict[int, Node] = {}
    for position in sorted(
        range(len(pieces)), key=lambda j: (-problem.options[pieces[j][2]].gpus, j)
    ):
        option = problem.options[pieces[position][2]]
        fitting = (
            node for node, gpus in free.items() if node[0] == option.device and gpus >= option.gpus
        )
        node = next(fitting, None)
        if node is None:
            return None
        free[node] -= option.gpus
        nodes[position] = node
    return tuple(
        Stage(first, end, option, (nodes[position],))
        for position, (first, end, option) in enumerate(pieces)
    )

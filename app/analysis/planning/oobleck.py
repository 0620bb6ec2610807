"""Oobleck's divide and conquer (Jang et al., SOSP 2023) over stages, layers and device sets.

T(S', u, v, x) is a template for layers [u, v) in S' stages on the device set x. A set of nodes is
divided into two sets, a node into halves. Only one template is kept for each state, so the method
is a heuristic: the best template need not consist of the best parts.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.compiled import compiled
from app.analysis.planning.problem import PlanningProblem
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.kernels import FAR
from app.analysis.quantities import IntArray

# Maximum number of table entries, 48 bytes each, which bounds the memory.
MOST_ENTRIES: Final = 20_000_000
NO_OPTION: Final = -1

# Fields of a table entry; the field is the first index of the table.
_TOTAL, _SLOWEST, _POSITION, _TAIL, _CUT, _SPLIT = range(6)


class TooLargeToDivideError(Exception):
    """The divide and conquer would exceed its limit of memory or of time."""


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """Whole nodes of each type, or part of a node: `gpus` devices of type `device`."""

    nodes: tuple[int, ...]
    device: int = -1
    gpus: int = 0


Part = tuple[int, int, int]  # first layer, end, option


class Division:
    """Divide and conquer on a planning problem, with all its tables filled."""

    def __init__(
        self,
        problem: PlanningProblem,
        objective: str,
        budget: SearchBudget,
        *,
        stages: int | None = None,
    ) -> None:
        """Fill all tables.

        Parameters
        ----------
        objective : str
            ``t_std`` or ``t_oobleck``.
        stages : int, optional
            If equal to the number of devices, every device is a stage (Ditto's virtual template).

        Raises
        ------
        TooLargeToDivideError
            The limit of memory or time is exceeded.
        """
        self.problem = problem
        self.layers = problem.layers
        self.one_each = stages is not None and stages == problem.spec.gpus
        self.standard = objective != "t_oobleck"
        self.sets: list[DeviceSet] = []
        self.index: dict[DeviceSet, int] = {}
        self.fewest: list[int] = []
        self.most: list[int] = []
        everything = DeviceSet(tuple(device.nodes for device in problem.spec.devices))
        for device_set in self._device_sets(everything.nodes):
            gpus = device_set.gpus or sum(
                number * device.gpus_per_node
                for number, device in zip(device_set.nodes, problem.spec.devices, strict=True)
            )
            self.index[device_set] = len(self.sets)
            self.sets.append(device_set)
            longest = min(gpus, self.layers)
            fewest_stages = gpus if self.one_each else max(sum(device_set.nodes), 1)
            self.fewest.append(min(fewest_stages, longest))
            self.most.append(longest)
        entries = sum(
            (b - a + 1) * (self.layers + 1) ** 2
            for a, b in zip(self.fewest, self.most, strict=True)
        )
        if entries > MOST_ENTRIES:
            raise TooLargeToDivideError(f"its tables would have {entries} entries")
        self.splits = [self._split_pairs(device_set) for device_set in self.sets]
        fewest, most = np.array(self.fewest), np.array(self.most)
        divided = 0
        for splits in self.splits:
            left, right = splits[:, 0], splits[:, 1]
            ways = (most[left] - fewest[left] + 1) * (most[right] - fewest[right] + 1)
            divided += int(ways.sum())
        operations = divided * self.layers**3 / 6
        if operations > budget.most_divisions:
            raise TooLargeToDivideError(f"about {operations:.0e} divisions would be looked at")
        offsets = np.cumsum(
            [0] + [b - a + 1 for a, b in zip(self.fewest, self.most, strict=True)]
        ).astype(np.int64)
        self.offsets = offsets
        self.table = np.full(
            (6, self.layers + 1, self.layers + 1, int(offsets[-1])), FAR, dtype=np.int64
        )
        for x in range(len(self.sets)):
            if budget.spent:
                raise TooLargeToDivideError("the time is up")
            option = self._single_option(self.sets[x])
            _fill(
                self.table, offsets, np.array(self.fewest), np.array(self.most), x, self.splits[x],
                problem.cost_ps[option] if option != NO_OPTION else problem.cost_ps[0],
                option != NO_OPTION, problem.spec.microbatches, self.standard,
            )  # fmt: skip
        self.everything = self.index[everything]

    def stage_counts(self) -> range:
        """Return the possible numbers of stages in a template of the whole cluster."""
        return range(self.fewest[self.everything], self.most[self.everything] + 1)

    def cost(self, stages: int) -> int | None:
        """Return the cost of the template with `stages` stages, ps; None if there is none."""
        row = self._row(self.everything, stages)
        entry = self.table[:, 0, self.layers, row]
        if entry[_TOTAL] >= FAR:
            return None
        total, slowest, position, tail = (int(n) for n in entry[:4])
        if self.standard:
            return total + (self.problem.spec.microbatches - 1) * slowest
        if stages == 1:
            return 4 * total
        return total + (self.problem.spec.microbatches - stages + position + 1) * slowest + tail

    def parts(self, stages: int) -> list[tuple[Part, DeviceSet]]:
        """Return the stages of the template with `stages` stages, and each stage's devices."""
        return self._parts(self.everything, stages, 0, self.layers)

    def _row(self, x: int, stages: int) -> int:
        return int(self.offsets[x]) + stages - self.fewest[x]

    def _parts(self, x: int, stages: int, u: int, v: int) -> list[tuple[Part, DeviceSet]]:
        entry = self.table[:, u, v, self._row(x, stages)]
        if stages == 1:
            return [((u, v, self._single_option(self.sets[x])), self.sets[x])]
        cut = int(entry[_CUT])
        pair, left = divmod(int(entry[_SPLIT]), self.layers + 1)
        a, b = (int(n) for n in self.splits[x][pair])
        return self._parts(a, left, u, cut) + self._parts(b, stages - left, cut, v)

    def _device_sets(self, nodes: tuple[int, ...]) -> list[DeviceSet]:
        """Return all device sets in ascending order of their number of devices."""
        devices = self.problem.spec.devices
        none = (0,) * len(nodes)
        parts = {
            DeviceSet(none, i, size)
            for i, device in enumerate(devices)
            for size in _part_sizes(device.gpus_per_node)
        }
        wholes = {
            DeviceSet(chosen)
            for chosen in itertools.product(*(range(n + 1) for n in nodes))
            if any(chosen)
        }
        return sorted(parts, key=lambda part: part.gpus) + sorted(
            wholes, key=lambda whole: sum(whole.nodes)
        )

    def _node(self, device_set: DeviceSet) -> tuple[int, int] | None:
        """Return device type and number of devices of a node or part; None for several nodes."""
        if device_set.gpus:
            return device_set.device, device_set.gpus
        if sum(device_set.nodes) != 1:
            return None
        kind = device_set.nodes.index(1)
        return kind, self.problem.spec.devices[kind].gpus_per_node

    def _single_option(self, device_set: DeviceSet) -> int:
        node = self._node(device_set)
        if node is None or node[1] & (node[1] - 1):
            return NO_OPTION
        return self.problem.option_index(*node)

    def _split_pairs(self, device_set: DeviceSet) -> IntArray:
        """Return the divisions of a set into two, as pairs of indices, in the programs' order."""
        node = self._node(device_set)
        if node is not None:
            kind, gpus = node
            if gpus == 1:
                return np.zeros((0, 2), dtype=np.int64)
            left = _left_part(gpus)
            none = (0,) * len(device_set.nodes)
            pair = [self.index[DeviceSet(none, kind, size)] for size in (left, gpus - left)]
            return np.array([pair], dtype=np.int64)
        pairs = []
        for chosen in _subsets(device_set.nodes):
            if chosen != device_set.nodes:
                rest = tuple(n - c for n, c in zip(device_set.nodes, chosen, strict=True))
                pairs.append((self.index[DeviceSet(chosen)], self.index[DeviceSet(rest)]))
        return np.array(pairs, dtype=np.int64)


def _left_part(gpus: int) -> int:
    """Return the number of devices in a node's left part: half, or the largest power of two."""
    power = 1 << (gpus.bit_length() - 1)
    return power // 2 if power == gpus else power


def _part_sizes(gpus: int) -> set[int]:
    """Return the sizes of the parts of a recursively halved node, excluding the node's size."""
    if gpus == 1:
        return set()
    left = _left_part(gpus)
    sizes = {left, gpus - left}
    return sizes.union(*(_part_sizes(size) for size in sizes))


def _subsets(nodes: tuple[int, ...], start: int = 0) -> list[tuple[int, ...]]:
    """Return the nonempty subsets of the nodes of types `start` and later."""
    subsets = []
    for kind in range(start, len(nodes)):
        for number in range(1, nodes[kind] + 1):
            chosen = tuple(number if i == kind else 0 for i in range(len(nodes)))
            subsets.append(chosen)
            subsets.extend(
                tuple(a + b for a, b in zip(chosen, more, strict=True))
                for more in _subsets(nodes, kind + 1)
            )
    return subsets


@compiled  # pragma: no cover - coverage does not see compiled code
def _fill(  # noqa: PLR0913, PLR0917, C901, PLR0912 - compiled loops over plain arrays
    table: IntArray,
    offsets: IntArray,
    fewest: IntArray,
    most: IntArray,
    x: int,
    splits: IntArray,
    single: IntArray,
    has_single: bool,  # noqa: FBT001 - compiled code takes arguments by position
    microbatches: int,
    standard: bool,  # noqa: FBT001 - as above
) -> None:
    """Fill the table entries of device set x; the entries of its parts must be filled already."""
    layers = table.shape[1] - 1
    for u in range(layers):
        for v in range(u + 1, layers + 1):
            for stages in range(fewest[x], min(most[x], v - u) + 1):
                row = offsets[x] + stages - fewest[x]
                if stages == 1:
                    if has_single:
                        table[_TOTAL, u, v, row] = single[v, u]
                        table[_SLOWEST, u, v, row] = single[v, u]
                        table[_POSITION, u, v, row] = 0
                        table[_TAIL, u, v, row] = single[v, u]
                    continue
                best = FAR
                for cut in range(u + 1, v):
                    for pair in range(splits.shape[0]):
                        a, b = splits[pair, 0], splits[pair, 1]
                        begin = max(fewest[a], stages - min(most[b], v - cut))
                        end = min(most[a], cut - u, stages - fewest[b])
                        row_a = offsets[a] - fewest[a]
                        row_b = offsets[b] - fewest[b] + stages
                        for left in range(begin, end + 1):
                            first_part, second_part = row_a + left, row_b - left
                            total = (
                                table[_TOTAL, u, cut, first_part]
                                + table[_TOTAL, cut, v, second_part]
                            )
                            if total >= best:
                                continue  # also where one part has no template
                            slowest = table[_SLOWEST, cut, v, second_part]
                            if table[_SLOWEST, u, cut, first_part] > slowest:
                                slowest = table[_SLOWEST, u, cut, first_part]
                                position = table[_POSITION, u, cut, first_part]
                                tail = (
                                    table[_TAIL, u, cut, first_part]
                                    + table[_TOTAL, cut, v, second_part]
                                )
                            else:
                                position = table[_POSITION, cut, v, second_part] + left
                                tail = table[_TAIL, cut, v, second_part]
                            if standard:
                                value = total + (microbatches - 1) * slowest
                            else:
                                value = total + (microbatches - stages + position + 1) * slowest
                                value += tail
                            if value < best:
                                best = value
                                table[_TOTAL, u, v, row] = total
                                table[_SLOWEST, u, v, row] = slowest
                                table[_POSITION, u, v, row] = position
                                table[_TAIL, u, v, row] = tail
                                table[_CUT, u, v, row] = cut
                                table[_SPLIT, u, v, row] = pair * (layers + 1) + left

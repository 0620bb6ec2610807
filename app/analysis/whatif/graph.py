"""Dependencies between the operations of one step, as the paper's section 3.2 has them.

The graph is read off the launch order that was recorded, not off an assumed schedule, so GPipe,
1F1B and interleaved schedules all come out of the data. It describes one DP rank; the others and
all other steps of the same shape share it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace import model as ops
from app.analysis.whatif.layout import MAX_NAMED_FAULTS, Layout
from app.errors import Fault, UnanalyzableError

COMPUTE = frozenset({ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE})
# Types that run on the worker itself; every other known type moves data.
LOCAL = COMPUTE | {ops.OPTIMIZER, ops.GC}
# Types that all DP ranks of a stage start together.
DP_COLLECTIVES = frozenset(
    {ops.PARAMS_ALL_GATHER, ops.GRADS_REDUCE_SCATTER, ops.SEPARATE_ALL_REDUCE}
)
P2P = frozenset({ops.FORWARD_SEND, ops.FORWARD_RECV, ops.BACKWARD_SEND, ops.BACKWARD_RECV})


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that complete together: one operation, or one communication group.

    Parameters
    ----------
    members : tuple of int
        Node indices.
    after : tuple of tuple of int
        For each member the nodes that end before it is launched.
    communication : bool
        No member moves data before all have launched.
    across_dp : bool
        The group also spans all DP ranks.
    """

    members: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    communication: bool
    across_dp: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """Units of one step in an order in which each follows what it depends on."""

    units: tuple[Unit, ...]
    # nodes that may end last: nothing follows them
    last: tuple[int, ...]


def build_graph(layout: Layout) -> Graph:
    """Derive the dependency graph of a layout's steps.

    Raises
    ------
    UnanalyzableError
        ``trace.dependency_cycle`` with the operations that wait for one another.
    """
    builder = _Builder(layout)
    for stage in range(layout.pp):
        builder.add_stage(stage)
    groups = list(builder.groups())
    units = [
        Unit(
            members=members,
            after=tuple(tuple(sorted(builder.after[node])) for node in members),
            communication=communication,
            across_dp=across_dp,
        )
        for members, communication, across_dp in groups
    ]
    ordered = _in_order(units, layout)
    followed = {node for unit in ordered for nodes in unit.after for node in nodes}
    last = tuple(node for unit in ordered for node in unit.members if node not in followed)
    return Graph(units=tuple(ordered), last=last)


@dataclass(frozen=True, slots=True)
class _Direction:
    """The op types of one direction through the pipeline."""

    compute: str
    send: str
    recv: str


FORWARD = _Direction(ops.FORWARD_COMPUTE, ops.FORWARD_SEND, ops.FORWARD_RECV)
BACKWARD = _Direction(ops.BACKWARD_COMPUTE, ops.BACKWARD_SEND, ops.BACKWARD_RECV)


@dataclass(slots=True)
class _Builder:
    """Collects, stage by stage, what each node comes after."""

    layout: Layout
    _forward_code: int = field(init=False)
    after: dict[int, set[int]] = field(init=False)
    _by_kind: dict[tuple[str, int], list[int]] = field(init=False)
    _start_ns: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.layout.nodes
        # The lowest step of DP rank 0 is the template: its starts give the launch order.
        self._start_ns = self.layout.start_ns[:, 0, 0]
        self.after = {node: set() for node in range(len(nodes))}
        self._by_kind = {}
        self._forward_code = self.layout.op_names.index(ops.FORWARD_COMPUTE)
        for node, (op, pp) in enumerate(zip(nodes.op.tolist(), nodes.pp.tolist(), strict=True)):
            self._by_kind.setdefault((self.layout.op_names[op], pp), []).append(node)

    def of(self, stage: int, *names: str) -> list[int]:
        """Return a stage's nodes of the named types in launch order."""
        found = [node for name in names for node in self._by_kind.get((name, stage), ())]
        return found if len(names) == 1 else sorted(found, key=lambda n: (self._start_ns[n], n))

    def chain(self, nodes: Iterable[int]) -> None:
        """Let each node follow the one before it."""
        before: int | None = None
        for node in nodes:
            if before is not None:
                self.after[node].add(before)
            before = node

    def add_stage(self, stage: int) -> None:
        """Add the dependencies within one stage."""
        compute = self.of(stage, *COMPUTE)
        self.chain(compute)
        for name in sorted(P2P):
            self.chain(self.of(stage, name))
        self._add_transfers(stage, compute)
        self._add_parameters(stage)
        self._add_end_of_step(stage, compute)

    def _add_transfers(self, stage: int, compute: list[int]) -> None:
        """Tie sends and receives to the computations that they feed or carry away."""
        for direction in (FORWARD, BACKWARD):
            computes = self.of(stage, direction.compute)
            position = {node: i for i, node in enumerate(computes)}
            for receive, node in self._fed(stage, direction):
                self.after[node].add(receive)
                if position[node] > 0:
                    self.after[receive].add(computes[position[node] - 1])
            for send, node in self._emptied(stage, direction):
                self.after[send].add(node)
        # While the pipeline fills, backward transfers wait for the next to last forward.
        backwards = set(self.of(stage, ops.BACKWARD_COMPUTE))
        first_backward = next((i for i, node in enumerate(compute) if node in backwards), 0)
        if first_backward > 1:
            for name in (ops.BACKWARD_SEND, ops.BACKWARD_RECV):
                for node in self.of(stage, name)[:1]:
                    self.after[node].add(compute[first_backward - 2])

    def _fed(self, stage: int, direction: _Direction) -> list[tuple[int, int]]:
        """Return (receive, the computation that it feeds)."""
        computes = self.of(stage, direction.compute)
        entry = stage == (0 if direction is FORWARD else self.layout.pp - 1)
        first_chunk = self._ends_of_model()[0 if direction is FORWARD else 1]
        inner = [n for n in computes if not entry or self._chunk(n) != first_chunk]
        return self._matched(self.of(stage, direction.recv), computes, inner)

    def _emptied(self, stage: int, direction: _Direction) -> list[tuple[int, int]]:
        """Return (send, the computation whose result it carries away)."""
        computes = self.of(stage, direction.compute)
        leaving = stage == (self.layout.pp - 1 if direction is FORWARD else 0)
        last_chunk = self._ends_of_model()[1 if direction is FORWARD else 0]
        inner = [n for n in computes if not leaving or self._chunk(n) != last_chunk]
        return self._matched(self.of(stage, direction.send), computes, inner)

    def _ends_of_model(self) -> tuple[int, int]:
        """Return the model chunks that the first and the last stage begin and end with."""
        chunks = self.layout.nodes.mc[self.layout.nodes.op == self._forward_code]
        return int(chunks.min(initial=0)), int(chunks.max(initial=0))

    def _matched(
        self, transfers: list[int], computes: list[int], inner: list[int]
    ) -> list[tuple[int, int]]:
        """Match transfers with computations in order.

        At the ends of the pipeline only inner chunks have a neighbor; some recorders still write a
        transfer for every computation there.
        """
        if not transfers:
            return []
        for candidates in (inner, computes):
            if len(transfers) == len(candidates):
                return list(zip(transfers, candidates, strict=True))
        name = self.layout.op_names[self.layout.nodes.op[transfers[0]]]
        stage = int(self.layout.nodes.pp[transfers[0]])
        message = (
            f"Stage {stage} has {len(transfers)} {name} for {len(inner)} computations in every step"
        )
        raise UnanalyzableError(
            message,
            code="trace.transfers_unmatched",
            faults=(Fault("transfers_unmatched", message, column=name),),
        )

    def _chunk(self, node: int) -> int:
        return int(self.layout.nodes.mc[node])

    def _add_parameters(self, stage: int) -> None:
        """Let a chunk's last params-all-gather gate its first forward."""
        gathers = self.of(stage, ops.PARAMS_ALL_GATHER)
        forwards = self.of(stage, ops.FORWARD_COMPUTE)
        for chunk, gather in self._by_chunk(gathers).items():
            gated = [n for n in forwards if chunk == ops.ABSENT or self._chunk(n) == chunk]
            if gated:
                self.after[gated[0]].add(gather[-1])

    def _by_chunk(self, nodes: list[int]) -> dict[int, list[int]]:
        chunks: dict[int, list[int]] = {}
        for node in nodes:
            chunks.setdefault(self._chunk(node), []).append(node)
        return chunks

    def _add_end_of_step(self, stage: int, compute: list[int]) -> None:
        """Chain what a step ends with, and the data-parallel stream."""
        gathers = self.of(stage, ops.PARAMS_ALL_GATHER)
        scatters = self.of(stage, ops.GRADS_REDUCE_SCATTER)
        reduces = self.of(stage, ops.SEPARATE_ALL_REDUCE)
        overlapped = bool(reduces)
        self.chain(self.of(stage, *DP_COLLECTIVES) if overlapped else [*gathers, *scatters])
        ends: list[list[int]] = [compute[-1:], self.of(stage, ops.GC)]
        ends += [self.of(stage, ops.LAYERNORM_ALL_REDUCE), self.of(stage, ops.EMBEDDING_ALL_REDUCE)]
        ends += [reduces if overlapped else scatters]
        ends += [self.of(stage, ops.OPTIMIZER_CLIP), self.of(stage, ops.OPTIMIZER)]
        tail = [node for nodes in ends for node in nodes]
        self.chain(tail)
        if overlapped:
            backwards = self.of(stage, ops.BACKWARD_COMPUTE)
            for chunk, scatter in self._by_chunk(scatters).items():
                done = [n for n in backwards if chunk == ops.ABSENT or self._chunk(n) == chunk]
                if done:
                    self.after[scatter[0]].add(done[-1])
            after_backward = [node for nodes in ends[2:] for node in nodes]
            if after_backward and scatters:
                self.after[after_backward[0]].add(scatters[-1])

    def groups(self) -> Iterator[tuple[tuple[int, ...], bool, bool]]:
        """Yield (members, is communication, spans DP ranks) so that each node occurs once."""
        grouped: set[int] = set()
        for members, across_dp in (*self._p2p_groups(), *self._step_end_groups()):
            if not grouped.isdisjoint(members):
                continue
            grouped.update(members)
            yield members, True, across_dp
        for (name, _), nodes in self._by_kind.items():
            for node in nodes:
                if node not in grouped:
                    yield (node,), name not in LOCAL, name in DP_COLLECTIVES

    def _p2p_groups(self) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Pair the sends of a stage with the receives of its neighbor, in order.

        The last stage sends its chunk c to the first stage's chunk c + 1; transfers of the chunks
        that the model begins or ends with have no peer.
        """
        first_chunk, last_chunk = self._ends_of_model()
        pp = self.layout.pp
        for direction, hop, exit_stage, last, first in (
            (FORWARD, 1, pp - 1, last_chunk, first_chunk),
            (BACKWARD, -1, 0, first_chunk, last_chunk),
        ):
            for stage in range(pp):
                neighbor = (stage + hop) % pp
                wraps = stage == exit_stage
                sends = self._emptied(stage, direction)
                receives = self._fed(neighbor, direction)
                if wraps:
                    sends = [(t, n) for t, n in sends if self._chunk(n) != last]
                    receives = [(t, n) for t, n in receives if self._chunk(n) != first]
                for (send, _), (receive, _) in zip(sends, receives, strict=False):
                    yield (send, receive), False

    def _step_end_groups(self) -> Iterator[tuple[tuple[int, ...], bool]]:
        ends = [self.of(stage, ops.EMBEDDING_ALL_REDUCE) for stage in range(self.layout.pp)]
        for members in zip(*(nodes for nodes in ends if nodes), strict=False):
            yield members, False
        clips = [self.of(stage, ops.OPTIMIZER_CLIP) for stage in range(self.layout.pp)]
        for members in zip(*(nodes for nodes in clips if nodes), strict=False):
            yield members, True


def _in_order(units: list[Unit], layout: Layout) -> list[Unit]:
    """Sort units so that each comes after all that its members wait for (Kahn's algorithm)."""
    unit_of = {node: i for i, unit in enumerate(units) for node in unit.members}
    before = [{unit_of[node] for nodes in unit.after for node in nodes} for unit in units]
    followers: list[list[int]] = [[] for _ in units]
    for i, waits in enumerate(before):
        for j in waits:
            followers[j].append(i)
    waiting = [len(waits) for waits in before]
    ready = deque(i for i, count in enumerate(waiting) if count == 0)
    ordered: list[Unit] = []
    while ready:
        i = ready.popleft()
        ordered.append(units[i])
        for j in followers[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    if len(ordered) < len(units):
        _raise_cycle(units, before, waiting, layout)
    return ordered


def _raise_cycle(
    units: list[Unit], before: list[set[int]], waiting: list[int], layout: Layout
) -> None:
    """Name the operations of one cycle."""
    unit = next(i for i, count in enumerate(waiting) if count > 0)
    seen: list[int] = []
    while unit not in seen:
        seen.append(unit)
        unit = next(i for i in sorted(before[unit]) if waiting[i] > 0)
    cycle = seen[seen.index(unit) :][::-1]
    nodes = layout.nodes
    names = [
        f"{layout.op_names[nodes.op[node]]} {nodes.order[node]} on stage {nodes.pp[node]}"
        for i in cycle
        for node in units[i].members
    ]
    raise UnanalyzableError(
        f"{len(names)} operations wait for one another: {' → '.join(names[:MAX_NAMED_FAULTS])}",
        code="trace.dependency_cycle",
        faults=tuple(Fault("dependency_cycle", name) for name in names[:MAX_NAMED_FAULTS]),
    )

"""Variants of a session: which operations keep their recorded duration, and what the rest gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.analysis.whatif.durations import Durations
from app.analysis.whatif.layout import FloatArray, Layout
from app.analysis.whatif.replay import Couple, Program, across_dp, replay

# Elements that one NumPy call works on. Fewer, and calling costs more than computing; more, and
# the ends that are alive no longer fit in the cache of a core.
BATCH_ELEMENTS = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Keep:
    """The operations that keep their recorded durations; all others become ideal.

    Parameters
    ----------
    cells : bool array, shape (dp, pp)
        Workers whose operations are kept.
    types : bool array, shape (op codes,)
        Op types that are kept.
    """

    cells: NDArray[np.bool_]
    types: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """A variant that keeps some DP ranks of a node: all of them but for `columns`, or only those.

    Whichever are fewer are the columns.
    """

    row: int
    keeps_rest: bool
    columns: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """For each node the variants that keep all of its DP ranks, and those that keep some."""

    count: int
    whole: Sequence[tuple[int, ...]]
    partial: Sequence[tuple[Patch, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class KeptVariants:
    """Variants as rows of arrays ``[lane or partner, variant, step, DP rank]``.

    The first axis has the length 1, or 2 where each lane is replayed against one ideal partner
    that stands for all other DP ranks; only the lane keeps recorded durations. As long as no
    variant has kept anything, all lanes are alike and one number stands for them.

    Parameters
    ----------
    recorded_ns : float64 array, shape (nodes, steps, dp)
    ideal_ns : list of float
        Of each node.
    rows : Rows
    partners : int
        Length of the first axis.
    """

    recorded_ns: FloatArray
    ideal_ns: Sequence[float]
    rows: Rows
    partners: int

    def end(self, node: int, begin: FloatArray) -> FloatArray:
        """Add the recorded or the ideal duration."""
        rows, ideal = self.rows, self.ideal_ns[node]
        whole, partial = rows.whole[node], rows.partial[node]
        end: FloatArray
        if not whole and not partial:
            end = begin + ideal
            return end
        recorded = self.recorded_ns[node]
        if self.partners == 1 and len(whole) == rows.count:
            end = begin + recorded
            return end
        end = np.empty((self.partners, rows.count, *recorded.shape))
        np.add(begin, ideal, out=end)
        begins, ends = begin[0], end[0]
        shared = len(begins) == 1
        for row in whole:
            np.add(begins[0 if shared else row], recorded, out=ends[row])
        for patch in partial:
            _patch(patch, begins[0 if shared else patch.row], recorded, ideal, ends[patch.row])
        return end


def _patch(
    patch: Patch, begin: FloatArray, recorded: FloatArray, ideal: float, end: FloatArray
) -> None:
    """Write the ends of a variant that keeps some DP ranks; `end` holds the ideal ones."""
    columns = patch.columns
    chosen = begin[:, columns] if begin.shape[1] > 1 else begin
    if patch.keeps_rest:
        np.add(begin, recorded, out=end)
        end[:, columns] = chosen + ideal
    else:
        end[:, columns] = chosen + recorded[:, columns]


@dataclass(frozen=True, slots=True, eq=False)
class DelayedVariants:
    """Recorded durations; in each variant some nodes are launched as late as recorded.

    As long as no node was late, one row stands for all variants.

    Parameters
    ----------
    recorded_ns, delay_ns : float64 arrays, shape (nodes, steps, dp)
        Durations without waiting; launch delays.
    rows : list of int
        The variant of each node, negative where the node's type has none.
    count : int
        Number of variants.
    """

    recorded_ns: FloatArray
    delay_ns: FloatArray
    rows: Sequence[int]
    count: int

    def launch(self, node: int, ready: FloatArray, *, shared: bool) -> FloatArray:
        """Launch late in the variant of the node's type."""
        row = self.rows[node]
        if row < 0:
            return ready
        delay = self.delay_ns[node]
        shape = (1, self.count, *delay.shape)
        if shared or ready.shape != shape:
            ready = np.array(np.broadcast_to(ready, shape))
        ready[0, row] += delay
        return ready

    def end(self, node: int, begin: FloatArray) -> FloatArray:
        """Add the recorded duration."""
        end: FloatArray = begin + self.recorded_ns[node]
        return end


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedVariants:
    """Recorded durations; each variant replaces those of some nodes, shape (steps, dp) each."""

    recorded_ns: FloatArray
    replaced_ns: Sequence[Mapping[int, FloatArray]]
    steps: slice

    def end(self, node: int, begin: FloatArray) -> FloatArray:
        """Add the replaced or the recorded duration."""
        recorded = self.recorded_ns[node]
        end: FloatArray = begin + recorded
        for row, replaced in enumerate(self.replaced_ns):
            if node in replaced:
                count = len(self.replaced_ns)
                if end.shape[1] < count:
                    end = np.array(np.broadcast_to(end, (1, count, *recorded.shape)))
                source = begin[0, row if begin.shape[1] > 1 else 0]
                np.add(source, replaced[node][self.steps], out=end[0, row])
        return end


@dataclass(frozen=True, slots=True, eq=False)
class EditedVariants:
    """Durations as a function of the node, each of a shape that broadcasts to (steps, dp)."""

    duration_ns: Callable[[int, slice], FloatArray]
    steps: slice

    def end(self, node: int, begin: FloatArray) -> FloatArray:
        """Add the node's duration."""
        end: FloatArray = begin + self.duration_ns(node, self.steps)
        return end


def across_partners(launch: FloatArray) -> FloatArray:
    """Return the later launch of each lane and its ideal partner, which are the first axis."""
    latest: FloatArray = launch.max(axis=0, keepdims=True)
    return latest


@dataclass(frozen=True, slots=True, eq=False)
class Simulator:
    """Replays variants of one layout.

    Results are step times in ns, the steps in the layout's order.
    """

    layout: Layout
    durations: Durations
    program: Program
    _every_type: NDArray[np.bool_] = field(init=False)
    # (op code, stage) of each node
    _kinds: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.layout.nodes
        object.__setattr__(self, "_every_type", np.ones(len(self.layout.op_names), dtype=bool))
        object.__setattr__(
            self, "_kinds", list(zip(nodes.op.tolist(), nodes.pp.tolist(), strict=True))
        )

    def keep(
        self, *, cells: NDArray[np.bool_] | None = None, types: Sequence[str] | None = None
    ) -> Keep:
        """Return what keeps the given cells and op types; everything where nothing is given."""
        if cells is None:
            cells = np.ones((self.layout.dp, self.layout.pp), dtype=bool)
        kept = self._every_type
        if types is not None:
            kept = np.zeros(len(kept), dtype=bool)
            kept[self.layout.codes(*types)] = True
        return Keep(cells, kept)

    def step_times(self, keeps: Sequence[Keep]) -> FloatArray:
        """Replay variants on all DP ranks.

        Returns
        -------
        float64 array, shape (variants, steps)
        """
        times = np.empty((len(keeps), len(self.layout.steps)))
        lanes = len(self.layout.steps) * self.layout.dp
        size = max(1, BATCH_ELEMENTS // lanes)
        # Until something is kept, a batch is one lane: what is kept late goes together.
        order = np.argsort([self._first_kept(keep) for keep in keeps], kind="stable")
        for first in range(0, len(keeps), size):
            chosen = order[first : first + size]
            rows = self._rows([keeps[i] for i in chosen])
            for steps in self._step_blocks(len(chosen)):
                end = replay(self.program, self._kept(rows, steps, partners=1), across_dp)
                times[chosen, steps] = end.max(axis=-1)[0]
        return times

    def ideal_step_time(self) -> float:
        """Return the step time with every operation ideal; one lane stands for all."""
        none = self.keep(cells=np.zeros((self.layout.dp, self.layout.pp), dtype=bool))
        variants = self._kept(self._rows([none]), slice(0, 1), partners=1)
        return float(replay(self.program, variants).max())

    def lone_lanes(self) -> tuple[FloatArray, FloatArray]:
        """Replay every worker, and every DP rank, as the only one that keeps its durations.

        With everything else ideal, the other DP ranks are equal at all times: one ideal partner,
        met at the collectives, stands for all of them. So each (step, DP rank) lane is replayed
        against a partner of its own, and all workers of a stage cost one such replay.

        Returns
        -------
        by_worker : float64 array, shape (steps, dp, pp)
        by_dp : float64 array, shape (steps, dp)
        """
        layout = self.layout
        kept = [self.keep(cells=_stage(layout, stage)) for stage in range(layout.pp)]
        kept.append(self.keep())
        partners = 2 if layout.dp > 1 else 1
        couple: Couple = across_partners if layout.dp > 1 else across_dp
        times = np.empty((len(kept), len(layout.steps), layout.dp))
        lanes = len(layout.steps) * layout.dp
        size = max(1, BATCH_ELEMENTS // (partners * lanes))
        for first in range(0, len(kept), size):
            batch = kept[first : first + size]
            rows = self._rows(batch)
            for steps in self._step_blocks(partners * len(batch)):
                end = replay(self.program, self._kept(rows, steps, partners), couple)
                times[first : first + size, steps] = end.max(axis=0)
        return np.moveaxis(times[:-1], 0, -1), times[-1]

    def delayed_step_times(
        self, types: Sequence[Sequence[str]], delays_ns: Callable[[slice], FloatArray]
    ) -> FloatArray:
        """Replay recorded durations with the launch delays of some op types at a time.

        Parameters
        ----------
        types : sequence of sequences of str
            The op types that are late in each variant.
        delays_ns : callable
            Returns the launch delays of some steps, shape (nodes, steps, dp).

        Returns
        -------
        float64 array, shape (variants, steps)
        """
        layout, recorded = self.layout, self.durations.recorded_ns
        late = [np.isin(layout.nodes.op, layout.codes(*names)) for names in types]
        first = [self.program.place[nodes].min(initial=len(layout.nodes)) for nodes in late]
        order = np.argsort(first, kind="stable")
        times = np.empty((len(types), len(layout.steps)))
        for steps in self._step_blocks(rows=1):
            delays = delays_ns(steps)
            size = max(1, BATCH_ELEMENTS // delays[0].size)
            for begin in range(0, len(order), size):
                chosen = order[begin : begin + size]
                rows = np.full(len(layout.nodes), -1, dtype=np.int64)
                for row, variant in enumerate(chosen):
                    rows[late[variant]] = row
                variants = DelayedVariants(recorded[:, steps], delays, rows.tolist(), len(chosen))
                times[chosen, steps] = replay(self.program, variants, across_dp).max(axis=-1)[0]
        return times

    def replaced_step_times(self, *replaced_ns: Mapping[int, FloatArray]) -> FloatArray:
        """Replay recorded durations with those of some nodes replaced, shape (steps, dp) each.

        Returns
        -------
        float64 array, shape (variants, steps)
        """
        recorded = self.durations.recorded_ns
        return self._blocked(
            lambda steps: ReplacedVariants(recorded[:, steps], replaced_ns, steps),
            len(replaced_ns),
        )

    def edited_step_times(self, duration_ns: Callable[[int, slice], FloatArray]) -> FloatArray:
        """Replay durations of the caller's.

        Parameters
        ----------
        duration_ns : callable
            Given a node and a slice of steps, returns durations that broadcast to (steps, dp).

        Returns
        -------
        float64 array, shape (steps,)
        """
        times: FloatArray = self._blocked(lambda steps: EditedVariants(duration_ns, steps), 1)[0]
        return times

    def _blocked(
        self,
        variants: Callable[[slice], ReplacedVariants | EditedVariants],
        rows: int,
    ) -> FloatArray:
        times = np.empty((rows, len(self.layout.steps)))
        for steps in self._step_blocks(rows):
            end = replay(self.program, variants(steps), across_dp)
            times[:, steps] = end.max(axis=-1)
        return times

    def _step_blocks(self, rows: int) -> list[slice]:
        """Cut the steps so that a block of all rows and DP ranks stays in the cache."""
        count = len(self.layout.steps)
        size = max(1, BATCH_ELEMENTS // (rows * self.layout.dp))
        return [slice(first, min(first + size, count)) for first in range(0, count, size)]

    def _first_kept(self, keep: Keep) -> int:
        """Return the place in the program of the first node that keeps its duration."""
        nodes = self.layout.nodes
        kept = keep.types[nodes.op] & np.asarray(keep.cells.any(axis=0))[nodes.pp]
        places = self.program.place[kept]
        return int(places.min(initial=len(nodes)))

    def _kept(self, rows: Rows, steps: slice, partners: int) -> KeptVariants:
        recorded = self.durations.recorded_ns[:, steps]
        return KeptVariants(recorded, self.durations.ideal_ns.tolist(), rows, partners)

    def _rows(self, keeps: Sequence[Keep]) -> Rows:
        """Return which variants keep which nodes; the same for all nodes of a type and stage."""
        kinds = self._kinds
        by_kind: dict[tuple[int, int], tuple[tuple[int, ...], tuple[Patch, ...]]] = {}
        for op, stage in dict.fromkeys(kinds):
            kept = [
                (row, keep.cells[:, stage])
                for row, keep in enumerate(keeps)
                if keep.types[op] and keep.cells[:, stage].any()
            ]
            by_kind[op, stage] = (
                tuple(row for row, cells in kept if cells.all()),
                tuple(_as_patch(row, cells) for row, cells in kept if not cells.all()),
            )
        found = [by_kind[kind] for kind in kinds]
        return Rows(len(keeps), [whole for whole, _ in found], [partial for _, partial in found])


def _as_patch(row: int, cells: NDArray[np.bool_]) -> Patch:
    keeps_rest = 2 * int(cells.sum()) > len(cells)
    return Patch(row, keeps_rest, np.flatnonzero(~cells if keeps_rest else cells))


def _stage(layout: Layout, stage: int) -> NDArray[np.bool_]:
    cells = np.zeros((layout.dp, layout.pp), dtype=bool)
    cells[:, stage] = True
    return cells

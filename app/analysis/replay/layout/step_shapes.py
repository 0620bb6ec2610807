"""Shape of a step: operations of each type and stage, and microbatches of each DP rank.

All DP ranks share a shape. Because recorders lose operations, a *lane* (one step of one DP rank)
may hold fewer operations than the shape. The true numbers of computations and transfers follow from
the number of microbatches and the route through the pipeline; those of other operations follow from
a comparison of steps and DP ranks.

If DP ranks run different numbers of microbatches, the shape has the largest number. A schedule with
fewer microbatches is the same schedule without its last microbatches. Their places stay empty
(`Padding`), or are filled so that ranks can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, IntArray, Layout, Nodes, Padding
from app.analysis.replay.layout.pipeline import COMPUTE, DIRECTIONS, Direction, Flow, transferred
from app.analysis.trace import model as ops


def filled(layout: Layout, recorded_ns: FloatArray) -> FloatArray:
    """Return durations filled up to the same number of microbatches on all DP ranks, ns.

    An empty place gets the rank's typical duration: for a computation the mean in the step, so that
    sums over microbatches stay comparable; for a transfer the median.

    Parameters
    ----------
    recorded_ns : float64 array, shape (nodes, steps, dp)
        Durations, ns.

    Returns
    -------
    float64 array, shape (nodes, steps, dp)
        The given array if all ranks run equally many microbatches.
    """
    if layout.padding is None:
        return recorded_ns
    empty = layout.padding.where()
    durations = recorded_ns.copy()
    nodes = layout.nodes
    key = np.stack([nodes.op, nodes.pp, nodes.mc])
    kinds, kind = np.unique(key, axis=1, return_inverse=True)
    for number in range(kinds.shape[1]):
        alike = np.flatnonzero(kind.ravel() == number)
        is_empty = empty[alike]
        if not is_empty.any():
            continue
        recorded = np.where(is_empty, np.nan, recorded_ns[alike])
        common = float(np.nanmedian(recorded))
        computes = layout.op_names[layout.nodes.op[alike[0]]] in COMPUTE
        if computes:
            count = np.maximum((~is_empty).sum(axis=0), 1)
            typical = np.where(is_empty, 0.0, recorded).sum(axis=0) / count
            typical[is_empty.all(axis=0)] = common
        else:
            lanes = np.moveaxis(recorded, -1, 0).reshape(layout.dp, -1)
            of_rank = [np.nanmedian(own) if (own == own).any() else common for own in lanes]  # noqa: PLR0124 - NaN
            typical = np.broadcast_to(np.array(of_rank), is_empty.shape[1:])
        durations[alike] = np.where(is_empty, typical, recorded_ns[alike])
    return durations


# Largest shares of missing operations of a step, and of a worker in a step. A step that exceeds
# either share is dropped.
MOST_MISSING: Final = 0.10
MOST_MISSING_OF_WORKER: Final = 0.25
# Steps with unusual numbers of operations form a shape of their own if at least this many steps
# have the same numbers. Otherwise the difference counts as missing operations.
SHARE_OF_SHAPE: Final = 0.15
STEPS_OF_SHAPE: Final = 2
# Smallest number of steps with the final batch size after a warm-up ramp.
STEPS_AFTER_WARM_UP: Final = 5

_CODE: Final = {name: code for code, name in enumerate(ops.REPLAYED_OP_TYPES)}
_COMPUTED: Final = (ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE)

Counts = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Census:
    """Recorded numbers of operations by step, DP rank, type and stage."""

    steps: NDArray[np.int64]  # (steps,): ascending
    counts: Counts  # (steps, dp, op types, pp): operations of each lane
    # Shape (steps,): number of distinct microbatches that computations name; 0 without names
    microbatches: NDArray[np.int64]
    flow: Flow


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Numbers of operations that the steps ran, including operations that the recorder lost."""

    expected: Counts  # (steps, op types, pp)
    # Shape (op types, pp): kinds of which a lane may have fewer operations although the recorder
    # lost nothing: garbage collections, which differ between ranks, and sends of which only the
    # receives are recorded
    free: NDArray[np.bool_]
    dropped: dict[int, str]  # index of each dropped step → reason


def infer_shapes(census: Census) -> Shapes:
    """Return the operations that each step ran, and the dropped steps with reasons."""
    counts = census.counts
    most = counts.max(axis=1)
    trains = (most[:, _CODE[ops.BACKWARD_COMPUTE]] > 0).any(axis=-1)
    dropped = dict.fromkeys(np.flatnonzero(~trains).tolist(), "evaluation: it has no backward")
    free = np.zeros(most.shape[1:], dtype=bool)
    free[_CODE[ops.GC]] = True
    expected = most.copy()
    if trains.any():
        training = np.flatnonzero(trains)
        microbatches = _microbatches(census, training)
        expected[training] = _expected(census, training, microbatches, free)
        dropped |= _warm_up(training, microbatches)
    dropped |= _too_incomplete(census, expected, free, dropped)
    return Shapes(expected, free, dropped)


def _microbatches(census: Census, training: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return the number of microbatches of each training step, shape (training steps,)."""
    chunks = census.flow.chunks(census.counts.shape[-1])
    counts = census.counts[training][:, :, [_CODE[name] for name in _COMPUTED]]
    counts = counts[..., chunks > 0]
    chunks = chunks[chunks > 0]
    if not len(chunks):
        return np.zeros(len(training), dtype=np.int64)
    largest = (-(-counts // chunks)).max(axis=(1, 2, 3)).astype(np.int64)
    named = census.microbatches[training]
    # More names than operations are plausible if operations are lost, but far more names mean that
    # stages name microbatches differently, so these names do not count.
    number = np.where((named > largest) & (named * 4 <= largest * 5 + 4), named, largest)
    ragged = (counts != number[:, None, None, None] * chunks).any(axis=(1, 2, 3))
    values, frequency = np.unique(number, return_counts=True)
    typical = int(values[frequency.argmax()])
    short = ragged & (named == 0) & (number < typical) & (number >= (1 - MOST_MISSING) * typical)
    return np.where(short, typical, number)


def _expected(
    census: Census,
    training: NDArray[np.intp],
    microbatches: NDArray[np.int64],
    free: NDArray[np.bool_],
) -> Counts:
    """Return the operations that training steps ran, shape (training steps, op types, pp).

    Kinds of sends or receives that no rank recorded are marked in `free`, in place.
    """
    counts = census.counts[training]
    most = counts.max(axis=1)
    pp = counts.shape[-1]
    expected: Counts = np.zeros_like(most)
    chunks = census.flow.chunks(pp)
    whole = microbatches[:, None] * chunks
    for name in _COMPUTED:
        code = _CODE[name]
        expected[:, code] = np.where(most[:, code].max(axis=0) > 0, whole, 0)
    weights = _CODE[ops.WGRAD_COMPUTE]
    pipelined = {_CODE[name] for name in _COMPUTED}
    for direction in DIRECTIONS:
        sends, receives = _CODE[direction.send], _CODE[direction.recv]
        pipelined |= {sends, receives}
        unseen = {code for code in (sends, receives) if not most[:, code].any()}
        for code in (sends, receives):
            if code in unseen and len(unseen) > 1:
                continue
            per_microbatch = _transfers(census.flow, direction, pp, sending=code == sends)
            free[code] = code in unseen
            for stage in range(pp):
                seen = most[:, code, stage]
                fitting = (m for m in per_microbatch[stage] if (microbatches * m >= seen).all())
                multiple = next(fitting, None) if seen.any() or code in unseen else 0
                expected[:, code, stage] = seen if multiple is None else microbatches * multiple
    for code in range(most.shape[1]):
        if code in pipelined:
            continue
        stages = np.flatnonzero(most[:, code].any(axis=0))
        sure = _agreed(counts[:, :, code, stages])
        for stage, sure_steps in zip(stages.tolist(), sure.T, strict=True):
            kind = counts[:, :, code, stage]
            settled = _settle(kind, sure_steps, always=code == _CODE[ops.GC])
            if code == weights:
                full = whole[:, stage]
                settled = np.where(settled >= (1 - MOST_MISSING) * full, full, settled)
            expected[:, code, stage] = settled
    return expected


def _transfers(
    flow: Flow, direction: Direction, pp: int, *, sending: bool
) -> list[tuple[int, ...]]:
    """Return the possible numbers of transfers per microbatch, ascending, by stage."""
    neighbor = flow.target if sending else flow.source
    per_stage = []
    for stage in range(pp):
        own = [place for place in flow.stages if place[0] == stage]
        options = transferred(stage, [neighbor(direction, place) for place in own])
        per_stage.append(tuple(sorted({len(option) for option in options})))
    return per_stage


def _agreed(counts: Counts) -> NDArray[np.bool_]:
    """Return a mask of where no operation of a type seems lost, shape (steps, stages).

    No operation seems lost if all DP ranks recorded equally many. With a single DP rank, stages are
    compared: a step that runs fewer operations does so on all stages, but the recorder loses an
    operation on a single stage.

    Parameters
    ----------
    counts : int32 array, shape (steps, dp, stages)
        Recorded numbers of operations of the type.
    """
    if counts.shape[1] > 1:
        return np.asarray((counts == counts[:, :1]).all(axis=1))
    less = (counts < counts.max(axis=0))[:, 0]
    together = less.all(axis=1) | ~less.any(axis=1)
    return np.broadcast_to(together[:, None], less.shape)


def _settle(counts: Counts, sure: NDArray[np.bool_], *, always: bool) -> Counts:
    """Return the number of operations of a kind that each step ran, shape (steps,).

    Parameters
    ----------
    counts : int32 array, shape (steps, dp)
        Recorded numbers of operations of the kind.
    sure : bool array, shape (steps,)
        Steps in which no operation of the type seems lost.
    always : bool
        Whether every step is given the largest number of any step.
    """
    most: Counts = counts.max(axis=1)
    if always:
        return np.broadcast_to(most.max(), most.shape)
    enough = max(STEPS_OF_SHAPE, SHARE_OF_SHAPE * len(most))
    values, frequency = np.unique(most[sure], return_counts=True)
    accepted = set(values[frequency >= enough].tolist())
    top = int(most.max())
    if int((counts == top).sum()) > 1 or sure[most == top].any():
        accepted.add(top)
    accepted_counts = np.array(sorted(accepted), dtype=np.int32)
    if not len(accepted_counts):
        return most
    above = np.searchsorted(accepted_counts, most)
    return np.where(
        above < len(accepted_counts),
        accepted_counts[np.minimum(above, len(accepted_counts) - 1)],
        accepted_counts[-1],
    )


def _warm_up(training: NDArray[np.intp], microbatches: NDArray[np.int64]) -> dict[int, str]:
    """Return the steps of a warm-up ramp, in which the batch size grows and then stays equal."""
    full = int(microbatches.max())
    ramps = bool((np.diff(microbatches) >= 0).all())
    if not ramps or int((microbatches == full).sum()) < STEPS_AFTER_WARM_UP:
        return {}
    return {
        int(training[i]): f"warm-up: {microbatches[i]} of {full} microbatches"
        for i in np.flatnonzero(microbatches < full).tolist()
    }


def _different_numbers(counts: Counts) -> str | None:
    """Return a reason to drop a step whose DP ranks run different numbers of microbatches.

    Return None if DP ranks run equal numbers, or if operations seem lost.

    Parameters
    ----------
    counts : int32 array, shape (dp, op types, pp)
        Recorded numbers of operations of the step.
    """
    forwards = counts[:, _CODE[ops.FORWARD_COMPUTE]]
    alike = (forwards == forwards[:, :1]).all() and (forwards > 0).all()
    each = forwards[:, 0]
    low, high = int(each.min()), int(each.max())
    if low == high or not alike or (counts[:, _CODE[ops.BACKWARD_COMPUTE]] != forwards).any():
        return None
    return (
        f"DP ranks run different numbers of microbatches, {low} to {high}, which is replayed "
        "where several steps do so and all other operations are as many on each"
    )


def _too_incomplete(
    census: Census, expected: Counts, free: NDArray[np.bool_], dropped: dict[int, str]
) -> dict[int, str]:
    """Return the steps with surplus operations or too many missing ones, and the reasons."""
    lacks = expected[:, None] - census.counts
    reasons: dict[int, str] = {}
    surplus = np.asarray((lacks < 0).any(axis=(1, 2, 3)))
    lost = np.where(free, 0, np.maximum(lacks, 0))
    expects = np.where(free, 0, expected)
    of_worker = lost.sum(axis=2)
    share = np.maximum(MOST_MISSING_OF_WORKER * expects.sum(axis=1), 1)
    step_share = MOST_MISSING * census.counts.shape[1] * expects.sum(axis=(1, 2))
    bare = (of_worker > share[:, None]).any(axis=(1, 2))
    bare |= of_worker.sum(axis=(1, 2)) > np.maximum(step_share, 1)
    for index in np.flatnonzero(surplus | bare).tolist():
        if index in dropped:
            continue
        if surplus[index]:
            dp, code, stage = (int(i) for i in np.argwhere(lacks[index] < 0)[0])
            count, typical = census.counts[index, dp, code, stage], expected[index, code, stage]
            name = ops.REPLAYED_OP_TYPES[code]
            reasons[index] = f"{count} instead of {typical} {name} on stage {stage} on DP rank {dp}"
        else:
            worst = np.unravel_index(of_worker[index].argmax(), of_worker[index].shape)
            total = census.counts.shape[1] * int(expects[index].sum())
            reasons[index] = _different_numbers(census.counts[index]) or (
                f"{of_worker[index].sum()} of {total} operations are missing, "
                f"{of_worker[index][worst]} of them on DP rank {worst[0]}, stage {worst[1]}"
            )
    return reasons


# Smallest number of steps in which DP ranks run different numbers of microbatches: a single such
# step may have been cut off by the end of the recording. A session of one step needs only one.
_FEWEST: Final = 2
# Smallest share of lanes in which the number of operations has to agree with the number of
# microbatches.
_AGREE: Final = 0.9
_FORWARD: Final = _CODE[ops.FORWARD_COMPUTE]
_BACKWARD: Final = _CODE[ops.BACKWARD_COMPUTE]
_WGRAD: Final = _CODE[ops.WGRAD_COMPUTE]
_TRANSFERS: Final = tuple(_CODE[name] for way in DIRECTIONS for name in (way.send, way.recv))
# Op codes of the operations that belong to a microbatch.
PIPELINED: Final = (_FORWARD, _BACKWARD, _WGRAD, *_TRANSFERS)


@dataclass(frozen=True, slots=True, eq=False)
class Uneven:
    """Different numbers of microbatches on the DP ranks of a step."""

    census: Census  # as if all had run as many microbatches as the one with most
    counts: IntArray  # (steps, dp): number of microbatches
    each: IntArray  # (op types, pp): number of operations of one microbatch
    chunks: IntArray  # (pp,): number of model chunks

    def own(self, shape: IntArray, steps: NDArray[np.intp]) -> IntArray:
        """Return the number of operations of each kind that each lane ran, shape (lanes, kinds)."""
        fewer = self.counts.max() - self.counts[steps].ravel()
        return np.asarray(np.maximum(shape - fewer[:, None] * self.each.ravel(), 0))

    def padding(
        self, nodes: Nodes, steps: NDArray[np.intp], missing: NDArray[np.bool_] | None
    ) -> Padding | None:
        """Return the padding of the given steps; None if no place is empty.

        Parameters
        ----------
        missing : bool array, shape (nodes, steps, dp), or None
            Places without a recorded operation; None if there are none.
        """
        if missing is None:
            return None
        most = int(self.counts.max())
        # Shape (nodes,): index of the microbatch of each node; -1 for nodes without a microbatch
        microbatch = np.full(len(nodes), -1, dtype=np.int64)
        for code in PIPELINED:
            for stage in range(int(nodes.pp.max(initial=-1)) + 1):
                mine = nodes.of(code, stage)
                if len(mine):
                    microbatch[mine] = numbered(nodes.mb[mine], nodes.mc[mine], most)
        recorded = np.where(missing, -1, microbatch[:, None, None]).max(axis=0)
        stages = len(self.chunks)
        grouped = self.chunks.max() > 1 and not (self.counts[steps] % stages).any()
        return Padding(
            microbatch,
            transfers=np.isin(nodes.op, _TRANSFERS),
            counts=np.maximum(self.counts[steps], recorded + 1),
            bubble=(stages - 1) / float(self.chunks.mean()),
            group=stages if grouped else 1,
        )


def find_uneven(census: Census) -> Uneven | None:
    """Return the number of microbatches of each DP rank in each step.

    Return None if all numbers are equal, or if the different numbers come from lost operations:
    ranks then also differ in other operations, or have more forwards than backwards.
    """
    counts = census.counts
    chunks = census.flow.chunks(counts.shape[-1])
    if counts.shape[1] == 1 or not len(chunks) or not chunks.all():
        return None
    forwards, backwards, weights = (counts[:, :, code] for code in (_FORWARD, _BACKWARD, _WGRAD))
    numbers = forwards[..., 0] // chunks[0]
    whole = (forwards == numbers[..., None] * chunks) & (backwards == forwards)
    whole &= (weights == forwards) | (weights == 0)
    whole_lane = whole.all(axis=-1) & (numbers > 0)
    differ = whole_lane.all(axis=1) & (numbers != numbers[:, :1]).any(axis=1)
    trains = np.asarray(backwards.any(axis=(1, 2)))
    if differ.sum() < min(_FEWEST, max(int(trains.sum()), 1)):
        return None
    each = _each(counts[differ], numbers[differ])
    if each is None:
        return None
    lossy = np.maximum(forwards, backwards)
    own = np.where(whole_lane, numbers, (-(-lossy // chunks)).max(axis=-1)).astype(np.int64)
    most = int(own[trains].max())
    # Evaluation steps keep their recorded numbers, since they are dropped later.
    own = np.where(trains[:, None], own, most)
    fewer = most - own
    named = np.where(trains & (census.microbatches > 0), most, census.microbatches)
    even = (counts + fewer[..., None, None] * each).astype(counts.dtype)
    return Uneven(replace(census, counts=even, microbatches=named), own, each, chunks)


def _each(counts: Counts, numbers: IntArray) -> IntArray | None:
    """Return the number of operations of each kind per microbatch, shape (op types, pp).

    Return None if this number, or the number of operations outside of microbatches, differs between
    DP ranks.

    Parameters
    ----------
    counts : int32 array, shape (steps, dp, op types, pp)
        Recorded numbers of operations.
    numbers : int array, shape (steps, dp)
        Numbers of microbatches.
    """
    per = counts / numbers[..., None, None]
    each = np.zeros(counts.shape[2:], dtype=np.int64)
    for code in range(counts.shape[2]):
        if code == _CODE[ops.GC]:
            continue
        if code in PIPELINED:
            each[code] = np.rint(np.median(per[:, :, code], axis=(0, 1)))
            agree = per[:, :, code] == each[code]
        else:
            agree = counts[:, :, code] == counts[:, :1, code]
        if agree.mean() < _AGREE:
            return None
    return each


def numbered(mb: NDArray[np.int32], mc: NDArray[np.int32], most: int) -> IntArray:
    """Return the microbatch index of each operation of a type on a stage, shape (operations,).

    If the operations name `most` distinct microbatches, the index is that of the recorded
    microbatch; otherwise it is the position in each chunk's order.
    """
    names, number = np.unique(mb, return_inverse=True)
    if len(names) == most and names[0] != ops.ABSENT:
        return np.asarray(number.ravel(), dtype=np.int64)
    numbers = np.empty(len(mb), dtype=np.int64)
    for chunk in np.unique(mc):
        mine = np.flatnonzero(mc == chunk)
        numbers[mine] = np.arange(len(mine)) * most // len(mine)
    return numbers

"""DP ranks that run different numbers of microbatches in a step, as dynamic batches make them do.

All of them have places for as many as the one that runs most. A schedule of fewer microbatches is
that of more without the last ones, so the places of those are left empty (`Padding`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import IntArray, Nodes, Padding
from app.analysis.replay.layout.pipeline import DIRECTIONS
from app.analysis.replay.layout.shapes import Census, Counts
from app.analysis.trace import model as ops

# At least this many steps differ, or the only one: in fewer a recording may have ended within one.
_FEWEST: Final = 2
# On as many lanes the other operations are as many as the microbatches say: some may be lost.
_AGREE: Final = 0.9
_CODE: Final = {name: code for code, name in enumerate(ops.REPLAYED_OP_TYPES)}
_FORWARD: Final = _CODE[ops.FORWARD_COMPUTE]
_BACKWARD: Final = _CODE[ops.BACKWARD_COMPUTE]
_WGRAD: Final = _CODE[ops.WGRAD_COMPUTE]
_TRANSFERS: Final = tuple(_CODE[name] for one in DIRECTIONS for name in (one.send, one.recv))
# Operations of microbatches.
PIPELINED: Final = (_FORWARD, _BACKWARD, _WGRAD, *_TRANSFERS)


@dataclass(frozen=True, slots=True, eq=False)
class Uneven:
    """What DP ranks run."""

    census: Census  # as if all had run as many microbatches as the one with most
    counts: IntArray  # (steps, dp): microbatches of each
    each: IntArray  # (op types, pp): operations of one microbatch
    chunks: IntArray  # (pp,): model chunks

    def own(self, shape: IntArray, steps: NDArray[np.intp]) -> IntArray:
        """Return how many operations of a shape's kinds lanes have run, shape (lanes, kinds)."""
        fewer = self.counts.max() - self.counts[steps].ravel()
        return np.asarray(np.maximum(shape - fewer[:, None] * self.each.ravel(), 0))

    def padding(
        self, nodes: Nodes, steps: NDArray[np.intp], missing: NDArray[np.bool_] | None
    ) -> Padding | None:
        """Return the empty places of some steps; None where there are none.

        Parameters
        ----------
        missing : bool array, shape (nodes, steps, dp), or None
            Places without a recorded operation; None where there are none.
        """
        if missing is None:
            return None
        microbatch = _microbatch_of(nodes, int(self.counts.max()))
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
    """Return what DP ranks run that run different numbers of microbatches.

    None where all run as many, or where a rank lacks other operations too, or not the backward of
    each forward: then they are lost.
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
    found = np.where(whole_lane, numbers, (-(-lossy // chunks)).max(axis=-1)).astype(np.int64)
    most = int(found[trains].max())
    # steps that evaluate are left out as they are
    found = np.where(trains[:, None], found, most)
    fewer = most - found
    named = np.where(trains & (census.microbatches > 0), most, census.microbatches)
    even = (counts + fewer[..., None, None] * each).astype(counts.dtype)
    return Uneven(replace(census, counts=even, microbatches=named), found, each, chunks)


def _each(counts: Counts, numbers: IntArray) -> IntArray | None:
    """Return how many operations a microbatch has, shape (op types, pp).

    None where these are not as many on all DP ranks, or those that belong to none are not.

    Parameters
    ----------
    counts : int32 array, shape (steps, dp, op types, pp)
    numbers : int array, shape (steps, dp)
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


def _microbatch_of(nodes: Nodes, most: int) -> IntArray:
    """Return which microbatch of a step each node is of, shape (nodes,); -1 where it is of none."""
    numbers = np.full(len(nodes), -1, dtype=np.int64)
    for code in PIPELINED:
        for stage in range(int(nodes.pp.max(initial=-1)) + 1):
            mine = nodes.of(code, stage)
            if len(mine):
                numbers[mine] = numbered(nodes.mb[mine], nodes.mc[mine], most)
    return numbers


def numbered(mb: NDArray[np.int32], mc: NDArray[np.int32], most: int) -> IntArray:
    """Return which microbatch each of a stage's operations of one type is of, in their order.

    By their names, as long as these are of `most` microbatches; else in the order of each chunk.
    """
    names, number = np.unique(mb, return_inverse=True)
    if len(names) == most and names[0] != ops.ABSENT:
        return np.asarray(number.ravel(), dtype=np.int64)
    numbers = np.empty(len(mb), dtype=np.int64)
    for chunk in np.unique(mc):
        mine = np.flatnonzero(mc == chunk)
        numbers[mine] = np.arange(len(mine)) * most // len(mine)
    return numbers

"""What single microbatches show: forward against backward, a worker against its peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.medians import peers_median
from app.analysis.replay.session import Replayed, ShapeGroup, filled_ns
from app.analysis.trace import model as ops

NS: Final = 1e-9
MIN_POINTS: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBackward:
    """Forward and backward times of the same microbatches, shape (points,), seconds.

    `pearson` is None where one of them does not vary or there are under three points.
    """

    stage: int
    forward_s: FloatArray
    backward_s: FloatArray
    pearson: float | None


def forward_backward(replayed: Replayed) -> ForwardBackward:
    """Correlate forward and backward time over microbatches (paper, section 5.3).

    On stage 1, away from embedding and loss; on stage 0 when there is no other, without its first
    model chunk where there are several. At two stages, stage 1 also computes the loss.
    """
    stage = min(1, replayed.layout.pp - 1)
    times = [_microbatch_times(group, stage) for group in replayed.groups]
    forward = np.concatenate([pair[0] for pair in times])
    backward = np.concatenate([pair[1] for pair in times])
    varies = len(forward) >= MIN_POINTS and forward.std() > 0 and backward.std() > 0
    return ForwardBackward(
        stage, forward, backward, float(np.corrcoef(forward, backward)[0, 1]) if varies else None
    )


def _microbatch_times(group: ShapeGroup, stage: int) -> tuple[FloatArray, FloatArray]:
    """Return forward and backward seconds of each microbatch on a stage."""
    layout, nodes = group.layout, group.layout.nodes
    forward_code, backward_code = layout.codes(ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE)
    on_stage = nodes.pp == stage
    chunks = nodes.mc[on_stage & (nodes.op == forward_code)]
    if stage == 0 and len(np.unique(chunks)) > 1:
        on_stage &= nodes.mc != chunks.min()
    pairs: list[tuple[int, int]] = []
    found = {}
    for code in (forward_code, backward_code):
        for position, node in enumerate(np.flatnonzero(on_stage & (nodes.op == code)).tolist()):
            mb = int(nodes.mb[node])
            key = (int(nodes.mc[node]), mb if mb != ops.ABSENT else position)
            if code == forward_code:
                found[key] = node
            elif key in found:
                pairs.append((found[key], node))
    recorded = group.durations.recorded_ns
    forward, backward = recorded[[f for f, _ in pairs]], recorded[[b for _, b in pairs]]
    if layout.padding is not None:
        ran = ~layout.padding.where()[[f for f, _ in pairs]]
        forward, backward = forward[ran], backward[ran]
    return forward.ravel() * NS, backward.ravel() * NS


def compute_ratios(replayed: Replayed) -> tuple[FloatArray, FloatArray]:
    """Return each worker's mean forward and backward time over its peers' median.

    Peers are the other DP ranks of the same stage, shape (dp, pp); NaN where there are none.
    """
    dp, pp = replayed.layout.dp, replayed.layout.pp
    ratios = []
    for code in replayed.layout.codes(ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE):
        ratio = np.full((pp, dp), np.nan)
        mean = np.array([_mean_times(replayed, code, stage) for stage in range(pp)])
        peers = peers_median(mean)
        np.divide(mean, peers, out=ratio, where=(peers > 0) & (dp > 1))
        ratios.append(ratio.T)
    return ratios[0], ratios[1]


def _mean_times(replayed: Replayed, code: int, stage: int) -> FloatArray:
    """Return the mean duration of an op type on each DP rank of a stage, shape (dp,), ns."""
    total, count = np.zeros(replayed.layout.dp), 0
    for group in replayed.groups:
        chosen = group.layout.nodes.of(code, stage)
        if len(chosen):
            # neighbors: nodes are sorted by type and stage
            own = filled_ns(group)[chosen[0] : chosen[-1] + 1]
            total += own.sum(axis=(0, 1))
            count += len(chosen) * len(group.layout.steps)
    return total / max(count, 1)

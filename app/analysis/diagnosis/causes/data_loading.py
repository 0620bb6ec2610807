"""Steps that wait for their batch: their first operations are launched late."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.figures import LateLaunches
from app.analysis.diagnosis.finding import DATA_LOADING, Change, Evidence, Finding
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.places import FigureView, StepView, Where
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.trace.model import FORWARD_COMPUTE, FORWARD_RECV

# A step that waits for less of its time has its batch.
_LEAST_SHARE: Final = 0.01


def first_delays(observation: Observation) -> dict[int, FloatArray]:
    """Return how late the operations of each stage that come first are launched, by node.

    That is the first forward on stage 0, and the first receive of a forward elsewhere, or also
    there where the recorder writes one that has no peer.
    """
    nodes, layout = observation.layout.nodes, observation.layout
    found = {}
    for stage in range(layout.pp):
        for name in (FORWARD_RECV, FORWARD_COMPUTE):
            mine = np.flatnonzero((nodes.op == layout.codes(name)[0]) & (nodes.pp == stage))
            if len(mine) and (stage == 0 or name == FORWARD_RECV):
                first = int(mine[np.argmin(nodes.order[mine])])
                found[first] = observation.delay_ns(first)
    return found


def find_data_loading(
    observation: Observation, delays: dict[int, FloatArray], step_ns: float
) -> Finding | None:
    """Return the wait for batches; without it first operations are launched when they may be."""
    latest = np.max(list(delays.values()), axis=0)
    if latest.mean() < _LEAST_SHARE * step_ns:
        return None
    by_step = latest.max(axis=1)
    worst = int(np.argmax(by_step))
    evidence = [
        Evidence(
            f"The first operations of a step are launched {latest.mean() / 1e6:.0f} ms late on "
            f"average, {by_step[worst] / 1e6:.0f} ms in the worst step",
            StepView(step=int(observation.layout.steps[worst])),
        )
    ]
    by_rank = latest.mean(axis=0)
    slowest = int(np.argmax(by_rank))
    where = Where()
    figure = LateLaunches(by_step_s=tuple((by_step / 1e9).tolist()))
    if observation.layout.dp > 1 and by_rank[slowest] > 2 * np.median(by_rank):
        where = Where(dp=slowest)
        figure = replace(figure, by_dp_s=tuple((by_rank / 1e9).tolist()))
        evidence.append(
            Evidence(
                f"DP rank {slowest} waits longest: {by_rank[slowest] / 1e6:.0f} ms, the middle one "
                f"{np.median(by_rank) / 1e6:.0f} ms",
                FigureView(part="ranks"),
            )
        )
    on_time = {node: np.ones(delay.shape, bool) for node, delay in delays.items()}
    return Finding(DATA_LOADING, Change(on_time=on_time), tuple(evidence), where, figure)

"""Steps that wait for their batch: their first operations are launched late."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy
from app.analysis.diagnosis.figures import LateLaunches
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.places import FigureView, Hosts, JobFacts, StepView, Where
from app.analysis.diagnosis.signs import Signs
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.trace.model import FORWARD_COMPUTE, FORWARD_RECV, PARAMS_ALL_GATHER

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


def _find(signs: Signs) -> Finding | None:
    """Return the wait for batches; without it first operations are launched when they may be."""
    observation = signs.observation
    delays = first_delays(observation)
    latest = np.max(list(delays.values()), axis=0)
    if latest.mean() < _LEAST_SHARE * signs.step_ns:
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
    return Finding(Change(on_time=on_time), tuple(evidence), where, figure, late_ns=delays)


def _cannot_judge(signs: Signs) -> str | None:
    if PARAMS_ALL_GATHER not in signs.observation.op_types:
        return (
            "nothing is recorded before a step's first forward, so waiting for its batch cannot be "
            "told from the time between steps"
        )
    return None


def _because(cause: Cause, job: JobFacts) -> str:
    del cause, job
    return "steps wait for their data"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    del hosts
    dp = cause.where.dp
    return Remedy(
        "load_ahead",
        "Load batches ahead" if dp is None else f"Load the batches of DP rank {dp} ahead",
        "Replayed with the first operations of each step launched when they may be: its batch is "
        "there before it begins.",
    )


DATA_LOADING: Final = CauseKind(
    name="data_loading",
    title="Data loading",
    word="loading",
    sign="The first operations of a step are launched late: the first forward of stage 0, and the "
    "first receive of a forward elsewhere.",
    cannot_judge=_cannot_judge,
    because=_because,
    find=_find,
    remedy=_remedy,
)

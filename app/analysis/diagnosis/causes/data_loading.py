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
from app.analysis.replay.means import mean, means
from app.analysis.replay.session import begins_of
from app.analysis.trace.model import FORWARD_COMPUTE, FORWARD_RECV, PARAMS_ALL_GATHER

# A step that waits for less of its time has its batch.
_LEAST_SHARE: Final = 0.01
# A stage waits when it does so for this share of what the latest one does.
_WAITING: Final = 0.5
_ALL_WAIT: Final = "steps wait for their data"


def first_delays(observation: Observation) -> dict[int, FloatArray]:
    """Return how late the operations of each stage that come first are launched, by node.

    That is what gathers its parameters, then the first forward on stage 0 and the first receive of
    a forward elsewhere, or also there where it is launched before that forward: a recorder may
    write one that has no peer. With virtual stages stage 0 has receives too, amid the step.
    """
    layout = observation.layout
    found = {}
    gathers, receives, forwards = (
        _firsts(observation, name) for name in (PARAMS_ALL_GATHER, FORWARD_RECV, FORWARD_COMPUTE)
    )
    for stage in range(layout.pp):
        gather, receive, forward = gathers.get(stage), receives.get(stage), forwards.get(stage)
        if gather is not None:
            found[gather] = _since_its_step(observation, gather)
        if receive is not None and (
            stage > 0 or forward is None or layout.launch[receive] < layout.launch[forward]
        ):
            found[receive] = observation.delay_ns(receive)
        if forward is not None and stage == 0:
            found[forward] = _since_gathered(observation, forward)
    return found


def _firsts(observation: Observation, name: str) -> dict[int, int]:
    """Return the first operation of a type of each stage that has one."""
    layout, nodes = observation.layout, observation.layout.nodes
    if name not in layout.op_names:
        return {}
    some = (nodes.op == layout.codes(name)[0]).nonzero()[0]
    latest_first = some[np.lexsort((layout.launch[some], nodes.pp[some]))][::-1]
    return dict(zip(nodes.pp[latest_first].tolist(), latest_first.tolist(), strict=True))


def _since_gathered(observation: Observation, forward: int) -> FloatArray:
    """Return how late a stage's first forward is, but for any gathering that ends before it.

    A framework that gathers the parameters of all chunks first computes none of them before that.
    """
    layout, nodes = observation.layout, observation.layout.nodes
    late = observation.delay_ns(forward)
    for gather in layout.of(PARAMS_ALL_GATHER, int(nodes.pp[forward])).tolist():
        since = layout.start_ns[forward] - layout.start_ns[gather] - layout.duration_ns[gather]
        late = np.where(since >= 0, np.minimum(late, since), late)
    return late


def _since_its_step(observation: Observation, gather: int) -> FloatArray:
    """Return how late a stage's first operation is, but for the end of the stage's step before.

    A stage that ends a step later than others begins the next one later, and waits for nothing.
    """
    layout = observation.layout
    late = observation.delay_ns(gather)
    since = layout.start_ns[gather] - begins_of(observation.group, int(layout.nodes.pp[gather]))
    late[1:] = np.clip(since[1:], 0.0, late[1:])
    return late


def _find(signs: Signs) -> Finding | None:
    """Return the wait for batches; without it first operations are launched when they may be."""
    observation, nodes = signs.observation, signs.observation.layout.nodes
    delays = _unless_paused(signs, observation.once(first_delays))
    by_stage: dict[int, FloatArray] = {}
    for node, delay in delays.items():
        stage = int(nodes.pp[node])
        by_stage[stage] = by_stage[stage] + delay if stage in by_stage else delay
    if not by_stage:
        # Of no stage is it known when a step begins.
        return None
    latest = np.max(list(by_stage.values()), axis=0)
    if mean(latest) < _LEAST_SHARE * signs.step_ns:
        return None
    waiting = tuple(
        stage for stage, delay in sorted(by_stage.items()) if mean(delay) >= _WAITING * mean(latest)
    )
    somewhere = Where(stages=waiting if len(waiting) < observation.layout.pp else ())
    by_step = latest.max(axis=1)
    worst = int(np.argmax(by_step))
    evidence = [
        Evidence(
            f"The first operations of a step are launched {mean(latest) / 1e6:.0f} ms late on "
            f"average, {by_step[worst] / 1e6:.0f} ms in the worst step",
            StepView(step=int(observation.layout.steps[worst])),
        )
    ]
    by_rank = means(latest, axis=0)
    slowest = int(np.argmax(by_rank))
    where = somewhere
    figure = LateLaunches(by_step_s=tuple((by_step / 1e9).tolist()))
    if observation.layout.dp > 1 and by_rank[slowest] > 2 * np.median(by_rank):
        where = replace(somewhere, dp=slowest)
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


def _unless_paused(signs: Signs, delays: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """Return delays without what pauses of an interpreter make, which strike any forward."""
    stalled = signs.stalled_launches
    if stalled is None:
        return delays
    paused = dict(zip(stalled.nodes.tolist(), stalled.late_ns, strict=True))
    return {
        node: np.where(paused[node] > 0, 0.0, delay) if node in paused else delay
        for node, delay in delays.items()
    }


def _cannot_judge(signs: Signs) -> str | None:
    if PARAMS_ALL_GATHER not in signs.observation.op_types:
        return (
            "nothing is recorded before a step's first forward, so waiting for its batch cannot be "
            "told from the time between steps"
        )
    return None


def _because(cause: Cause, job: JobFacts) -> str:
    del job
    stages = cause.where.stages
    return f"steps wait for data on stage {stages[0]}" if len(stages) == 1 else _ALL_WAIT


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
    sign="The first operations of a step are launched late: what gathers parameters, the first "
    "forward of stage 0, and the first receive of a forward elsewhere.",
    blames_machine=False,
    cannot_judge=_cannot_judge,
    because=_because,
    find=_find,
    remedy=_remedy,
)

"""False kernel dependency: computations launch right after an unrelated reduce-scatter ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, always
from app.analysis.diagnosis.finding import (
    Change,
    Evidence,
    Finding,
    HeldLaunches,
    Launches,
    Uncertainty,
)
from app.analysis.diagnosis.locations import StepView, Where
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import BoolArray, FloatArray
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, GRADS_REDUCE_SCATTER

_NAMED_STAGES: Final = 8


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether reduce-scatters hold computations up."""

    # A computation is held up when it is launched at most this long after a reduce-scatter ends (a
    # host needs some time to launch) …
    within_ns: float = 1.5e6
    within_share: float = 0.1  # …or within this share of a computation
    # …and at most this long before this end, a difference that clock noise may cause.
    before_ns: float = 0.3e6
    late_ns: float = 2e6  # …and this much later than all that it depends on
    late_share: float = 0.05  # …and later by this share of a computation
    min_share: float = 0.3  # it is held up in this share of the steps; by chance, in fewer
    # Half of the relative 95 % interval of the step time without the cause, in addition to late
    # launches; measured on synthetic jobs. If it were not held up, the computation might share its
    # device with transfers, which no trace shows. Without this term only 9 of 10 intervals contain
    # the true step time.
    unsure: float = 0.007


THRESHOLDS: Final = Thresholds()


def held_up(observation: Observation) -> dict[int, FloatArray]:
    """Return, by node, the launch delays that end with a reduce-scatter; 0 for other delays."""
    layout = observation.layout
    if GRADS_REDUCE_SCATTER not in layout.op_names:
        return {}
    held_ns = {}
    for stage in range(layout.pp):
        scatters = layout.of(GRADS_REDUCE_SCATTER, stage)
        computes = np.concatenate(
            [layout.of(name, stage) for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE)]
        )
        # Most jobs reduce gradients after all computing, which one step is enough to show.
        first_start = layout.start_ns[scatters, 0, 0].min(initial=np.inf)
        computes = computes[layout.start_ns[computes, 0, 0] > first_start]
        if not len(computes):
            continue
        typical = float(np.median(observation.recorded_ns[computes]))
        within = max(THRESHOLDS.within_ns, THRESHOLDS.within_share * typical)
        least = max(THRESHOLDS.late_ns, THRESHOLDS.late_share * typical)
        ends = layout.start_ns[scatters] + layout.duration_ns[scatters]
        for node in computes.tolist():
            start = layout.start_ns[node]
            delay = observation.delay_ns(node)
            after = start - ends
            near = ((after > -THRESHOLDS.before_ns) & (after < within)).any(axis=0) & (
                delay > least
            )
            if near.mean() >= THRESHOLDS.min_share:
                held_ns[node] = np.where(near, delay, 0.0)
    return held_ns


def _find(signs: Signs) -> Finding | None:
    """Return the held-up computations; without the cause they launch as soon as possible."""
    observation = signs.observation
    held = held_up(observation)
    if not held:
        return None
    nodes = observation.layout.nodes
    delays = np.array(list(held.values()))
    stages = sorted({int(nodes.pp[node]) for node in held})
    listed = ", ".join(map(str, stages[:_NAMED_STAGES])) + (
        "…" if len(stages) > _NAMED_STAGES else ""
    )
    worst = int(np.argmax(delays.sum(axis=(0, 2))))
    on_time: dict[int, BoolArray] = {node: delay > 0 for node, delay in held.items()}
    return Finding(
        change=Change(on_time=on_time),
        evidence=(
            Evidence(
                f"{len(held)} computations of a step are launched the moment a reduce-scatter that "
                f"they do not need ends, {delays[delays > 0].mean() / 1e6:.0f} ms after all that "
                f"they do need, on stage{'s' if len(stages) > 1 else ''} {listed}",
                StepView(step=int(observation.layout.steps[worst])),
            ),
        ),
        where=Where(stages=tuple(stages)),
        figure=HeldLaunches(by_step_s=tuple((delays.sum(axis=(0, 2)) / 1e9).tolist())),
        launches=Launches(held),
        uncertainty=Uncertainty(THRESHOLDS.unsure),
    )


KERNEL_DEPENDENCY: Final = CauseKind(
    name="false_kernel_dependency",
    title="False kernel dependency",
    word="kernel",
    sign="Computations are launched the moment a reduce-scatter ends that they do not need.",
    blames_machine=False,
    cannot_judge=lambda signs: (
        None
        if GRADS_REDUCE_SCATTER in signs.observation.op_types
        else "no reduce-scatters recorded"
    ),
    because=always("computations wait for reduce-scatters that they do not need"),
    find=_find,
    needs_own_devices=True,
    remedy=always(
        Remedy(
            "separate_kernels",
            "Keep reduce-scatters from holding up computations",
            "Replayed with computations launched when they may be. A larger "
            "CUDA_DEVICE_MAX_CONNECTIONS can keep the two in different hardware queues.",
        )
    ),
)

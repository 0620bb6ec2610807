"""A session's measured stage times as a planning problem: its own layers, its workers' true speed.

What a stage takes on a healthy worker is the median over its DP ranks; a worker's speed is that
over its own time. Workers whose speed is within `EVEN` of the others count as healthy; each slow
one is a device type of its own. One template serves all DP ranks, so at each position of the
pipeline the slowest of them counts, unless a single DP rank is planned for.

A stage of n layers gives n equal blocks. The first and the last stage also hold the embedding and
the head: what they take beyond their blocks, priced like the blocks between, is a layer of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.planning.spec.model import DeviceType, Layer, Spec
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, WGRAD_COMPUTE, Trace
from app.errors import InfeasiblePlanError

FloatArray = NDArray[np.float64]

MS_PER_NS: Final = 1e-6
# Noise of a healthy worker's mean time.
EVEN: Final = 0.05
# A layer takes at least a nanosecond.
_LEAST_MS: Final = 1e-6
HEALTHY: Final = "healthy"


@dataclass(frozen=True, slots=True, eq=False)
class SessionTimes:
    """Mean time of one microbatch on each worker, in ms, (dp, pp); microbatches of a step."""

    forward_ms: FloatArray
    backward_ms: FloatArray
    microbatches: int


def measure_session(trace: Trace) -> SessionTimes:
    """Return what the workers of a session took.

    Raises
    ------
    InfeasiblePlanError
        The session has virtual stages, or a worker without computations.
    """
    sizes = trace.meta.sizes
    if sizes.vpp > 1:
        raise InfeasiblePlanError(
            "templates with virtual stages are not planned", code="plan.virtual_stages"
        )
    worker = trace.dp.astype(np.int64) * sizes.pp + trace.pp
    shape = (sizes.dp, sizes.pp)

    def mean_ms(*names: str) -> FloatArray:
        mine = np.isin(trace.op, [c for c, name in enumerate(trace.op_names) if name in names])
        total = np.bincount(worker[mine], trace.duration_ns[mine] * MS_PER_NS, sizes.workers)
        first = np.isin(trace.op, [trace.op_names.index(names[0])])
        count = np.bincount(worker[first], minlength=sizes.workers)
        if not count.all():
            raise InfeasiblePlanError(
                f"a worker has no {names[0]} in this session", code="plan.worker_missing"
            )
        return (total / count).reshape(shape)

    forward = mean_ms(FORWARD_COMPUTE)
    backward = mean_ms(BACKWARD_COMPUTE, WGRAD_COMPUTE)
    one = (worker == worker[0]) & (trace.op == trace.op_names.index(BACKWARD_COMPUTE))
    _, by_step = np.unique(trace.step[one], return_counts=True)
    # steps of a warm-up may have fewer
    return SessionTimes(forward, backward, int(np.median(by_step)))


def spec_of_session(
    times: SessionTimes, layers: Sequence[int], *, dp_rank: int | None = None
) -> Spec:
    """Return the planning problem of a session.

    Parameters
    ----------
    layers : sequence of int
        Layers of each stage, embedding and head not counted.
    dp_rank : int, optional
        Plan for this DP rank alone.
    """
    forward = np.median(times.forward_ms, axis=0)
    backward = np.median(times.backward_ms, axis=0)
    return Spec(
        layers=_layers(forward, backward, layers),
        profiled_speed=1.0,
        devices=_devices(worker_speeds(times), dp_rank),
        microbatches=times.microbatches,
    )


def worker_speeds(times: SessionTimes) -> FloatArray:
    """Return each worker's speed relative to the median of its stage, (dp, pp)."""
    whole = times.forward_ms + times.backward_ms
    speeds: FloatArray = np.median(whole, axis=0) / whole
    return speeds


def _layers(forward: FloatArray, backward: FloatArray, counts: Sequence[int]) -> tuple[Layer, ...]:
    number = np.array(counts, dtype=np.float64)
    stages = np.stack([forward, backward])
    blocks = stages / number
    last = len(counts) - 1
    # one stage alone says nothing of what is in it
    ends = {0, last} if last else set()
    plain = np.median(blocks[:, 1:last], axis=1) if last > 1 else blocks.min(axis=1)
    for end in ends:
        blocks[:, end] = np.minimum(plain, blocks[:, end])
    extra = stages - blocks * number
    layers = [
        Layer(float(blocks[0, stage]), float(blocks[1, stage]))
        for stage, count in enumerate(counts)
        for _ in range(count)
    ]
    edge = {end: Layer(*map(float, extra[:, end])) for end in ends if extra[0, end] > _LEAST_MS}
    before, behind = ([edge[end]] if end in edge else [] for end in (0, last))
    return (*before, *layers, *behind)


def _devices(speeds: FloatArray, dp_rank: int | None) -> tuple[DeviceType, ...]:
    """Return the workers of a pipeline as device types; a tensor-parallel group is one device."""
    by_stage = speeds.min(axis=0) if dp_rank is None else speeds[dp_rank]
    slow = [int(stage) for stage in np.flatnonzero(by_stage < 1 - EVEN)]
    healthy = len(by_stage) - len(slow)
    devices = [DeviceType(HEALTHY, healthy, 1)] if healthy else []
    devices += [
        DeviceType(f"stage {stage}'s worker", 1, 1, speed=float(by_stage[stage])) for stage in slow
    ]
    return tuple(devices)

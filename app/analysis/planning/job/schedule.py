"""Executed iteration of a job's pipeline under 1F1B or Megatron-Core's interleaved 1F1B.

Transfers are part of the receiving stage's time, as with blocking sends and receives.
"""

from __future__ import annotations

import numpy as np

from app.analysis.compiled import compiled
from app.analysis.planning.job.space import JobPipeline, JobPlan, Space, arrange, padded
from app.analysis.planning.template import execute
from app.analysis.quantities import IntArray


def stage_passes(space: Space, pipeline: JobPipeline) -> tuple[IntArray, IntArray]:
    """Return each stage's forward and backward time for one microbatch, with transfers, ps."""
    extra = stage_extras(space, pipeline)
    stages = pipeline.template.stages
    forward = np.array(
        [stage.blocks * space.costs[stage.device].block_forward_ps for stage in stages],
        dtype=np.int64,
    )
    backward = np.array(
        [stage.blocks * space.costs[stage.device].block_backward_ps for stage in stages],
        dtype=np.int64,
    )
    ahead = extra // 3
    return forward + ahead, backward + extra - ahead


def stage_extras(space: Space, pipeline: JobPipeline) -> IntArray:
    """Return each stage's time for one microbatch without the time of its blocks, ps."""
    unit = pipeline.template.unit
    _, extra, _ = arrange(
        np.array(unit.nodes, dtype=np.int64),
        np.array(padded(unit.order, len(unit.nodes)), dtype=np.int64),
        space.slots // unit.replicas,
        space.arrays,
        0.0,
        space.sizes.interleave,
        space.microbatches,
    )
    return extra


def executed_ps(space: Space, pipeline: JobPipeline) -> int:
    """Return the executed time of an iteration including synchronization and optimizer, ps."""
    forward, backward = stage_passes(space, pipeline)
    if space.sizes.interleave > 1:
        chunks = space.sizes.interleave
        last = run_interleaved(forward // chunks, backward // chunks, chunks, pipeline.microbatches)
    else:
        sends = np.zeros(max(len(forward) - 1, 1), dtype=np.int64)
        _, end = execute(forward, backward, sends, sends, pipeline.microbatches)
        last = int(end.max())
    return int(last) + pipeline.template.tail_ps


def iteration_ps(plan: JobPlan) -> int:
    """Return the executed time of the slowest pipeline, ps."""
    distinct = {(item.template, item.microbatches): item for item in plan.pipelines}
    return max(executed_ps(plan.space, pipeline) for pipeline in distinct.values())


@compiled  # pragma: no cover - coverage does not see compiled code
def run_interleaved(  # noqa: C901 - one walk
    forward: IntArray, backward: IntArray, chunks: int, microbatches: int
) -> int:
    """Return the end of interleaved 1F1B, ps (Narayanan et al., arXiv:2104.04473, section 2.2).

    Parameters
    ----------
    forward, backward : int64 array, shape (stages,)
        Time of one chunk of a stage for one microbatch, ps.
    microbatches : int
        Number of microbatches, a multiple of the number of stages.
    """
    stages = forward.shape[0]
    total = microbatches * chunks
    round_ = stages * chunks
    ends = np.full((2, stages, chunks, microbatches), -1, dtype=np.int64)
    free = np.zeros(stages, dtype=np.int64)
    done = np.zeros((2, stages), dtype=np.int64)
    left = 2 * stages * total
    while left:
        for s in range(stages):
            warm_up = total
            if microbatches != stages:
                warm_up = min(2 * (stages - s - 1) + (chunks - 1) * stages, total)
            while done[1, s] < total:
                f, b = done[0, s], done[1, s]
                ahead = f < total and f - b <= warm_up
                k = f if ahead else b
                chunk = (k % round_) // stages
                m = k // round_ * stages + k % stages
                ready = np.int64(0)
                if ahead:
                    if s > 0:
                        ready = ends[0, s - 1, chunk, m]
                    elif chunk > 0:
                        ready = ends[0, stages - 1, chunk - 1, m]
                else:
                    chunk = chunks - 1 - chunk
                    if s < stages - 1:
                        ready = ends[1, s + 1, chunk, m]
                    elif chunk < chunks - 1:
                        ready = ends[1, 0, chunk + 1, m]
                    else:
                        ready = ends[0, s, chunk, m]
                if ready < 0:
                    break
                direction = 0 if ahead else 1
                free[s] = max(free[s], ready) + (forward[s] if ahead else backward[s])
                ends[direction, s, chunk, m] = free[s]
                done[direction, s] += 1
                left -= 1
    return int(free.max())

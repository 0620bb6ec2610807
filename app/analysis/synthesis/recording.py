"""What a profiler would have recorded of an execution: a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.synthesis.costs import PIPELINE_TRANSFERS
from app.analysis.synthesis.program import CODES
from app.analysis.trace.model import ABSENT, KNOWN_OP_TYPES, SessionMeta, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from app.analysis.synthesis.execution import Execution
    from app.analysis.synthesis.job import JobModel
    from app.analysis.synthesis.program import Program

# Synthetic clocks start on 2026-01-05 00:00 UTC: a pure function has no clock of its own.
EPOCH_NS: Final = 1_767_571_200 * 1_000_000_000
_CLUSTER_HOSTS: Final = 400


def record(
    job: JobModel, program: Program, execution: Execution, rng: np.random.Generator
) -> Trace:
    """Return the trace, rows ordered by (rank, step, operation type, order).

    As in the published traces, sends and receives carry neither microbatch nor model chunk, and
    collectives no microbatch.
    """
    ids = step_ids(job.steps, rng)
    # Launch overhead comes before the first launch, so this is a bit more than the step time.
    begin_ns = _step_begins_ns(ids, execution.end_ns.max(axis=(0, 2)))
    recorded = ~program.of_types(*job.unrecorded)
    pairs = program.of_types(*PIPELINE_TRANSFERS)
    chunk = np.where(pairs, ABSENT, program.chunk)
    microbatch = np.where(pairs, ABSENT, program.microbatch)
    dp = job.sizes.dp
    blocks = []
    for stage in range(job.sizes.pp):
        rows = np.flatnonzero(recorded & (program.stage == stage))
        # The program holds each type in the order of its stream, and a stable sort keeps that.
        rows = rows[np.argsort(program.op[rows], kind="stable")]
        shape = (dp, job.steps, len(rows))
        ranks = [job.traced_rank(lane, stage) for lane in range(dp)]
        start = execution.start_ns[rows] + begin_ns[None, :, None]
        duration = execution.end_ns[rows] - execution.start_ns[rows]
        columns = (
            np.array(ranks)[:, None, None],
            np.arange(dp)[:, None, None],
            np.array(stage),
            ids[None, :, None],
            program.op[rows],
            microbatch[rows],
            chunk[rows],
            _order_within_type(program.op[rows]),
            start.transpose(2, 1, 0),
            duration.transpose(2, 1, 0),
        )
        blocks.append([np.broadcast_to(column, shape).ravel() for column in columns])
    rank, lane, stages, step, op, mb, mc, order, start, duration = (
        np.concatenate(parts) for parts in zip(*blocks, strict=True)
    )
    return Trace(
        meta=_metadata(job, rng),
        op_names=KNOWN_OP_TYPES,
        rank=rank.astype(np.int32),
        dp=lane.astype(np.int32),
        pp=stages.astype(np.int32),
        step=step.astype(np.int64),
        op=op.astype(np.int16),
        mb=mb.astype(np.int32),
        mc=mc.astype(np.int32),
        order=order.astype(np.int32),
        start_ns=start.astype(np.int64),
        duration_ns=duration.astype(np.int64),
        step_relative=False,
    )


def step_ids(steps: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the sampled steps: near each other for a while, then a long gap."""
    gaps = rng.geometric(0.4, steps)
    gaps[rng.random(steps) < 1 / 8] += 200
    ids: NDArray[np.int64] = 10 + np.cumsum(gaps).astype(np.int64)
    return ids


def _step_begins_ns(ids: NDArray[np.int64], ends_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each sampled step begins; those between them take the mean time."""
    between = (np.diff(ids) - 1) * int(ends_ns.mean())
    begins = np.concatenate([[0], np.cumsum(ends_ns[:-1] + between)])
    begins_ns: NDArray[np.int64] = EPOCH_NS + begins.astype(np.int64)
    return begins_ns


def _order_within_type(ops: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return the position of each operation among its type; `ops` is sorted."""
    counts = np.bincount(ops, minlength=len(CODES))
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    order: NDArray[np.int64] = np.arange(len(ops)) - first[ops]
    return order


def _metadata(job: JobModel, rng: np.random.Generator) -> SessionMeta:
    world, size = job.sizes.world, job.gpus_per_host
    count = -(-world // size)
    numbers = np.sort(rng.choice(max(_CLUSTER_HOSTS, count), count, replace=False)) + 1
    return SessionMeta(
        sizes=job.sizes,
        trial_name=job.name,
        hosts={rank: f"node-{numbers[rank // size]:03d}" for rank in range(world)},
        gpus={rank: f"GPU {rank % size}" for rank in range(world)},
    )

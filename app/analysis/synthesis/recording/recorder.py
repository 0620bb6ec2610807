"""What a profiler would have recorded of an execution: a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.analysis.synthesis.costs import PIPELINE_TRANSFERS
from app.analysis.synthesis.program import CODES
from app.analysis.synthesis.randomness import stream
from app.analysis.synthesis.recording.experts import expert_rows
from app.analysis.synthesis.recording.host_operations import host_operation_rows
from app.analysis.synthesis.recording.microbatches import cut_anew
from app.analysis.synthesis.recording.tensor import tensor_rows
from app.analysis.trace.model import ABSENT, KNOWN_OP_TYPES, SessionMeta, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from app.analysis.synthesis.job import JobModel
    from app.analysis.synthesis.phase import Phase
    from app.analysis.synthesis.recording.tensor import Rows

# Synthetic clocks start on 2026-01-05 00:00 UTC: a pure function has no clock of its own.
EPOCH_NS: Final = 1_767_571_200 * 1_000_000_000
_CLUSTER_HOSTS: Final = 400
_TYPES: Final = {
    "rank": np.int32,
    "dp": np.int32,
    "pp": np.int32,
    "step": np.int64,
    "op": np.int16,
    "mb": np.int32,
    "mc": np.int32,
    "order": np.int32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
}


@dataclass(frozen=True, slots=True, eq=False)
class ProfilerRecording:
    """A trace, and what the profiler did to it."""

    trace: Trace
    lost: int  # operations that were not written
    # clock_offset_ns, clock_rate_ppm: how far the clock of each host is ahead at the session's
    # start, and how many microseconds it gains in a second; empty where all clocks are right
    clock_offset_ns: dict[str, float]
    clock_rate_ppm: dict[str, float]


def record(phases: Sequence[Phase], seed: int) -> ProfilerRecording:
    """Return the steps of all phases as a trace, rows ordered by (rank, step, type, order).

    As in the published traces, sends and receives carry neither microbatch nor model chunk, and
    collectives over DP ranks no microbatch. The first phase is training; it describes the job.
    """
    job = phases[0].job
    tensor = job.profiler.tensor_ranks or job.profiler.context_ranks
    experts = job.experts_over > 1
    blocks: list[Rows] = []
    for number, (phase, begin_ns) in enumerate(zip(phases, _begins_ns(phases), strict=True)):
        blocks += [_stage_rows(phase, begin_ns, stage) for stage in range(job.sizes.pp)]
        blocks += host_operation_rows(phase, begin_ns)
        if tensor:
            rng = stream(seed, "tensor recording", number)
            blocks += tensor_rows(phase, begin_ns, rng)
        if experts:
            rng = stream(seed, "expert recording", number)
            blocks += expert_rows(phase, begin_ns, rng)
    columns: dict[str, Any] = {
        name: np.concatenate([rows[name].ravel() for rows in blocks]).astype(dtype)
        for name, dtype in _TYPES.items()
    }
    cut = phases[0].work.microbatches is not None
    host_operations = any(phase.work.host_operations for phase in phases)
    if len(phases) > 1 or tensor or experts or cut or host_operations:
        keys = [columns[name] for name in ("order", "op", "step", "rank")]
        in_order = np.lexsort(keys)
        columns = {name: values[in_order] for name, values in columns.items()}
    # A job stays on its machines from session to session.
    meta = _metadata(phases[0], stream(0, "hosts", phases[0].job.name))
    offset, rate = _set_clocks(job, meta, columns, stream(seed, "clocks"))
    written = stream(seed, "losses").random(len(columns["op"])) >= job.profiler.lost_share
    if not written.all():
        columns = {name: values[written] for name, values in columns.items()}
    return ProfilerRecording(
        trace=Trace(meta=meta, op_names=KNOWN_OP_TYPES, step_relative=False, **columns),
        lost=int((~written).sum()),
        clock_offset_ns=offset,
        clock_rate_ppm=rate,
    )


def step_ids(
    steps: int, rng: np.random.Generator, *, consecutive: bool = False
) -> NDArray[np.int64]:
    """Return the sampled steps: near each other for a while, then a long gap."""
    if consecutive:
        return np.arange(10, 10 + steps)
    gaps = rng.geometric(0.4, steps)
    gaps[rng.random(steps) < 1 / 8] += 200
    ids: NDArray[np.int64] = 10 + np.cumsum(gaps).astype(np.int64)
    return ids


def _begins_ns(phases: Sequence[Phase]) -> list[NDArray[np.int64]]:
    """Return when each recorded step begins; steps between them take the mean training time."""
    ids = np.concatenate([phase.ids for phase in phases])
    # Launch overhead comes before the first launch, so this is a bit more than the step time.
    ends_ns = [phase.execution.turn_times_ns() + int(phase.job.costs.turn_ns) for phase in phases]
    in_order = np.argsort(ids)
    lasting = np.concatenate(ends_ns)[in_order]
    between = (np.diff(ids[in_order]) - 1) * int(ends_ns[0].mean())
    begins = np.empty(len(ids), np.int64)
    begins[in_order] = EPOCH_NS + np.concatenate([[0], np.cumsum(lasting[:-1] + between)])
    return np.split(begins, np.cumsum([len(phase.ids) for phase in phases])[:-1])


def _stage_rows(phase: Phase, begin_ns: NDArray[np.int64], stage: int) -> Rows:
    """Return what the traced rank of each cell of a stage records."""
    job, program, execution = phase.job, phase.work.program, phase.execution
    recorded = ~program.of_types(*job.unrecorded) & (program.stage == stage)
    rows = np.flatnonzero(recorded)
    # The program holds each type in the order of its stream, and a stable sort keeps that.
    rows = rows[np.argsort(program.op[rows], kind="stable")]
    pairs = program.of_types(*PIPELINE_TRANSFERS)[rows]
    dp = job.sizes.dp
    shape = (dp, len(phase.ids), len(rows))
    start = execution.start_ns[rows] + begin_ns[None, :, None]
    duration = execution.end_ns[rows] - execution.start_ns[rows]
    columns = {
        "rank": np.array([job.traced_rank(lane, stage) for lane in range(dp)])[:, None, None],
        "dp": np.arange(dp)[:, None, None],
        "pp": np.array(stage),
        "step": phase.ids[None, :, None],
        "op": program.op[rows],
        "mb": np.where(pairs, ABSENT, program.microbatch[rows]),
        "mc": np.where(pairs, ABSENT, program.chunk[rows]),
        "order": _order_within_type(program.op[rows]),
        "start_ns": start.transpose(2, 1, 0),
        "duration_ns": duration.transpose(2, 1, 0),
    }
    written = {name: np.broadcast_to(column, shape) for name, column in columns.items()}
    return written if phase.work.microbatches is None else cut_anew(phase, written)


def _order_within_type(ops: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return the position of each operation among its type; `ops` is sorted."""
    counts = np.bincount(ops, minlength=len(CODES))
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    order: NDArray[np.int64] = np.arange(len(ops)) - first[ops]
    return order


def _set_clocks(
    job: JobModel, meta: SessionMeta, columns: dict[str, NDArray[Any]], rng: np.random.Generator
) -> tuple[dict[str, float], dict[str, float]]:
    """Let every host read its own clock; change the starts and return what the clocks do."""
    profiler = job.profiler
    if not (profiler.clock_skew_ns or profiler.clock_drift_ppm):
        return {}, {}
    hosts = [meta.hosts[rank] for rank in range(0, job.sizes.world, job.gpus_per_host)]
    offset_ns = rng.normal(0.0, profiler.clock_skew_ns, len(hosts))
    rate_ppm = rng.normal(0.0, profiler.clock_drift_ppm, len(hosts))
    host = columns["rank"] // job.gpus_per_host
    elapsed = columns["start_ns"] - EPOCH_NS
    ahead = offset_ns[host] + rate_ppm[host] * 1e-6 * elapsed
    columns["start_ns"] = columns["start_ns"] + np.rint(ahead).astype(np.int64)
    return (
        dict(zip(hosts, offset_ns.tolist(), strict=True)),
        dict(zip(hosts, rate_ppm.tolist(), strict=True)),
    )


def _metadata(phase: Phase, rng: np.random.Generator) -> SessionMeta:
    job = phase.job
    world, size = job.sizes.world, job.gpus_per_host
    count = -(-world // size)
    numbers = np.sort(rng.choice(max(_CLUSTER_HOSTS, count), count, replace=False)) + 1
    lengths = phase.work.lengths
    extra: dict[str, Any] = {"layers": list(job.layers)} if job.layers else {}
    if job.experts_over > 1:
        extra["ep"] = job.experts_over
    if job.profiler.sequence_lengths and lengths is not None:
        extra["sequence_lengths"] = {
            str(step): [
                [[s for s in sequences if s] for sequences in lane]
                for lane in lengths[:, index].transpose(1, 0, 2).tolist()
            ]
            for index, step in enumerate(phase.ids.tolist())
        }
    return SessionMeta(
        sizes=job.sizes,
        trial_name=job.name,
        hosts={rank: f"node-{numbers[rank // size]:03d}" for rank in range(world)},
        gpus={rank: f"GPU {rank % size}" for rank in range(world)},
        extra=extra,
    )

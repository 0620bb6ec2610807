"""Trace of an executed synthetic job as a profiler would record it.

Includes all-gathers and reduce-scatters of tensor- and context-parallel ranks, all-to-alls of
experts, host operations between steps, and uneven numbers of microbatches. All ranks of a group end
a collective together; a rank that waits starts earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.quantities import IntArray
from app.analysis.synthesis.costs import PIPELINE_TRANSFERS
from app.analysis.synthesis.execution import Execution, StepWork
from app.analysis.synthesis.job import JobModel, stream
from app.analysis.synthesis.program import CODES
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    FORWARD_COMPUTE,
    KNOWN_OP_TYPES,
    SessionMeta,
    Trace,
)


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """Executed steps of one kind (training, warm-up or evaluation), with their step numbers."""

    job: JobModel
    work: StepWork
    execution: Execution
    ids: IntArray


# Every computation of a job with experts contains two all-to-alls, one before and one after the
# experts. All ranks of a group end each all-to-all together; a rank whose experts finish early
# begins the second one earlier.
_NAME: Final = "ep-all-to-all"
_COUNT: Final = 2
# Duration of an all-to-all's transfer as a share of the computation.
_TRANSFER: Final = 0.03
# Mean time by which the recorded start of an all-to-all is too early.
_JITTER_NS: Final = 3e3


def expert_rows(phase: Phase, begin_ns: IntArray, rng: np.random.Generator) -> Iterator[Rows]:
    """Yield the rows of the all-to-alls of each stage; `begin_ns` holds the starts of steps."""
    job, work, execution = phase.job, phase.work, phase.execution
    program, dp, experts = work.program, job.sizes.dp, work.experts
    if experts is None:
        return
    computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
    for stage in range(job.sizes.pp):
        # The program lists a stage's computations in the order in which they run.
        nodes = np.flatnonzero(computes & (program.stage == stage))
        start, end = execution.start_ns[nodes], execution.end_ns[nodes]
        takes = end - start
        for position, ends in enumerate((end - experts.takes_ns[nodes], end)):
            early = _TRANSFER * takes + rng.exponential(_JITTER_NS, start.shape)
            early = early + experts.ahead_ns[position, nodes]
            finish = np.rint(ends)
            begin = np.maximum(np.rint(finish - early), start)
            columns = {
                "rank": np.array([job.traced_rank(lane, stage) for lane in range(dp)]),
                "dp": np.arange(dp),
                "pp": np.array(stage),
                "step": phase.ids[:, None],
                "op": np.array(CODES[_NAME]),
                "mb": program.microbatch[nodes][:, None, None],
                "mc": program.chunk[nodes][:, None, None],
                "order": (_COUNT * np.arange(len(nodes)) + position)[:, None, None],
                "start_ns": begin.astype(np.int64) + begin_ns[:, None],
                "duration_ns": (finish - begin).astype(np.int64),
            }
            yield {key: np.broadcast_to(column, start.shape) for key, column in columns.items()}


def host_operation_rows(phase: Phase, begin_ns: IntArray) -> Iterator[Rows]:
    """Yield the rows of operations that ranks record between steps, such as checkpoints."""
    job, ids = phase.job, phase.ids
    before = np.concatenate((ids[:1] - 1, ids[:-1]))
    for operation in phase.work.host_operations:
        first = (phase.work.program.stage == operation.stage) & np.array(
            [not before for before in phase.work.program.after]
        )
        launched = phase.execution.start_ns[first].min(axis=0)
        step, dp = np.nonzero(operation.takes_ns)
        takes = np.rint(operation.takes_ns[step, dp]).astype(np.int64)
        ranks = np.array([job.traced_rank(lane, operation.stage) for lane in range(job.sizes.dp)])
        yield {
            "rank": ranks[dp],
            "dp": dp,
            "pp": np.full(len(dp), operation.stage),
            "step": ids[step] if operation.opens else before[step],
            "op": np.full(len(dp), CODES[operation.op]),
            "mb": np.full(len(dp), ABSENT),
            "mc": np.full(len(dp), ABSENT),
            "order": np.zeros(len(dp), np.int64),
            "start_ns": launched[step, dp] - takes + begin_ns[step],
            "duration_ns": takes,
        }


def cut_anew(phase: Phase, rows: Rows) -> Rows:
    """Return rows in which each step's computing is divided by the rank's own microbatches.

    Parameters
    ----------
    rows : mapping of str to arrays, shape (dp, steps, rows)
        Rows of the only stage.
    """
    counts = phase.work.microbatches
    assert counts is not None  # noqa: S101 - who calls has seen that
    op = rows["op"][0, 0]
    forward, backward = (op == CODES[name] for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE))
    computing = forward | backward
    start, duration = rows["start_ns"], rows["duration_ns"]
    begin = start[..., computing].min(axis=-1)
    whole = (start + duration)[..., computing].max(axis=-1) - begin
    forwards = duration[..., forward].sum(axis=-1)
    share = forwards / (forwards + duration[..., backward].sum(axis=-1))
    many = counts.T.ravel()
    lane = np.repeat(np.arange(len(many)), many)
    number = np.arange(len(lane)) - np.repeat(np.cumsum(many) - many, many)
    each = (whole.ravel() / many)[lane]
    ends = begin.ravel()[lane] + np.rint((number + 1) * each).astype(np.int64)
    starts = begin.ravel()[lane] + np.rint(number * each).astype(np.int64)
    turns = starts + np.rint(share.ravel()[lane] * each).astype(np.int64)
    added: dict[str, list[NDArray[Any]]] = {name: [] for name in rows}
    for name, first, last in ((FORWARD_COMPUTE, starts, turns), (BACKWARD_COMPUTE, turns, ends)):
        own: dict[str, NDArray[Any] | int] = {
            "op": CODES[name],
            "mb": number,
            "mc": 0,
            "order": number,
            "start_ns": first,
            "duration_ns": last - first,
        }
        for column, values in rows.items():
            of_lane = values[..., 0].ravel()[lane]
            added[column].append(np.broadcast_to(own.get(column, of_lane), lane.shape))
    return {
        name: np.concatenate([values[..., ~computing].ravel(), *added[name]])
        for name, values in rows.items()
    }


# Collectives of tensor- or context-parallel ranks.
#
# Every computation contains an all-gather and a reduce-scatter over these ranks of the worker. Each
# rank computes its own part up to the collective and waits for the last rank; all ranks end the
# collective together.


Rows = dict[str, "NDArray[Any]"]

TENSOR: Final = ("tp-all-gather", "tp-reduce-scatter")
CONTEXT: Final = ("cp-all-gather", "cp-reduce-scatter")
# Mean time by which a rank arrives at a collective before the last rank, as a share of its
# computing.
_EARLY: Final = 0.004
# Mean time by which the recorded end of a collective is before the end of this part of the
# computation.
_END_JITTER_NS: Final = 3e3


def tensor_rows(phase: Phase, begin_ns: IntArray, rng: np.random.Generator) -> Iterator[Rows]:
    """Yield the rows of the collectives in each stage; `begin_ns` holds the starts of steps."""
    job, work, execution = phase.job, phase.work, phase.execution
    program = work.program
    computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
    context, dp = job.profiler.context_ranks, job.sizes.dp
    names, ranks = (CONTEXT, job.sizes.cp) if context else (TENSOR, job.sizes.tp)
    for stage in range(job.sizes.pp):
        # The program lists a stage's computations in the order in which they run.
        nodes = np.flatnonzero(computes & (program.stage == stage))
        start, end = execution.start_ns[nodes], execution.end_ns[nodes]
        late = work.late_ns[nodes] / len(names)
        part = (end - start) / len(names)
        transfer = job.costs.tensor_share * (part - late)
        is_late = np.arange(ranks) == work.late_rank[nodes][..., None]
        shape = (*start.shape, ranks)
        for position, name in enumerate(names):
            done = (start + (position + 1) * part)[..., None]
            early = rng.exponential(_EARLY, shape) * (part - late)[..., None]
            early += np.where(is_late, 0.0, late[..., None])
            begin = np.rint(done - transfer[..., None] - early)
            finish = np.rint(done - rng.exponential(_END_JITTER_NS, shape))
            # The last rank may arrive a moment after the recorded end, but no record may end before
            # it begins.
            finish = np.maximum(finish, begin)
            columns = {
                "rank": np.array(
                    [
                        [
                            job.traced_rank(lane, stage, **{"cp" if context else "tp": rank})
                            for rank in range(ranks)
                        ]
                        for lane in range(dp)
                    ]
                ),
                "dp": np.arange(dp)[:, None],
                "pp": np.array(stage),
                "step": phase.ids[:, None, None],
                "op": np.array(CODES[name]),
                "mb": program.microbatch[nodes][:, None, None, None],
                "mc": program.chunk[nodes][:, None, None, None],
                "order": np.arange(len(nodes))[:, None, None, None],
                "start_ns": begin.astype(np.int64) + begin_ns[:, None, None],
                "duration_ns": (finish - begin).astype(np.int64),
            }
            yield {key: np.broadcast_to(column, shape) for key, column in columns.items()}


# Start of the synthetic clocks, 2026-01-05 00:00 UTC: a constant, so that equal seeds give equal
# traces.
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
    """A recorded trace, and the errors that the recording has."""

    trace: Trace
    lost: int  # operations that were not written
    # clock_offset_ns, clock_rate_ppm: by how much the clock of each host is ahead at the start of
    # the session, and the microseconds it gains a second; empty if all clocks are right
    clock_offset_ns: dict[str, float]
    clock_rate_ppm: dict[str, float]


def record(phases: Sequence[Phase], seed: int) -> ProfilerRecording:
    """Return the trace of all steps, with rows sorted by rank, step, type and order.

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
    # A job uses the same hosts in all sessions, so that the seed of the hosts does not change.
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


def step_ids(steps: int, rng: np.random.Generator, *, consecutive: bool = False) -> IntArray:
    """Return random numbers of recorded steps: groups of near steps, with long gaps in between."""
    if consecutive:
        return np.arange(10, 10 + steps)
    gaps = rng.geometric(0.4, steps)
    gaps[rng.random(steps) < 1 / 8] += 200
    ids: IntArray = 10 + np.cumsum(gaps).astype(np.int64)
    return ids


def _begins_ns(phases: Sequence[Phase]) -> list[IntArray]:
    """Return the start of each recorded step; steps in between take the mean training time."""
    ids = np.concatenate([phase.ids for phase in phases])
    # This time includes the overhead before the first launch, and is a bit longer than the step
    # time.
    ends_ns = [
        phase.execution.turn_times_ns() + int(phase.job.costs.step_gap_ns) for phase in phases
    ]
    in_order = np.argsort(ids)
    lasting = np.concatenate(ends_ns)[in_order]
    between = (np.diff(ids[in_order]) - 1) * int(ends_ns[0].mean())
    begins = np.empty(len(ids), np.int64)
    begins[in_order] = EPOCH_NS + np.concatenate([[0], np.cumsum(lasting[:-1] + between)])
    return np.split(begins, np.cumsum([len(phase.ids) for phase in phases])[:-1])


def _stage_rows(phase: Phase, begin_ns: IntArray, stage: int) -> Rows:
    """Return the rows of the traced ranks of all workers of a stage."""
    job, program, execution = phase.job, phase.work.program, phase.execution
    recorded = ~program.of_types(*job.unrecorded) & (program.stage == stage)
    rows = np.flatnonzero(recorded)
    # The program lists the operations of each type in the order in which they run, and a stable
    # sort keeps this order.
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
        # Rows are sorted by type: the position among those of the same type.
        "order": np.arange(len(rows)) - np.searchsorted(program.op[rows], program.op[rows]),
        "start_ns": start.transpose(2, 1, 0),
        "duration_ns": duration.transpose(2, 1, 0),
    }
    written = {name: np.broadcast_to(column, shape) for name, column in columns.items()}
    return written if phase.work.microbatches is None else cut_anew(phase, written)


def _set_clocks(
    job: JobModel, meta: SessionMeta, columns: dict[str, NDArray[Any]], rng: np.random.Generator
) -> tuple[dict[str, float], dict[str, float]]:
    """Shift starts by the errors of the hosts' clocks; return offset and rate by host."""
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

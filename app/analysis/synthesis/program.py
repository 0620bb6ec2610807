"""The step of a synthetic job as a program: operations, dependencies and transfer groups."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.analysis.quantities import BoolArray
from app.analysis.synthesis.job import JobModel, Schedule
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    EMBEDDING_ALL_REDUCE,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GC,
    GRADS_REDUCE_SCATTER,
    KNOWN_OP_TYPES,
    LAYERNORM_ALL_REDUCE,
    OPTIMIZER,
    OPTIMIZER_CLIP,
    PARAMS_ALL_GATHER,
    SEPARATE_ALL_REDUCE,
)


@dataclass(frozen=True, slots=True)
class Computation:
    """The forward or backward of one microbatch through one model chunk."""

    forward: bool
    microbatch: int
    chunk: int


def stage_order(job: JobModel, stage: int) -> list[Computation]:
    """Return the computations of one step on a stage, in the order in which they are launched.

    GPipe does every forward, then every backward, both in microbatch order. 1F1B does one
    forward for each later stage, then alternates. The interleaved schedule is Megatron-LM's:
    microbatches go through the chunks in groups of PP.
    """
    pp, vpp = job.sizes.pp, job.sizes.vpp
    total = job.microbatches * vpp
    forwards = [_virtual(job, k, forward=True) for k in range(total)]
    backwards = [_virtual(job, k, forward=False) for k in range(total)]
    if job.schedule is Schedule.GPIPE:
        warm_up = total
    elif job.schedule is Schedule.ONE_F_ONE_B:
        warm_up = min(total, pp - 1 - stage)
    elif job.microbatches == pp:
        # As in Megatron-LM: with a single group of microbatches, all forwards run before all
        # backwards.
        warm_up = total
    else:
        warm_up = min(total, (pp - 1 - stage) * 2 + (vpp - 1) * pp)
    order = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - warm_up :]


def evaluation_order(job: JobModel) -> list[Computation]:
    """Return the computations of one evaluation step on a stage: only forwards."""
    return [_virtual(job, k, forward=True) for k in range(job.microbatches * job.sizes.vpp)]


def _virtual(job: JobModel, k: int, *, forward: bool) -> Computation:
    pp, vpp = job.sizes.pp, job.sizes.vpp
    if vpp == 1:
        return Computation(forward=forward, microbatch=k, chunk=0)
    group, within = divmod(k, pp * vpp)
    chunk, offset = divmod(within, pp)
    return Computation(
        forward=forward,
        microbatch=group * pp + offset,
        chunk=chunk if forward else vpp - 1 - chunk,
    )


# Semantics of a program. Every DP rank runs the same program. A worker (DP rank d, stage p) has six
# streams: computation, DP collectives, forward-send, forward-recv, backward-send, backward-recv.
# An operation is launched when all operations that it waits for (see below) have ended, plus its
# launch delay; without such operations, at the step's start, which is one instant for all workers.
#
# * every operation waits for the operation before it on its stream;
# * a computation: its receive, unless its input is computed on the same stage or is the batch; a
#   chunk's first forward: the chunk's last params-all-gather. Collectives of params come first on
#   their stream, chunk by chunk;
# * a send: its computation;
# * a receive: the computation of the same direction that comes right before its own on that stage
#   (the first receive of a direction waits for none). The first backward-recv of a stage also waits
#   for the second-to-last forward-compute before the stage's first backward, if there are two;
# * the end of the step is a chain on every stage: last computation → gc →
#   layernorm-grads-all-reduce → embedding-grads-all-reduce (first and last stage, PP > 1) →
#   separate-grads-all-reduce → grads-reduce-scatters, chunk by chunk →
#   optimizer-clip-main-grad → optimizer → params-all-gathers, chunk by chunk, of jobs that gather
#   parameters for the next step. An absent type is left out and takes no time;
# * if separate-grads-all-reduce is executed, gradients overlap: a chunk's first reduce-scatter
#   waits for the chunk's last backward, reduce-scatters run on the DP stream in the order of
#   those backwards, are not in the chain, and the chain's first operation after gc waits for the
#   last of them. In this case the chain's separate-grads-all-reduce also runs on the DP stream.
#
# Groups: a send with its receive; params, gradients and separate gradients of one stage over all DP
# ranks; embedding of first and last stage within a DP rank; optimizer-clip of all workers. A
# group's transfer begins when its last member has been launched; a member ends at that instant plus
# its own transfer duration. layernorm-grads-all-reduce is a group of the tensor-parallel ranks,
# which are inside a worker: it starts moving when launched, like a computation.
#
# If a job has edge transfers, the ends of the pipeline launch receives and sends like any other
# stage, each a group of its own: they take their time, but move no data.
#
# The i-th send of a stage and direction pairs with the i-th receive of its neighbor; with virtual
# stages the last stage's chunk c sends to the first stage's chunk c + 1. gc has no duration.


CODES = {name: code for code, name in enumerate(KNOWN_OP_TYPES)}
_DP_STREAM = "dp"


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """Operations of a step whose transfer starts together, on one DP rank or across all of them."""

    members: tuple[int, ...]
    across_dp: bool


@dataclass(frozen=True, slots=True, eq=False)
class JobProgram:
    """The operations of one step; row i of each column, and entry i of `after`, is operation i."""

    op: NDArray[np.int16]  # index into `KNOWN_OP_TYPES`
    # stage, microbatch, chunk: place of the operation; `ABSENT` if it has no microbatch or no chunk
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    chunk: NDArray[np.int32]
    after: tuple[tuple[int, ...], ...]  # the operations that each waits for
    groups: tuple[TransferGroup, ...]  # every operation is in exactly one
    first: tuple[int, ...]  # operation of each stage that waits for the step's batch

    def __len__(self) -> int:
        return len(self.op)

    def of_types(self, *names: str) -> BoolArray:
        """Return which operations have one of the named types, bool[operations]."""
        return np.isin(self.op, [CODES[name] for name in names])


def build_program(job: JobModel, *, evaluation: bool = False) -> JobProgram:
    """Return the program of one training or evaluation step of `job`."""
    builder = _Builder(job, evaluation=evaluation)
    for stage in range(job.sizes.pp):
        builder.add_stage(stage)
    return builder.finish()


@dataclass(slots=True)
class _Stage:
    """State of the builder while it adds the operations of a stage."""

    index: int
    streams: dict[str, int] = field(default_factory=dict)
    last_of_direction: dict[bool, int] = field(default_factory=dict)
    params: dict[int, int] = field(default_factory=dict)
    overlapped: int | None = None


class _Builder:
    def __init__(self, job: JobModel, *, evaluation: bool) -> None:
        self.job = job
        self.evaluation = evaluation
        self.rows: list[tuple[int, int, int, int]] = []
        self.after: list[tuple[int, ...]] = []
        self.first: list[int] = []
        self.grouped: dict[tuple[object, ...], list[int]] = defaultdict(list)

    def add(  # noqa: PLR0913 - one operation has this many properties
        self,
        op: str,
        stage: _Stage,
        after: tuple[int | None, ...],
        *,
        stream: str | None = None,
        place: tuple[int, int] = (ABSENT, ABSENT),
        group: tuple[object, ...] | None = None,
    ) -> int:
        index = len(self.rows)
        self.rows.append((CODES[op], stage.index, *place))
        previous = stage.streams.get(stream) if stream is not None else None
        self.after.append(tuple(sorted({a for a in (*after, previous) if a is not None})))
        if stream is not None:
            stage.streams[stream] = index
        self.grouped[group or (op, index)].append(index)
        return index

    def add_stage(self, index: int) -> None:
        stage = _Stage(index)
        job = self.job
        order = evaluation_order(job) if self.evaluation else stage_order(job, index)
        if PARAMS_ALL_GATHER in job.op_types and not job.gathers_at_end:
            self._gather(stage, None)
        forwards_first = next((i for i, c in enumerate(order) if not c.forward), len(order))
        remaining = dict.fromkeys(range(job.sizes.vpp), job.microbatches)
        gate: int | None = None
        for position, computation in enumerate(order):
            node = self._computation(stage, computation, gate)
            if position == forwards_first - 2:
                gate = node
            if computation.forward:
                continue
            remaining[computation.chunk] -= 1
            if self._overlapped and not remaining[computation.chunk]:
                stage.overlapped = self._collectives(
                    GRADS_REDUCE_SCATTER, stage, computation.chunk, (node,)
                )
        if not self.evaluation:
            tail = self._end_of_step(stage)
            if PARAMS_ALL_GATHER in job.op_types and job.gathers_at_end:
                self._gather(stage, tail)

    def _gather(self, stage: _Stage, after: int | None) -> None:
        """Add the gathering of the parameters of all chunks of a stage."""
        for chunk in range(self.job.sizes.vpp):
            stage.params[chunk] = self._collectives(PARAMS_ALL_GATHER, stage, chunk, (after,))

    @property
    def _overlapped(self) -> bool:
        return {SEPARATE_ALL_REDUCE, GRADS_REDUCE_SCATTER} <= self.job.op_types

    def _collectives(
        self, op: str, stage: _Stage, chunk: int, after: tuple[int | None, ...]
    ) -> int:
        """Add one collective for each bucket of a chunk; return the last operation."""
        node = ABSENT
        for bucket in range(self.job.buckets):
            node = self.add(
                op,
                stage,
                after if bucket == 0 else (),
                stream=_DP_STREAM,
                place=(ABSENT, chunk),
                group=("dp", op, stage.index, chunk, bucket),
            )
        return node

    def _computation(self, stage: _Stage, this: Computation, gate: int | None) -> int:
        job, forward = self.job, this.forward
        last_virtual = job.sizes.pp * job.sizes.vpp - 1
        virtual = this.chunk * job.sizes.pp + stage.index
        place = (this.microbatch, this.chunk)
        send_op, recv_op = (
            (FORWARD_SEND, FORWARD_RECV) if forward else (BACKWARD_SEND, BACKWARD_RECV)
        )
        has_source = virtual > 0 if forward else virtual < last_virtual
        has_target = virtual < last_virtual if forward else virtual > 0
        # A link is identified by the lower of its two virtual stages.
        incoming, outgoing = (virtual - 1, virtual) if forward else (virtual, virtual - 1)
        recv: int | None = None
        if has_source or job.edge_transfers:
            first_gate = gate if not forward and recv_op not in stage.streams else None
            recv = self.add(
                recv_op,
                stage,
                (stage.last_of_direction.get(forward), first_gate),
                stream=recv_op,
                place=place,
                group=("pair", forward, incoming, this.microbatch) if has_source else None,
            )
        params = stage.params.pop(this.chunk, None) if forward else None
        node = self.add(
            FORWARD_COMPUTE if forward else BACKWARD_COMPUTE,
            stage,
            (recv, params),
            stream="compute",
            place=place,
        )
        if len(self.first) == stage.index:
            self.first.append(node if recv is None else recv)
        stage.last_of_direction[forward] = node
        if has_target or job.edge_transfers:
            self.add(
                send_op,
                stage,
                (node,),
                stream=send_op,
                place=place,
                group=("pair", forward, outgoing, this.microbatch) if has_target else None,
            )
        return node

    def _end_of_step(self, stage: _Stage) -> int:
        """Add the chain of operations at the end of a step; return the last operation."""
        job, types = self.job, self.job.op_types
        tail = stage.streams["compute"]
        if GC in types:
            tail = self.add(GC, stage, (tail,))
        if LAYERNORM_ALL_REDUCE in types:
            tail = self.add(LAYERNORM_ALL_REDUCE, stage, self._ending(stage, tail))
        edge = stage.index in (0, job.sizes.pp - 1)
        if EMBEDDING_ALL_REDUCE in types and job.sizes.pp > 1 and edge:
            tail = self.add(
                EMBEDDING_ALL_REDUCE, stage, self._ending(stage, tail), group=("embedding",)
            )
        if SEPARATE_ALL_REDUCE in types:
            tail = self.add(
                SEPARATE_ALL_REDUCE,
                stage,
                self._ending(stage, tail),
                stream=_DP_STREAM,
                group=("dp", SEPARATE_ALL_REDUCE, stage.index),
            )
        if GRADS_REDUCE_SCATTER in types and not self._overlapped:
            for chunk in range(job.sizes.vpp):
                tail = self._collectives(GRADS_REDUCE_SCATTER, stage, chunk, (tail,))
        if OPTIMIZER_CLIP in types:
            tail = self.add(OPTIMIZER_CLIP, stage, self._ending(stage, tail), group=("dp", "clip"))
        if OPTIMIZER in types:
            tail = self.add(OPTIMIZER, stage, self._ending(stage, tail))
        return tail

    @staticmethod
    def _ending(stage: _Stage, tail: int) -> tuple[int | None, ...]:
        """Return the operations for which the next operation of the end-of-step chain waits."""
        overlapped, stage.overlapped = stage.overlapped, None
        return (tail, overlapped)

    def finish(self) -> JobProgram:
        columns = np.array(self.rows, np.int32).T
        groups = tuple(
            TransferGroup(members=tuple(members), across_dp=key[0] == "dp")
            for key, members in self.grouped.items()
        )
        return JobProgram(
            op=columns[0].astype(np.int16),
            stage=columns[1],
            microbatch=columns[2],
            chunk=columns[3],
            after=tuple(self.after),
            groups=groups,
            first=tuple(self.first),
        )

"""Trace of one profiling session, its metadata, and the names of operation types.

Decoders check every value before they build a `Trace`; the analysis trusts these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.rank_metadata import NOWHERE, Machine, Whereabouts, uuid_in

FORWARD_COMPUTE: Final = "forward-compute"
BACKWARD_COMPUTE: Final = "backward-compute"
WGRAD_COMPUTE: Final = "backward-wgrad-compute"
FORWARD_SEND: Final = "forward-send"
FORWARD_RECV: Final = "forward-recv"
BACKWARD_SEND: Final = "backward-send"
BACKWARD_RECV: Final = "backward-recv"
PARAMS_ALL_GATHER: Final = "params-all-gather"
GRADS_REDUCE_SCATTER: Final = "grads-reduce-scatter"
SEPARATE_ALL_REDUCE: Final = "separate-grads-all-reduce"
LAYERNORM_ALL_REDUCE: Final = "layernorm-grads-all-reduce"
EMBEDDING_ALL_REDUCE: Final = "embedding-grads-all-reduce"
OPTIMIZER_CLIP: Final = "optimizer-clip-main-grad"
OPTIMIZER: Final = "optimizer"
GC: Final = "gc"
DATA_LOADING: Final = "data-loading"
CHECKPOINT: Final = "checkpoint"
EVALUATION: Final = "evaluation"

# Types that the what-if engine replays. Other types are kept, counted and reported.
REPLAYED_OP_TYPES: Final[tuple[str, ...]] = (
    FORWARD_COMPUTE,
    BACKWARD_COMPUTE,
    WGRAD_COMPUTE,
    FORWARD_SEND,
    FORWARD_RECV,
    BACKWARD_SEND,
    BACKWARD_RECV,
    PARAMS_ALL_GATHER,
    GRADS_REDUCE_SCATTER,
    SEPARATE_ALL_REDUCE,
    LAYERNORM_ALL_REDUCE,
    EMBEDDING_ALL_REDUCE,
    OPTIMIZER_CLIP,
    OPTIMIZER,
    GC,
)

# Work of ranks between steps, wherever it is recorded: no part of a step, and never replayed.
BETWEEN_STEPS: Final[tuple[str, ...]] = (DATA_LOADING, CHECKPOINT, EVALUATION)
# Collectives of tensor-parallel ranks.
TENSOR_TYPES: Final = ("tp-all-gather", "tp-reduce-scatter", "tp-all-reduce")
# Collectives of context-parallel ranks, and the transfers of those that form a ring.
CONTEXT_TYPES: Final = ("cp-all-gather", "cp-reduce-scatter", "cp-all-to-all")
RING: Final = "cp-send-recv"

# The position of a name is its code in `Trace.op`. Stored traces carry names: it may change.
KNOWN_OP_TYPES: Final[tuple[str, ...]] = (
    *REPLAYED_OP_TYPES,
    *TENSOR_TYPES,
    *CONTEXT_TYPES,
    "ep-all-to-all",
    *BETWEEN_STEPS,
    RING,
)

# NDTimeline's other names for the same operations (trace-format page of docs/).
OP_TYPE_ALIASES: Final[Mapping[str, str]] = {
    "unshard-all-gather": PARAMS_ALL_GATHER,
    "grad-reduce-scatter": GRADS_REDUCE_SCATTER,
    "grad-all-reduce": GRADS_REDUCE_SCATTER,
    "tp-allgather": "tp-all-gather",
    "tp-reducescatter": "tp-reduce-scatter",
    "tp-allreduce": "tp-all-reduce",
}

# Absent microbatch, model chunk or order.
ABSENT: Final = -1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parallelism of a job: ``world = dp * pp * tp * cp`` ranks, `vpp` model chunks a stage."""

    dp: int
    pp: int
    tp: int = 1
    cp: int = 1
    vpp: int = 1

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.dp * self.pp * self.tp * self.cp

    @property
    def workers(self) -> int:
        """Return the number of DP × PP cells."""
        return self.dp * self.pp


@dataclass(frozen=True, slots=True)
class SessionMeta:
    """Metadata of a session, from its sender.

    `hosts` and `gpus` map a global rank to a host name and to a GPU's name or index.
    """

    sizes: Sizes
    trial_name: str | None = None
    run_id: str | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    gpus: Mapping[int, str] = field(default_factory=dict)
    whereabouts: Whereabouts = NOWHERE
    labels: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)  # name → web address
    # Step → reason to exclude it from verdicts, such as the first step of a job.
    odd_steps: Mapping[int, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uuids(self) -> dict[int, str]:
        """Return the UUIDs of GPUs by global rank, as far as they are known."""
        named = {rank: uuid for rank, gpu in self.gpus.items() if (uuid := uuid_in(gpu))}
        return named | self.whereabouts.gpu_uuids

    @property
    def on_one_host(self) -> bool:
        """Return whether all workers are known to run on one host."""
        return len(self.hosts) >= self.sizes.workers and len(set(self.hosts.values())) == 1

    def machine(self, rank: int) -> Machine:
        """Return the machine of a rank."""
        return self.whereabouts.machine(rank, self.hosts, self.gpus)


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches of rows of one rank and step."""

    first: NDArray[np.intp]  # (stretches,): first row of each, from 0 on
    earliest_ns: NDArray[np.int64]  # (stretches,): earliest start in each


def stretches_of(first: NDArray[np.intp], start_ns: NDArray[np.int64]) -> Stretches:
    """Return the stretches that begin at rows `first`.

    Examples
    --------
    >>> stretches_of(np.array([0, 2]), np.array([7, 5, 6])).earliest_ns.tolist()
    [5, 6]
    """
    return Stretches(first, np.minimum.reduceat(start_ns, first))


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """All operations of one session as columns of equal length."""

    meta: SessionMeta
    # Name of each code in `op`: `KNOWN_OP_TYPES` first, then unknown types of this trace.
    op_names: tuple[str, ...]
    # rank, dp, pp: (operations,): global rank; DP rank; pipeline stage
    rank: NDArray[np.int32]
    dp: NDArray[np.int32]
    pp: NDArray[np.int32]
    step: NDArray[np.int64]  # training step
    op: NDArray[np.int16]  # operation type, an index into `op_names`
    # mb, mc: microbatch; model chunk within the stage (virtual stage). `ABSENT` where not
    # recorded.
    mb: NDArray[np.int32]
    mc: NDArray[np.int32]
    # 0-based position among the operations of the same (rank, step, op), by start. Unique there,
    # without gaps unless the recorder lost operations.
    order: NDArray[np.int32]
    # start_ns, duration_ns: start and duration. Starts are host clock readings, or relative to
    # the earliest start of their step when `step_relative`.
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    step_relative: bool
    # Left out by the decoder: the number of copies of operations, and (step, reason) of each step
    # in which an operation is there twice at different times.
    copies: int = 0
    repeated_steps: tuple[tuple[int, str], ...] = ()
    # Cache of `stretches`, at most one; checks of the columns fill it as well.
    known_stretches: list[Stretches] = field(
        init=False, default_factory=list, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.op)

    def of_rows(self, rows: NDArray[np.intp]) -> Trace:
        """Return a trace of some rows, in the order given."""
        return replace(
            self,
            rank=self.rank[rows],
            dp=self.dp[rows],
            pp=self.pp[rows],
            step=self.step[rows],
            op=self.op[rows],
            mb=self.mb[rows],
            mc=self.mc[rows],
            order=self.order[rows],
            start_ns=self.start_ns[rows],
            duration_ns=self.duration_ns[rows],
        )

    def stretches(self) -> Stretches:
        """Return the stretches of rows of one rank and step; there is at least one row."""
        if not self.known_stretches:
            change = (self.rank[1:] != self.rank[:-1]) | (self.step[1:] != self.step[:-1])
            first = np.concatenate(([0], np.flatnonzero(change) + 1))
            self.known_stretches.append(stretches_of(first, self.start_ns))
        return self.known_stretches[0]

    def step_count(self) -> int:
        """Return the number of different steps with operations; there is at least one row."""
        return int(np.unique(self.step[self.stretches().first]).size)

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

# Operation types that the what-if engine replays. Operations of other types are kept, counted and
# reported.
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

# Types of work between steps. Such operations belong to no step and are never replayed, wherever
# they are recorded.
BETWEEN_STEPS: Final[tuple[str, ...]] = (DATA_LOADING, CHECKPOINT, EVALUATION)
# Collectives between tensor-parallel ranks.
TENSOR_TYPES: Final = ("tp-all-gather", "tp-reduce-scatter", "tp-all-reduce")
# Collectives between context-parallel ranks; the transfers of context-parallel rings are `RING`.
CONTEXT_TYPES: Final = ("cp-all-gather", "cp-reduce-scatter", "cp-all-to-all")
RING: Final = "cp-send-recv"
# Collectives between ranks that share experts.
EXPERT_TYPES: Final = ("ep-all-to-all",)

# The index of a name is its code in `Trace.op`. The order may change between releases, since stored
# traces contain the names.
KNOWN_OP_TYPES: Final[tuple[str, ...]] = (
    *REPLAYED_OP_TYPES,
    *TENSOR_TYPES,
    *CONTEXT_TYPES,
    *EXPERT_TYPES,
    *BETWEEN_STEPS,
    RING,
)

# Other names that NDTimeline has for the same operations (trace-format page of docs/).
OP_TYPE_ALIASES: Final[Mapping[str, str]] = {
    "unshard-all-gather": PARAMS_ALL_GATHER,
    "grad-reduce-scatter": GRADS_REDUCE_SCATTER,
    "grad-all-reduce": GRADS_REDUCE_SCATTER,
    "tp-allgather": "tp-all-gather",
    "tp-reducescatter": "tp-reduce-scatter",
    "tp-allreduce": "tp-all-reduce",
}

# Value of a missing microbatch, model chunk or order.
ABSENT: Final = -1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parallelism of a job: ``world = dp * pp * tp * cp`` ranks, `vpp` model chunks per stage."""

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
        """Return the number of cells of the DP × PP grid."""
        return self.dp * self.pp


@dataclass(frozen=True, slots=True)
class SessionMeta:
    """Metadata of a session, as its sender gave them.

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
    # Step → reason why verdicts exclude it, for example "first step of the job".
    odd_steps: Mapping[int, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uuids(self) -> dict[int, str]:
        """Return the known GPU UUIDs by global rank."""
        named = {rank: uuid for rank, gpu in self.gpus.items() if (uuid := uuid_in(gpu))}
        return named | self.whereabouts.gpu_uuids

    @property
    def on_one_host(self) -> bool:
        """Return whether all workers are known to run on one host."""
        return len(self.hosts) >= self.sizes.workers and len(set(self.hosts.values())) == 1

    def machine(self, rank: int) -> Machine:
        """Return the node and GPU of a rank."""
        return self.whereabouts.machine(rank, self.hosts, self.gpus)


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches of consecutive rows with the same rank and step."""

    first: NDArray[np.intp]  # (stretches,): first row of each stretch; starts with 0
    earliest_ns: NDArray[np.int64]  # (stretches,): earliest start in each stretch


def stretches_of(first: NDArray[np.intp], start_ns: NDArray[np.int64]) -> Stretches:
    """Return the stretches of rows that begin at rows `first`.

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
    # Operation type of each code in `op`: `KNOWN_OP_TYPES` first, then this trace's unknown types.
    op_names: tuple[str, ...]
    # rank, dp, pp: shape (operations,): global rank, DP rank, pipeline stage
    rank: NDArray[np.int32]
    dp: NDArray[np.int32]
    pp: NDArray[np.int32]
    step: NDArray[np.int64]  # training step
    op: NDArray[np.int16]  # operation type, an index into `op_names`
    # mb, mc: microbatch; model chunk within the stage (virtual stage). `ABSENT` if not recorded.
    mb: NDArray[np.int32]
    mc: NDArray[np.int32]
    # 0-based position by start among the operations of the same (rank, step, op): unique, and
    # without gaps unless the recorder lost operations.
    order: NDArray[np.int32]
    # start_ns, duration_ns: start and duration. Starts are host clock readings or, if
    # `step_relative`, times since the earliest start of their step.
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    step_relative: bool
    # Operations that the decoder left out: copies: number of exact copies; repeated_steps: (step,
    # reason) of each step with an operation recorded twice at different times
    copies: int = 0
    repeated_steps: tuple[tuple[int, str], ...] = ()
    # Cache of the result of `stretches` (at most one item); the column checks fill it as well.
    known_stretches: list[Stretches] = field(
        init=False, default_factory=list, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.op)

    def of_rows(self, rows: NDArray[np.intp]) -> Trace:
        """Return a trace of the given rows, in the given order."""
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
        """Return the stretches of rows with the same rank and step; requires at least one row."""
        if not self.known_stretches:
            change = (self.rank[1:] != self.rank[:-1]) | (self.step[1:] != self.step[:-1])
            first = np.concatenate(([0], np.flatnonzero(change) + 1))
            self.known_stretches.append(stretches_of(first, self.start_ns))
        return self.known_stretches[0]

    def step_count(self) -> int:
        """Return the number of distinct steps; requires at least one row."""
        return int(np.unique(self.step[self.stretches().first]).size)

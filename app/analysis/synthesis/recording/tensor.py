"""What the tensor-parallel or the context-parallel ranks of each cell record of their collectives.

Every computation holds an all-gather and a reduce-scatter over these ranks of the cell.
Each rank computes its own part up to the collective, waits for the last one, and all end together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.analysis.synthesis.program import CODES
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from app.analysis.synthesis.phase import Phase

Rows = dict[str, "NDArray[Any]"]

TENSOR: Final = ("tp-all-gather", "tp-reduce-scatter")
CONTEXT: Final = ("cp-all-gather", "cp-reduce-scatter")
# Mean time by which ranks arrive before the last one, as a share of what they compute.
_EARLY: Final = 0.004
# Mean time by which one rank's kernel ends before the computation goes on.
_END_JITTER_NS: Final = 3e3


def tensor_rows(
    phase: Phase, begin_ns: NDArray[np.int64], rng: np.random.Generator
) -> Iterator[Rows]:
    """Yield the collectives of each stage's ranks; steps begin at `begin_ns`."""
    job, work, execution = phase.job, phase.work, phase.execution
    program = work.program
    computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
    context, dp = job.profiler.context_ranks, job.sizes.dp
    names, ranks = (CONTEXT, job.sizes.cp) if context else (TENSOR, job.sizes.tp)
    for stage in range(job.sizes.pp):
        # A stage's computations stand in the order of their stream.
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
            # The last to arrive may be a moment later than its peers' record of the end.
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

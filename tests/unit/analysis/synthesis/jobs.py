"""Jobs and views of traces that the tests of this folder share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.analysis.synthesis.job import CostModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from app.analysis.trace.model import Trace

# Costs without noise: every operation takes exactly its modeled time.
EXACT = CostModel(
    forward_ns=10e6,
    backward_ns=20e6,
    compute_noise=0.0,
    worker_noise=0.0,
    p2p_ns=0.0,
    params_ns=0.0,
    grads_ns=0.0,
    layernorm_ns=0.0,
    embedding_ns=0.0,
    clip_ns=0.0,
    optimizer_ns=0.0,
    transfer_noise=0.0,
    tail_probability=0.0,
    member_jitter_ns=0.0,
    launch_overhead_ns=0.0,
    data_loading_ns=0.0,
    host_stall_probability=0.0,
    contention=0.0,
)


def rows(
    trace: Trace, *ops: str, dp: int | None = None, pp: int | None = None, step: int | None = None
) -> NDArray[np.bool_]:
    """Return a mask of the operations of the named types at a place."""
    codes = [trace.op_names.index(op) for op in ops]
    mask: NDArray[np.bool_] = (trace.op[:, None] == codes).any(axis=1) if ops else (trace.op >= 0)
    for column, value in ((trace.dp, dp), (trace.pp, pp), (trace.step, step)):
        if value is not None:
            mask &= column == value
    return mask


def cells(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """Yield (dp, pp, step) for each worker in each step."""
    for step in sorted(set(trace.step.tolist())):
        for dp in range(trace.meta.sizes.dp):
            for pp in range(trace.meta.sizes.pp):
                yield dp, pp, step

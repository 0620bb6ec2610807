"""What ranks that share experts record of the all-to-alls of their layers with experts.

Every computation holds two of them: one before the experts compute, one after. All ranks of a group
end each of them together; who waits for the experts of others begins the second one earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.synthesis.program import CODES
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from app.analysis.synthesis.phase import Phase
    from app.analysis.synthesis.recording.tensor import Rows

_NAME: Final = "ep-all-to-all"
_COUNT: Final = 2
# What its transfer takes, as a share of the computation.
_TRANSFER: Final = 0.03
# Mean time by which a rank's record of it begins early.
_JITTER_NS: Final = 3e3


def expert_rows(
    phase: Phase, begin_ns: NDArray[np.int64], rng: np.random.Generator
) -> Iterator[Rows]:
    """Yield the all-to-alls of each stage; steps begin at `begin_ns`."""
    job, work, execution = phase.job, phase.work, phase.execution
    program, dp, experts = work.program, job.sizes.dp, work.experts
    if experts is None:
        return
    computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
    for stage in range(job.sizes.pp):
        # A stage's computations stand in the order of their stream.
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

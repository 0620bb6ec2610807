"""What ranks record to do between steps: batches, checkpoints, evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from app.analysis.synthesis.program import CODES
from app.analysis.trace.model import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from app.analysis.synthesis.phase import Phase
    from app.analysis.synthesis.recording.tensor import Rows


def host_operation_rows(phase: Phase, begin_ns: NDArray[np.int64]) -> Iterator[Rows]:
    """Yield what the ranks of a phase record between its steps, each as long as it takes."""
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

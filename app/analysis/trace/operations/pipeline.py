"""Checks of pipeline operations: those that a microbatch and a model chunk tell apart."""

from __future__ import annotations

import numpy as np

from app.analysis.trace.faults import Places, refuse
from app.analysis.trace.limits import MAX_FAULTS
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    WGRAD_COMPUTE,
    Sizes,
)
from app.analysis.trace.operations import groups

_COMPUTE = (FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE)
# Other types may repeat within a microbatch: a tensor-parallel collective does so in every layer.
_ONCE_A_MICROBATCH = (*_COMPUTE, FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)


def check_pipeline(
    columns: groups.Columns,
    runs: groups.Runs,
    op_names: tuple[str, ...],
    sizes: Sizes,
    places: Places,
) -> None:
    """Find repeated microbatches; refuse computation that no chunk can be given to.

    With one chunk a stage, the order of computation tells its microbatch. With virtual stages it
    does not, so microbatch and chunk must be recorded.

    Raises
    ------
    InvalidTraceError
        `trace.missing_microbatch`, `trace.missing_model_chunk`.
    groups.RepeatedError
    """
    op = columns["op"]
    if sizes.vpp > 1:
        computes = np.array([name in _COMPUTE for name in op_names])[op]
        refused = [
            places.fault(
                code, f"with {sizes.vpp} chunks a stage, {what} must be recorded", row, name
            )
            for name, code, what in (
                ("mb", "missing_microbatch", "the microbatch of computation"),
                ("mc", "missing_model_chunk", "the model chunk of computation"),
            )
            for row in np.flatnonzero(computes & (columns[name] == ABSENT))[:MAX_FAULTS].tolist()
        ]
        if refused:
            refuse(refused)
    once = np.array([name in _ONCE_A_MICROBATCH for name in op_names])[op]
    rows = np.flatnonzero(once & (columns["mb"] != ABSENT))
    if len(rows):
        groups.check_microbatches(columns, rows, runs)

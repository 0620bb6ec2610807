"""Causes that a session cannot show, because it lacks what they would be seen in.

A cause that the job cannot have is not among them: without overlap nothing waits for a
reduce-scatter, with one stage none is too heavy.
"""

from __future__ import annotations

from app.analysis.diagnosis.finding import (
    DATA_LOADING,
    FALSE_DEPENDENCY,
    GARBAGE_COLLECTION,
    MEMORY_FRAGMENTATION,
    NETWORK,
    SEQUENCE_LENGTHS,
    SLOW_WORKER,
    STAGE_IMBALANCE,
    TENSOR_PARALLEL,
)
from app.analysis.diagnosis.observation import Observation
from app.analysis.trace.model import GRADS_REDUCE_SCATTER, PARAMS_ALL_GATHER

CONTEXT_PARALLEL = "context_parallel_straggler"


def cannot_judge(observation: Observation, *, tensor_ranks: bool) -> dict[str, str]:
    """Return each such cause with the reason, in words for people."""
    sizes = observation.trace.meta.sizes
    layout = observation.layout
    present = {layout.op_names[code] for code in set(layout.nodes.op.tolist())}
    reasons: dict[str, str] = {}
    if not observation.comparable:
        reason = (
            "stages do not all compute the same microbatches and model chunks, forward and "
            "backward, so their computations cannot be compared"
        )
        compared = (STAGE_IMBALANCE, SEQUENCE_LENGTHS, GARBAGE_COLLECTION)
        reasons |= dict.fromkeys(compared, reason)
    if not observation.comparable_within_stages:
        reasons[SLOW_WORKER] = (
            "stages do not compute as often forward as backward, so their workers cannot be "
            "compared"
        )
    elif sizes.dp == 1:
        reasons[SLOW_WORKER] = "with one DP rank a worker has no peers to compare it with"
    if sizes.workers == 1:
        reasons[NETWORK] = "one worker has no transfers to compare"
    if PARAMS_ALL_GATHER not in present:
        reasons[DATA_LOADING] = (
            "nothing is recorded before a step's first forward, so waiting for its batch cannot be "
            "told from the time between steps"
        )
    if GRADS_REDUCE_SCATTER not in present:
        reasons[FALSE_DEPENDENCY] = "no reduce-scatters recorded"
    if sizes.tp > 1 and not tensor_ranks:
        reason = "no tensor-parallel operations recorded"
        reasons |= dict.fromkeys((MEMORY_FRAGMENTATION, TENSOR_PARALLEL), reason)
    if sizes.cp > 1:
        reasons[CONTEXT_PARALLEL] = "no context-parallel operations recorded"
    return reasons

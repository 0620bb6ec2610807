"""All kinds of causes, in the order in which pages list them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.analysis.diagnosis.causes.between_steps import BETWEEN_STEPS
from app.analysis.diagnosis.causes.checkpoint import CHECKPOINT
from app.analysis.diagnosis.causes.context_parallel import CONTEXT_PARALLEL
from app.analysis.diagnosis.causes.data_loading import DATA_LOADING
from app.analysis.diagnosis.causes.evaluation import EVALUATION
from app.analysis.diagnosis.causes.expert_parallel import EXPERT_PARALLEL
from app.analysis.diagnosis.causes.garbage_collection import GARBAGE_COLLECTION
from app.analysis.diagnosis.causes.host_overhead import HOST_OVERHEAD
from app.analysis.diagnosis.causes.kernel_dependency import KERNEL_DEPENDENCY
from app.analysis.diagnosis.causes.kind import CauseKind, Plan
from app.analysis.diagnosis.causes.memory_fragmentation import MEMORY_FRAGMENTATION
from app.analysis.diagnosis.causes.network import NETWORK
from app.analysis.diagnosis.causes.network_congestion import NETWORK_CONGESTION
from app.analysis.diagnosis.causes.rotating import ROTATING
from app.analysis.diagnosis.causes.sequence_lengths import SEQUENCE_LENGTHS
from app.analysis.diagnosis.causes.slow_together import SLOW_TOGETHER
from app.analysis.diagnosis.causes.slow_worker import SLOW_WORKER
from app.analysis.diagnosis.causes.stage_imbalance import STAGE_IMBALANCE
from app.analysis.diagnosis.causes.tensor_parallel import TENSOR_STRAGGLER
from app.analysis.diagnosis.causes.thermal_throttling import THERMAL_THROTTLING
from app.analysis.diagnosis.causes.uneven_microbatches import UNEVEN_MICROBATCHES
from app.analysis.diagnosis.finding import UNKNOWN

KINDS: Final[Mapping[str, CauseKind]] = {
    kind.name: kind
    for kind in (
        SLOW_WORKER,
        THERMAL_THROTTLING,
        SLOW_TOGETHER,
        ROTATING,
        STAGE_IMBALANCE,
        SEQUENCE_LENGTHS,
        UNEVEN_MICROBATCHES,
        GARBAGE_COLLECTION,
        MEMORY_FRAGMENTATION,
        KERNEL_DEPENDENCY,
        NETWORK,
        NETWORK_CONGESTION,
        DATA_LOADING,
        CHECKPOINT,
        EVALUATION,
        BETWEEN_STEPS,
        HOST_OVERHEAD,
        TENSOR_STRAGGLER,
        CONTEXT_PARALLEL,
        EXPERT_PARALLEL,
    )
}
# For a finding in doubt: the other cause that has the same sign in the same place.
ALTERNATIVES: Final[Mapping[str, str]] = {
    SLOW_WORKER.name: STAGE_IMBALANCE.name,
    STAGE_IMBALANCE.name: SLOW_WORKER.name,
    CHECKPOINT.name: DATA_LOADING.name,
    NETWORK_CONGESTION.name: NETWORK.name,
}

_TITLES: Final[Mapping[str, str]] = {
    **{kind.name: kind.title for kind in KINDS.values()},
    UNKNOWN: "Unknown cause",
}


def title_of(name: str) -> str:
    """Return the title of a cause; for a cause of another version, its name in words.

    Examples
    --------
    >>> title_of("sequence_length_imbalance")
    'Sequence-length imbalance'
    """
    return _TITLES.get(name) or name.replace("_", " ").capitalize()


def blames_machine(name: str) -> bool:
    """Return whether a cause blames the hosts that it names; False for a cause of another version.

    Examples
    --------
    >>> blames_machine("slow_worker"), blames_machine("memory_fragmentation")
    (True, False)
    """
    kind = KINDS.get(name)
    return kind is not None and kind.blames_machine


def cause_of(plan: Plan) -> str:
    """Return the name of the cause whose fix is planned in a given way."""
    return next(name for name, kind in KINDS.items() if kind.plan is plan)

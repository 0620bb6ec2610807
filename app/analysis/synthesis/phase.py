"""Steps of one kind that a synthetic job has executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from app.analysis.synthesis.execution import Execution, StepWork
    from app.analysis.synthesis.job import JobModel


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """Executed steps of one kind (training, warm-up, evaluation), with their numbers."""

    job: JobModel
    work: StepWork
    execution: Execution
    ids: NDArray[np.int64]

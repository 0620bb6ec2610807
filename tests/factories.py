"""Small builders of traces for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.job import CostModel, JobModel
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import Sizes, Trace

COLUMNS = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")


def session(
    *injections: Injection,
    dp: int = 3,
    pp: int = 2,
    steps: int = 12,
    microbatches: int = 4,
    seed: int = 1,
    costs: CostModel | None = None,
) -> SyntheticSession:
    """Return a small synthetic session."""
    job = JobModel(
        sizes=Sizes(dp=dp, pp=pp),
        microbatches=microbatches,
        steps=steps,
        costs=costs or CostModel(),
    )
    return synthesize(job, injections, seed=seed)


def select(trace: Trace, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Trace:
    """Return a trace of some rows, in the order given."""
    return dataclasses.replace(trace, **{name: getattr(trace, name)[rows] for name in COLUMNS})


def joined(first: Trace, second: Trace, **changes: Any) -> Trace:  # noqa: ANN401 - fields of Trace
    """Return a trace with the rows of both and the first one's metadata, except for the changes."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in COLUMNS
    }
    return dataclasses.replace(first, **columns, **changes)

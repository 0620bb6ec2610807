"""What those who decide on notices look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.analysis.pulse.columns import Float64, Int64
from app.analysis.pulse.evidence.charts import Charts
from app.analysis.pulse.evidence.expected import Expected
from app.analysis.pulse.evidence.history import History
from app.analysis.pulse.evidence.subjects import Subjects
from app.analysis.pulse.evidence.trail import Trail
from app.analysis.pulse.ledger import Ledger


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A process group after some step.

    Parameters
    ----------
    rows : int
        How many rows of the history lie before the decision.
    usual_parts_ns : float64[4]
        What is usual for waiting, data, optimizer and garbage collection.
    """

    attempt: int
    subjects: Subjects
    charts: Charts
    history: History
    expected: Expected
    trail: Trail
    usual_parts_ns: Float64
    ledger: Ledger
    hosts: Mapping[int, str]
    rows: int

    @property
    def numbers(self) -> Int64:
        """Return the numbers of the steps."""
        return self.history.numbers[: self.rows]

    @property
    def values(self) -> Float64:
        """Return the residuals."""
        return self.history.values[: self.rows]

    @property
    def step(self) -> int:
        """Return the number of the last step."""
        return int(self.history.numbers[self.rows - 1])

    @property
    def end_ns(self) -> int:
        """Return the end of the last step."""
        return int(self.history.ends_ns[self.rows - 1])

"""What pages call methods, criteria and risks of tensor-parallel plans."""

from __future__ import annotations

from typing import Final

from app.analysis.mitigation.tensor.document import Criterion, LossRisk, Method

METHOD_NAMES: Final = {
    Method.NONE: "None",
    Method.ZERO: "ZERO, resize",
    Method.MIGRATE: "Migrate all",
    Method.SEMI: "SEMI, resize and migrate",
    Method.WATERFILL: "Water-filled",
    Method.STICKY: "Sticky, move once",
}
CRITERIA: Final = {Criterion.T_MIN: "", Criterion.T_AVG: " to the mean", None: ""}
RISKS: Final = {
    LossRisk.NONE: "none",
    LossRisk.SMALL: "small: measure it",
    LossRisk.BEYOND_BUDGET: "beyond the budget",
}

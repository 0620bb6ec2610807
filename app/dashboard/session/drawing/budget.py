"""Where the time of a session goes: a bar of its parts, and a table of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from app.analysis.budget.document import WORTH_SAYING
from app.analysis.budget.parts import Part
from app.analysis.report.document import SECONDS_AN_HOUR, Report
from app.analysis.wording import hours
from app.dashboard.ui.format import percent, rough_percent

# A smaller share of the time has no line of its own.
_SHOWN: Final = 0.0005
# Under this share nothing is lost.
_NEGLIGIBLE: Final = 0.005


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A part: its piece of the bar, per cent from the left, and what the table says of it."""

    part: str
    name: str
    begin: float
    width: float
    share: str
    hours: str
    lost: bool


@dataclass(frozen=True, slots=True)
class BudgetTable:
    """Where the time goes; what is lost comes last."""

    title: str
    note: str
    rows: tuple[BudgetRow, ...]


def budget_table(report: Report) -> BudgetTable | None:
    """Return where the time goes; None in a report of an older version."""
    budget = report.budget
    if budget is None:
        return None
    shares = budget.shares
    parts = sorted(Part, key=lambda part: part.lost)
    parts = [part for part in parts if shares.of(part) >= _SHOWN]
    begins = accumulate((100 * shares.of(part) for part in parts), initial=0.0)
    gpu_hours = report.sizes.world * budget.wall_s / SECONDS_AN_HOUR
    return BudgetTable(
        title=_title(report),
        note="Of all GPUs, from the first operation to the last, without gaps in which no step was "
        "recorded",
        rows=tuple(
            BudgetRow(
                part.value,
                f"{part.words[0].upper()}{part.words[1:]}",
                begin,
                100 * shares.of(part),
                percent(shares.of(part)),
                hours(gpu_hours * shares.of(part)),
                part.lost,
            )
            for part, begin in zip(parts, begins, strict=False)
        ),
    )


def _title(report: Report) -> str:
    assert report.budget is not None  # noqa: S101
    shares = report.budget.shares
    if shares.lost < WORTH_SAYING:
        lost = "nothing" if shares.lost < _NEGLIGIBLE else rough_percent(shares.lost)
        return f"Computing takes {rough_percent(shares.computing)} of the time; {lost} is lost"
    most = max((part for part in Part if part.lost), key=shares.of)
    return f"{rough_percent(shares.lost)} of the time is lost, most of it by {most.words}"

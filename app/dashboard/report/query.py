"""What an address of the report asks for next to its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends

from app.dashboard.ui.address import QueryText, asked_for
from app.dashboard.ui.choosing import Choice
from app.services.fleet_report.costs import LabelCost
from app.services.fleet_report.filters import ReportFilter

# A longer text is no label that a page asks for.
MAX_CHARACTERS: Final = 200


class ReportQuery:
    """Whose sessions an address of the report asks for."""

    def __init__(self, team: QueryText = "", owner: QueryText = "", label: QueryText = "") -> None:
        # No row holds such a character, and the database takes none.
        self.filters = ReportFilter(
            *(text.replace("\x00", "")[:MAX_CHARACTERS].strip() for text in (team, owner, label))
        )

    @property
    def parameters(self) -> Mapping[str, str]:
        """Return them by their names in an address."""
        asked = self.filters
        return {"team": asked.team, "owner": asked.owner, "label": asked.label}


ReportQueryParam = Annotated[ReportQuery, Depends(asked_for(ReportQuery))]


@dataclass(frozen=True, slots=True)
class LabelChoices:
    """The values of a label that a page offers; the first one asks for nothing."""

    name: str
    label: str
    choices: Sequence[Choice]


def label_choices(name: str, chosen: str, costs: Sequence[LabelCost]) -> LabelChoices:
    """Return the teams or owners of a report, also one that is chosen and has nothing any more."""
    values = sorted({*(one.name or "" for one in costs), chosen} - {""}, key=str.lower)
    return LabelChoices(
        name, f"Any {name}", [Choice(value, value, value == chosen) for value in values]
    )

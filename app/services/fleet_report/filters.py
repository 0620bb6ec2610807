"""Whose sessions a report is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.db.json_values import has_label

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement


@dataclass(frozen=True, slots=True)
class ReportFilter:
    """What sessions must be labeled with; what is empty asks for nothing."""

    team: str = ""
    owner: str = ""
    label: str = ""  # ``name=value``, or the name of a label

    @property
    def asked(self) -> bool:
        """Return whether it asks for anything."""
        return self != ReportFilter()

    def of(self, labels: Any) -> list[ColumnElement[bool]]:  # noqa: ANN401 - a column of JSON
        """Return the conditions that labels of a session must meet."""
        found = [
            labels[name].astext == value
            for name, value in (("team", self.team), ("owner", self.owner))
            if value
        ]
        return [*found, has_label(labels, self.label)] if self.label else found


EVERYTHING = ReportFilter()

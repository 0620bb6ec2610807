"""The time that an address asks for, as routes take it; see `app.dashboard.ui.ranges`."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Query

from app.dashboard.ui.address import QueryText, asked_for
from app.dashboard.ui.ranges import DAY, Range, range_of

# What pages are about that look back over many sessions.
MONTH: Final = "30d"


class TimeQuery:
    """The time that an address asks for."""

    def __init__(
        self,
        range: QueryText = "",  # noqa: A002 - name of the parameter
        begin: Annotated[str, Query(alias="from")] = "",
        end: Annotated[str, Query(alias="to")] = "",
    ) -> None:
        self.parameters = {"range": range, "from": begin, "to": end}

    def about(self, default: str = DAY) -> Range:
        """Return the time; `default` is the name of the one that an address need not name."""
        return range_of(*self.parameters.values(), default=default)


TimeQueryParam = Annotated[TimeQuery, Depends(asked_for(TimeQuery))]

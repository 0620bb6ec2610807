"""What an address asks of the page of a session."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Query

from app.dashboard.ui.address import QueryText, asked_for

# Longer numbers are no step of any training, and too long ones are slow to parse.
MAX_DIGITS: Final = 19


class SessionQuery:
    """A step and a worker, where they are numbers, a collective, and whether figures are exact.

    Pages are forgiving: they ignore a parameter that is no number.
    """

    def __init__(
        self,
        step: QueryText = "",
        dp: QueryText = "",
        pp: QueryText = "",
        collective: QueryText = "",
        exact: Annotated[str | None, Query()] = None,
    ) -> None:
        self.step, self.dp, self.pp = _number(step), _number(dp), _number(pp)
        self.collective = collective
        # By its name alone.
        self.exact = exact is not None


def _number(text: str) -> int | None:
    """Return the step, DP rank or stage that an address asks for, if it is one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS else None


SessionQueryParam = Annotated[SessionQuery, Depends(asked_for(SessionQuery))]

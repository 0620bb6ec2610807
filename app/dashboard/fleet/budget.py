"""Where the time of a job's sessions goes: a column for each, stacked of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.analysis.budget.parts import Part
from app.dashboard.ui.format import percent, rough_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.analysis.budget.document import Shares
    from app.services.history.axis import TimePoint

# Columns that can be told apart on a narrow page.
MOST: Final = 120
# A smaller share of every session has no name of its own.
_SHOWN: Final = 0.005
# A lower piece cannot be seen, per cent.
_DRAWN: Final = 0.05
# Between a column and its edge.
_GAP: Final = 0.04
# From the bottom up: what is lost is on top.
_STACKED: Final = tuple(sorted(Part, key=lambda part: part.lost))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a session, per cent from the top."""

    part: str
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class SessionColumn:
    """A session; `words` say what it loses."""

    words: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class BudgetOverTime:
    """The latest sessions of which it is known where their time goes, oldest first."""

    title: str
    columns: tuple[SessionColumn, ...]
    paths: tuple[tuple[str, str], ...]  # (part, SVG path of its pieces), a column one unit wide
    names: tuple[tuple[str, str], ...]  # (part, its name), those that can be seen


def budget_over_time(points: Sequence[TimePoint]) -> BudgetOverTime | None:
    """Return where the time of sessions goes; None where it is not known of any."""
    known = [(point, point.shares) for point in points if point.shares is not None][-MOST:]
    if not known:
        return None
    latest, shares = known[-1]
    most = max((part for part in Part if part.lost), key=shares.of)
    said = f"{rough_percent(shares.lost)} of session {latest.number} is lost"
    columns = tuple(_column(point.number, of) for point, of in known)
    return BudgetOverTime(
        title=f"{said}, most of it by {most.words}" if shares.lost >= _SHOWN else said,
        columns=columns,
        paths=tuple((part.value, _path(part, columns)) for part in _STACKED),
        names=tuple(
            (part.value, f"{part.words[0].upper()}{part.words[1:]}")
            for part in _STACKED
            if any(of.of(part) >= _SHOWN for _, of in known)
        ),
    )


def _path(part: Part, columns: Sequence[SessionColumn]) -> str:
    """Return the pieces of a part as one path: a page of its own elements would be a long one."""
    return "".join(
        f"M{at + _GAP:g} {piece.top:.2f}h{1 - 2 * _GAP:g}v{piece.height:.2f}h-{1 - 2 * _GAP:g}z"
        for at, column in enumerate(columns)
        for piece in column.pieces
        if piece.part == part and piece.height >= _DRAWN
    )


def _column(number: int, shares: Shares) -> SessionColumn:
    pieces, top = [], 100.0
    for part in _STACKED:
        height = 100 * shares.of(part)
        top -= height
        pieces.append(Piece(part.value, top, height))
    return SessionColumn(f"Session {number}: {percent(shares.lost)} lost", tuple(pieces))

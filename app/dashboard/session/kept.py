"""What a session's page says and offers of what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from app.services.sessions.read import SessionView


@dataclass(frozen=True, slots=True)
class Kept:
    """What may be done with a session, and what is gone of it."""

    note: str  # what retention took away; empty where all is there
    pinned: bool
    again: bool  # whether it can be analyzed again
    trace: bool  # whether its operations are there, for timelines and questions
    heatmaps: bool  # whether those of single steps are there; the mean is in the report


def kept(view: SessionView) -> Kept:
    """Return what is kept of a session."""
    row = view.row
    gone = [
        (what, at)
        for what, at in (
            ("its operations", row.trace_removed_at),
            ("its report", row.report_removed_at),
        )
        if at is not None
    ]
    note = _note(gone)
    if view.has_report and not view.has_heatmaps:
        note = f"{note} Only the mean of the heatmaps over the steps is kept."
    return Kept(
        note=note.strip(),
        pinned=row.pinned,
        again=row.trace_removed_at is None and not row.state.underway,
        trace=row.trace_removed_at is None,
        heatmaps=view.has_heatmaps,
    )


def _note(gone: list[tuple[str, datetime]]) -> str:
    if not gone:
        return ""
    said = [f"{what} since {at:%-d %B %Y}" for what, at in gone]
    text = f"Deleted: {', '.join(said)}."
    if len(gone) == 1 and gone[0][0] == "its operations":
        return (
            f"{text} The report stays; timelines, questions and another analysis need operations."
        )
    return text

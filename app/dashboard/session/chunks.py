"""What pages show of a session that came in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.analysis.report.document import Report
from app.dashboard.ui.format import byte_size, count, plural
from app.dashboard.ui.moments import when
from app.dashboard.ui.parts import Fact, Row

if TYPE_CHECKING:
    from datetime import datetime

    from app.services.sessions.read import IntakeView, SessionRow

# Producers and chunks that are named one by one.
NAMED: Final = 6

SEALED_BY: Final = {
    "request": "sealed on request",
    "final": "sealed by the last producer's last chunk",
    "silence": "sealed after a silence",
}


def arrival_facts(row: SessionRow, intake: IntakeView, now: datetime) -> list[Fact]:
    """Return how far an open session has come."""
    producers = intake.producers
    ready = sum(producer.final for producer in producers)
    names = _some([producer.producer for producer in producers])
    return [
        Fact("Operations", count(row.operations), f"in {_chunks(intake)}"),
        Fact(
            "Producers",
            count(len(producers)),
            f"{names}; the last chunk of {count(ready)} has come" if ready else names,
        ),
        Fact("Received", byte_size(row.body_bytes)),
        *refused_facts(intake),
        Fact("Last chunk", "", when(intake.last_chunk_at, now), moment=intake.last_chunk_at),
    ] + (
        []
        if intake.seals_at is None
        else [Fact("Sealed", when(intake.seals_at, now), "unless another chunk comes")]
    )


def _chunks(intake: IntakeView) -> str:
    """Return how many chunks there are, and how many wait to be decoded."""
    taken = plural(intake.chunks, "chunk")
    return f"{taken}, {count(intake.waiting_chunks)} waiting" if intake.waiting_chunks else taken


def refused_facts(intake: IntakeView | None) -> list[Fact]:
    """Return how much of a session was refused, if anything was."""
    if intake is None or not intake.refused_chunks:
        return []
    chunks = plural(intake.refused_chunks, "chunk")
    if intake.refused:
        named = [f"{one.producer}/{one.number} ({one.code})" for one in intake.refused]
        chunks += f": {_some(named)}"
    return [Fact("Refused", byte_size(intake.refused_bytes), chunks)]


def chunk_rows(report: Report) -> tuple[Row, ...]:
    """Return who sent what of a session, and what was dropped of it."""
    chunks = report.coverage.chunks
    if chunks is None:
        return ()
    names = [producer.producer for producer in chunks.producers]
    dropped = chunks.dropped
    again = [
        f"chunk {entry.producer}/{entry.chunk} ({count(entry.operations)})"
        for entry in dropped.chunks
    ]
    rows = [
        Row("Chunks", count(chunks.chunks), SEALED_BY[chunks.sealed_by]),
        Row("Producers", count(len(names)), _some(names)),
        Row("Operations sent twice, dropped", count(dropped.operations), _some(again)),
    ]
    if chunks.ended_early:
        early = [one.words for one in chunks.ended_early]
        rows.append(Row("Recordings that ended early", count(len(early)), _some(early)))
    if chunks.refused_chunks:
        size = byte_size(chunks.refused_bytes)
        rows.append(Row("Chunks refused", count(chunks.refused_chunks), size))
    return tuple(rows)


def _some(names: list[str]) -> str:
    shown = names[:NAMED]
    if len(names) > NAMED:
        shown.append(f"{count(len(names) - NAMED)} more")
    return ", ".join(shown)

"""What the page of a session shows while there is no report, and where there is none any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from app.analysis.trace.formats.registry import FORMATS
from app.dashboard.session.chunks import arrival_facts, refused_facts
from app.dashboard.ui.format import byte_size, count, plural, times
from app.dashboard.ui.moments import when
from app.dashboard.ui.parts import ANALYZED_STATE, STATES, Fact, Row, StateLabel
from app.db.states import SessionState

if TYPE_CHECKING:
    from app.services.sessions.read import IntakeView, SessionView

# What to do about a session without a verdict, by the code of the reason.
REMEDIES: Final = {
    "trace.no_complete_step": ("Send every rank", "a step counts when all of its ranks are there"),
    "trace.dependency_cycle": ("Look at the profiler", "operations wait for each other"),
}
OTHER_REMEDY: Final = ("Correct the trace", "and send it again")


@dataclass(frozen=True, slots=True)
class Body:
    """What differs by state."""

    state: StateLabel
    short: str
    heading: str
    line: tuple[str, ...]
    facts: Sequence[Fact]
    why: str = ""
    ghosts: tuple[str, ...] = ()


def arriving(view: SessionView, intake: IntakeView) -> Body:
    """Return what is known of a session whose chunks still come."""
    row = view.row
    chunks, producers = (
        plural(intake.chunks, "chunk"),
        plural(len(intake.producers), "producer"),
    )
    return Body(
        state=STATES[SessionState.OPEN],
        short="arriving",
        heading=f"Session {row.number} is arriving: {chunks} of {producers} so far",
        line=(FORMATS[row.trace_format].title,),
        facts=arrival_facts(row, intake, view.now),
        why="It is analyzed when it is sealed: on request, by the last producer's last chunk, or "
        "when nothing more comes.",
    )


def underway(view: SessionView, max_attempts: int) -> Body:
    """Return what is known of a session that waits for its analysis or is in it."""
    row, work = view.row, view.work
    attempt = work.attempt if work else 0
    workers = row.dp * row.pp
    facts = [
        Fact("Operations", count(row.operations), f"in {plural(row.steps, 'step')}"),
        Fact(
            "Trace",
            byte_size(row.body_bytes),
            FORMATS[row.trace_format].title,
        ),
        Fact("Received", "", when(row.received_at, view.now), moment=row.received_at),
        *refused_facts(view.intake),
    ]
    ghosts = (f"Heatmap, {plural(workers, 'worker')}", f"Steps, {count(row.steps)} received")
    if row.state == SessionState.ANALYZING:
        facts.append(Fact("Attempt", f"{attempt} of {max_attempts}"))
        return Body(
            state=STATES[SessionState.ANALYZING],
            short="analyzing",
            heading=f"Session {row.number} is being analyzed: "
            f"{plural(row.operations, 'operation')} of {plural(workers, 'worker')}",
            line=(f"attempt {attempt} of {max_attempts}",),
            facts=facts,
            why="The report appears here when it is ready, without a reload.",
            ghosts=ghosts,
        )
    ahead = (work.position or 1) - 1 if work else 0
    if attempt:
        facts.append(
            Fact("Attempt", f"{attempt + 1} of {max_attempts}", "the last one was cut off")
        )
    place = f"{plural(ahead, 'session')} ahead" if ahead else "next in line"
    return Body(
        state=STATES[row.state],
        short="waiting",
        heading=f"Session {row.number} has arrived and waits to be analyzed",
        line=(place,),
        facts=facts,
        why="Analysis starts as soon as a worker is free; the report appears here without a "
        "reload.",
        ghosts=ghosts,
    )


def without_report(view: SessionView) -> Body:
    """Return what lists still know of a session whose report went by its age."""
    row = view.row
    shown = row.headline
    sentence = row.verdict.sentence if row.verdict is not None else "The report was deleted"
    facts = [
        Fact("Slowdown", "none" if shown is None else times(shown.slowdown), "as it was reported"),
        Fact("Operations", count(row.operations), f"in {plural(row.steps, 'step')}"),
        Fact("Received", "", when(row.received_at, view.now), moment=row.received_at),
    ]
    return Body(
        state=STATES.get(row.state, ANALYZED_STATE),
        short="report not kept",
        heading=sentence,
        line=(FORMATS[row.trace_format].title, byte_size(row.body_bytes)),
        facts=facts,
    )


def ended(view: SessionView) -> Body:
    """Return what is known of a session that ended without a report, and what to do about it."""
    row, work = view.row, view.work
    reason = row.reason or "the reason was not recorded"
    code = row.reason_code or (work.error_code if work else None) or "unknown"
    failed = row.state == SessionState.FAILED
    word = "Analysis failed" if failed else "Discarded"
    facts = [Fact("Code", code)]
    if work is not None:
        facts.append(Fact("Attempts", count(work.attempt)))
    facts += [
        Fact("Operations", count(row.operations), f"in {plural(row.steps, 'step')}"),
        Fact("Received", "", when(row.received_at, view.now), moment=row.received_at),
        *refused_facts(view.intake),
    ]
    if failed:
        why = (
            "The code names the failure; the worker's log has the details."
            if row.trace_removed_at is not None
            else "Nothing is lost: the trace is stored as it was sent. The code names what broke; "
            "the worker's log has the rest."
        )
    else:
        facts.append(Fact("Remedy", *REMEDIES.get(code, OTHER_REMEDY)))
        why = (
            "Its trace allows no verdict."
            if row.trace_removed_at is not None
            else "The trace is stored as it was sent, but it allows no verdict."
        )
    return Body(
        state=STATES[SessionState.FAILED if failed else SessionState.DISCARDED],
        short=word.lower(),
        heading=f"{word}: {reason}",
        line=(FORMATS[row.trace_format].title, byte_size(row.body_bytes)),
        facts=facts,
        why=why,
    )


def fault_rows(view: SessionView) -> tuple[Row, ...]:
    """Return what was wrong with what arrived."""
    faults = (view.reason_detail or {}).get("faults") or []
    return tuple(
        Row(fault.get("code", ""), fault.get("message", ""), _position(fault)) for fault in faults
    )


def _position(fault: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {fault[name]}" for name in ("file", "row", "line", "column") if name in fault
    )

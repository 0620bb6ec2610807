"""What the page of a session shows while there is no report, and where there is none any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from app.analysis.budget.split import WORTH_SAYING
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.diagnosis.verdict import lost_between
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.document import SECONDS_AN_HOUR, NamedCause, Report
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.wording import gpu_time, hours, sure
from app.platform.database.states import SessionState
from app.sessions.pages.findings import against, shown_interval, whole
from app.sessions.read import IntakeView, SessionRow, SessionView
from app.web.format import byte_size, count, percent, plural, rough_percent, times, worker
from app.web.moments import when
from app.web.parts import ANALYZED_STATE, STATES, Fact, Row, StateLabel

# ---- The row of facts below the verdict, as far as the report has them -------------------------


# Fewer are said in minutes or seconds.
_FEW_GPU_HOURS: Final = 0.01


def verdict_facts(report: Report) -> list[Fact]:
    """Return the facts that come from the report: how slow, what it costs, why."""
    causes = report.causes
    return [
        _slowdown_fact(report),
        _lost_fact(report),
        _cause_fact(causes[0]) if causes else Fact("Cause", "None", "nothing found"),
        _runner_up(causes),
    ]


def _lost_fact(report: Report) -> Fact:
    """Return what is lost: first what the verdict says first."""
    in_steps = "to its causes" if report.headline.kind.without_causes else "to stragglers, by S"
    hint = "In the session, by all ranks together"
    of_all = _lost_by_all(report)
    if not of_all:
        more = f"{_lost(report.lost_gpu_hours_per_hour)} more each hour"
        return Fact(
            "GPU-hours lost", _lost(report.lost_gpu_hours), more, hint=f"{hint}: {in_steps}"
        )
    parts = sorted({**of_all, in_steps: report.lost_gpu_hours}.items(), key=lambda one: -one[1])
    (first, most), *rest = parts
    also = " and ".join(f"{_lost(lost)} {what}" for what, lost in rest)
    return Fact("GPU-hours lost", _lost(most), f"{first}; {also}", hint=hint)


def _lost_by_all(report: Report) -> dict[str, float]:
    """Return what is in no slowdown, GPU-hours, as far as it is worth saying."""
    budget = report.budget
    if budget is None:
        return {}
    known_s = sum(cause.between_s for cause in report.causes)
    shares = {"between steps": lost_between(budget.shares, known_s, report.diagnosis.turn_s)}
    if report.headline.slowdown < STRAGGLING:
        # else it is one of the causes
        shares["as all compute slower"] = budget.shares.slow_together
    gpu_hours = report.sizes.world * budget.wall_s / SECONDS_AN_HOUR
    return {what: gpu_hours * share for what, share in shares.items() if share >= WORTH_SAYING}


def _lost(gpu_hours: float) -> str:
    """Return GPU-hours, the unit left to the label, unless they are next to none."""
    return gpu_time(gpu_hours) if 0 < abs(gpu_hours) < _FEW_GPU_HOURS else hours(gpu_hours)


def known_fact(report: Report) -> Fact | None:
    """Return what the named causes cost where S is withheld; None where none is named."""
    waste = report.known_waste
    if waste is None:
        return None
    return Fact(
        "Known loss",
        percent(waste),
        f"of each step; {hours(report.sizes.world * waste)} GPU-hours each hour",
        hint="What the named causes take of each step, by replay; at least that is lost",
    )


def quality_fact(report: Report) -> Fact:
    """Return whether the report may be believed."""
    fidelity = report.fidelity
    sign = "<" if fidelity.verdict else ">"
    return Fact(
        "Trace quality",
        "Good" if fidelity.verdict else "Poor",
        f"discrepancy {percent(fidelity.discrepancy)} {sign} {percent(fidelity.limit, 0)}",
        hint="Mean recorded step time ÷ replayed − 1; above the limit there is no verdict",
    )


def launch_fact(report: Report) -> Fact:
    """Return the operation type that is launched latest, and the worker that has most of it."""
    shares = report.launch_by_optype
    name = max(shares, key=lambda key: shares[key])
    note = f"{percent(shares[name])} of each step, before it"
    for late in report.fidelity.late_launches:
        if late.op_type == name and late.workers:
            first = late.workers[0]
            note += f"; worker {worker(*first.worker)} alone {percent(first.share)}"
    return Fact("Most launch delay", name, note)


def _slowdown_fact(report: Report) -> Fact:
    """Return the slowdown as everything on the first screen says it."""
    return Fact(
        "Slowdown",
        times(report.headline.slowdown),
        shown_interval(report.headline),
        hint=f"{whole(report.headline)}: {against(report.headline)}",
    )


def _cause_fact(cause: NamedCause, label: str = "Cause") -> Fact:
    share = cause.contribution
    note = "is another possible cause" if share is None else f"explains {rough_percent(share)}"
    if cause.confidence is not None:
        note += f", {sure(cause.confidence)} sure"
    return Fact(label, title_of(cause.cause), note)


def _runner_up(causes: Sequence[NamedCause]) -> Fact:
    label = "Runner-up"
    if len(causes) > 1:
        return _cause_fact(causes[1], label)
    other = causes[0].runner_up if causes else None
    if other is None:
        return Fact(label, "None", "nothing else found")
    return Fact(label, title_of(other), "costs too little to name")


# ---- What pages show of a session that came in chunks ------------------------------------------


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

"""The facts below a session's verdict, and the head of a session's page for each state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

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

# Fewer GPU-hours than this are shown as minutes or seconds.
_FEW_GPU_HOURS: Final = 0.01


def verdict_facts(report: Report) -> list[Fact]:
    """Return the facts of a report: slowdown, GPU-hours lost, leading cause, second cause."""
    causes = report.causes
    return [
        Fact(
            "Slowdown",
            times(report.headline.slowdown),
            shown_interval(report.headline),
            hint=f"{whole(report.headline)}: {against(report.headline)}",
        ),
        _lost_fact(report),
        _cause_fact(causes[0]) if causes else Fact("Cause", "None", "nothing found"),
        _runner_up(causes),
    ]


def _lost_fact(report: Report) -> Fact:
    """Return the fact of lost GPU-hours, the largest loss first."""
    in_steps = "to its causes" if report.headline.kind.without_causes else "to stragglers, by S"
    hint = "In the session, by all ranks together"
    of_all = _lost_by_all(report)
    if not of_all:
        more = f"{_lost(report.lost_gpu_hours_per_hour)} more each hour"
        return Fact(
            "GPU-hours lost", _lost(report.lost_gpu_hours), more, hint=f"{hint}: {in_steps}"
        )
    parts = sorted({**of_all, in_steps: report.lost_gpu_hours}.items(), key=lambda part: -part[1])
    (first, most), *rest = parts
    also = " and ".join(f"{_lost(lost)} {what}" for what, lost in rest)
    return Fact("GPU-hours lost", _lost(most), f"{first}; {also}", hint=hint)


def _lost_by_all(report: Report) -> dict[str, float]:
    """Return the losses in GPU-hours that the slowdown does not include, unless they are small."""
    budget = report.budget
    if budget is None:
        return {}
    known_s = sum(cause.between_s for cause in report.causes)
    shares = {"between steps": lost_between(budget.shares, known_s, report.diagnosis.turn_s)}
    if report.headline.slowdown < STRAGGLING:
        # In a slow job, computing that is slower on all workers is one of the causes instead.
        shares["as all compute slower"] = budget.shares.slow_together
    gpu_hours = report.sizes.world * budget.wall_s / SECONDS_AN_HOUR
    return {what: gpu_hours * share for what, share in shares.items() if share >= WORTH_SAYING}


def _lost(gpu_hours: float) -> str:
    """Return GPU-hours as text without a unit; very few as minutes or seconds with a unit."""
    return gpu_time(gpu_hours) if 0 < abs(gpu_hours) < _FEW_GPU_HOURS else hours(gpu_hours)


def known_fact(report: Report) -> Fact | None:
    """Return the cost of the named causes if S is withheld; None without a cause."""
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
    """Return the trace quality: the replay's discrepancy and its limit."""
    fidelity = report.fidelity
    sign = "<" if fidelity.verdict else ">"
    return Fact(
        "Trace quality",
        "Good" if fidelity.verdict else "Poor",
        f"discrepancy {percent(fidelity.discrepancy)} {sign} {percent(fidelity.limit, 0)}",
        hint="Mean recorded step time ÷ replayed − 1; above the limit there is no verdict",
    )


def launch_fact(report: Report) -> Fact:
    """Return the largest launch delay: its operation type and its worst worker."""
    shares = report.launch_by_optype
    name = max(shares, key=lambda key: shares[key])
    note = f"{percent(shares[name])} of each step, before it"
    for late in report.fidelity.late_launches:
        if late.op_type == name and late.workers:
            first = late.workers[0]
            note += f"; worker {worker(*first.worker)} alone {percent(first.share)}"
    return Fact("Most launch delay", name, note)


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


# Limit of the listed producers or chunks.
NAMED: Final = 6

SEALED_BY: Final = {
    "request": "sealed on request",
    "final": "sealed by the last producer's last chunk",
    "silence": "sealed after a silence",
}


def arrival_facts(row: SessionRow, intake: IntakeView, now: datetime) -> list[Fact]:
    """Return the facts about the progress of an open session's intake."""
    producers = intake.producers
    ready = sum(producer.final for producer in producers)
    names = _some([producer.producer for producer in producers])
    chunks = plural(intake.chunks, "chunk")
    if intake.waiting_chunks:
        chunks += f", {count(intake.waiting_chunks)} waiting"
    return [
        Fact("Operations", count(row.operations), f"in {chunks}"),
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


def refused_facts(intake: IntakeView | None) -> list[Fact]:
    """Return the fact about a session's refused chunks; empty without refused chunks."""
    if intake is None or not intake.refused_chunks:
        return []
    chunks = plural(intake.refused_chunks, "chunk")
    if intake.refused:
        named = [
            f"{refusal.producer}/{refusal.number} ({refusal.code})" for refusal in intake.refused
        ]
        chunks += f": {_some(named)}"
    return [Fact("Refused", byte_size(intake.refused_bytes), chunks)]


def chunk_rows(report: Report) -> tuple[Row, ...]:
    """Return the chunks and producers of a session, and its dropped operations."""
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
        early = [recording.words for recording in chunks.ended_early]
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


# What a user can do about a discarded session, by the code of the session's reason.
REMEDIES: Final = {
    "trace.no_complete_step": ("Send every rank", "a step counts when all of its ranks are there"),
    "trace.dependency_cycle": ("Look at the profiler", "operations wait for each other"),
}
OTHER_REMEDY: Final = ("Correct the trace", "and send it again")


def received_fact(view: SessionView) -> Fact:
    """Return when a session was received."""
    at = view.row.received_at
    return Fact("Received", "", when(at, view.now), moment=at)


def _operations_fact(row: SessionRow) -> Fact:
    return Fact("Operations", count(row.operations), f"in {plural(row.steps, 'step')}")


@dataclass(frozen=True, slots=True)
class Body:
    """The head of a session's page; it depends on the session's state."""

    state: StateLabel
    short: str
    heading: str
    line: tuple[str, ...]
    facts: Sequence[Fact]
    why: str = ""
    ghosts: tuple[str, ...] = ()


def arriving(view: SessionView, intake: IntakeView) -> Body:
    """Return the head of the page for a session that still takes chunks."""
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
    """Return the head of the page for a session that is queued or being analyzed."""
    row, work = view.row, view.work
    attempt = work.attempt if work else 0
    workers = row.dp * row.pp
    facts = [
        _operations_fact(row),
        Fact(
            "Trace",
            byte_size(row.body_bytes),
            FORMATS[row.trace_format].title,
        ),
        received_fact(view),
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
    """Return the head of the page for a session whose report retention has deleted."""
    row = view.row
    shown = row.headline
    sentence = row.verdict.sentence if row.verdict is not None else "The report was deleted"
    facts = [
        Fact("Slowdown", "none" if shown is None else times(shown.slowdown), "as it was reported"),
        _operations_fact(row),
        received_fact(view),
    ]
    return Body(
        state=STATES.get(row.state, ANALYZED_STATE),
        short="report not kept",
        heading=sentence,
        line=(FORMATS[row.trace_format].title, byte_size(row.body_bytes)),
        facts=facts,
    )


def ended(view: SessionView) -> Body:
    """Return the head of the page for a discarded or failed session: the reason and the remedy."""
    row, work = view.row, view.work
    reason = row.reason or "the reason was not recorded"
    code = row.reason_code or (work.error_code if work else None) or "unknown"
    failed = row.state == SessionState.FAILED
    word = "Analysis failed" if failed else "Discarded"
    facts = [Fact("Code", code)]
    if work is not None:
        facts.append(Fact("Attempts", count(work.attempt)))
    facts += [
        _operations_fact(row),
        received_fact(view),
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
    """Return the faults of a session's trace: code, message and position."""
    faults = (view.reason_detail or {}).get("faults") or []
    places = ("file", "row", "line", "column")
    return tuple(
        Row(
            fault.get("code", ""),
            fault.get("message", ""),
            ", ".join(f"{place} {fault[place]}" for place in places if place in fault),
        )
        for fault in faults
    )

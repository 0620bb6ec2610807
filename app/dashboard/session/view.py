"""What the page of one session shows, whatever state it is in."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from markupsafe import Markup

from app.analysis.report.document import Report
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.unmapped import said
from app.dashboard.alerts.parts import Actions
from app.dashboard.session.facts import (
    known_fact,
    launch_fact,
    quality_fact,
    verdict_facts,
)
from app.dashboard.session.kept import Kept, kept
from app.dashboard.session.report import ReportView
from app.dashboard.session.states import Body, arriving, ended, fault_rows, underway, without_report
from app.dashboard.session.tables import unmapped_rows
from app.dashboard.ui.format import (
    age,
    byte_size,
    percent,
    plural,
    seconds,
    sizes,
    times,
)
from app.dashboard.ui.moments import when
from app.dashboard.ui.parts import (
    ANALYZED_STATE,
    SLOW_STATE,
    STATES,
    Fact,
    Row,
    StateLabel,
    sparkline,
    verdict_values,
)
from app.db.states import SessionState

if TYPE_CHECKING:
    from app.services.alerts.onset import Onset
    from app.services.sessions.history import Around
    from app.services.sessions.read import SessionRow, SessionView


@dataclass(frozen=True, slots=True)
class Neighbor:
    """The session before or after this one."""

    number: int
    url: str


@dataclass(frozen=True, slots=True)
class SessionPage:
    """The page of a session; `report` is None while, or where, there is none."""

    id: uuid.UUID
    now: datetime
    title: str
    job: str
    job_url: str
    number: int
    sizes: str
    before: Neighbor | None
    after: Neighbor | None
    status: SessionState
    state: StateLabel
    line: tuple[str, ...]
    heading: str
    facts: tuple[Fact, ...]
    why: str
    faults: tuple[Row, ...]
    unmapped: tuple[Row, ...]
    ghosts: tuple[str, ...]
    report: ReportView | None
    incidents: Sequence[Actions]
    kept: Kept


def session_page(  # noqa: PLR0913 - everything that is on it
    view: SessionView,
    around: Around,
    report: Report | None,
    shown: ReportView | None,
    *,
    onset: Onset | None,
    max_attempts: int,
    incidents: Sequence[Actions],
) -> SessionPage:
    """Return the page of a session.

    Parameters
    ----------
    onset : Onset or None
        Since when the job had been slow by then; None where it was not.
    max_attempts : int
        Attempts after which an analysis is given up.
    """
    row = view.row
    body = _body(view, around, onset, report, max_attempts)
    # What the sender said, before there is a report of it.
    hosts = set((view.meta.get("hosts", {}) if report is None else report.hosts).values())
    gpus = plural(row.world, "GPU")
    where = f"{gpus} on {plural(len(hosts), 'host')}" if hosts else gpus
    return SessionPage(
        id=row.id,
        now=view.now,
        title=f"{row.job}, session {row.number}: {body.short}",
        job=row.job,
        job_url=f"/jobs/{quote(row.job)}",
        number=row.number,
        sizes=f"{sizes(row.dp, row.pp, row.tp, row.cp, row.vpp)} · {where}",
        before=_neighbor(around.sessions[-2] if len(around.sessions) > 1 else None),
        after=_neighbor(around.after),
        status=row.state,
        state=body.state,
        line=body.line,
        heading=body.heading,
        facts=tuple(body.facts),
        why=body.why,
        faults=fault_rows(view),
        # With a report it is among what that covers.
        unmapped=unmapped_rows(said(view.meta)) if report is None else (),
        ghosts=body.ghosts,
        report=shown,
        incidents=incidents,
        kept=kept(view),
    )


def _body(
    view: SessionView,
    around: Around,
    onset: Onset | None,
    report: Report | None,
    max_attempts: int,
) -> Body:
    state = view.row.state
    if state == SessionState.ANALYZED and report is not None:
        return _analyzed(view, around, onset, report)
    if state == SessionState.NO_VERDICT and report is not None:
        return _no_verdict(view, report)
    if state == SessionState.OPEN and view.intake is not None:
        return arriving(view, view.intake)
    if state in SessionState.UNDERWAY:
        return underway(view, max_attempts)
    if state in SessionState.REPORTED:
        return without_report(view)
    return ended(view)


def _analyzed(view: SessionView, around: Around, onset: Onset | None, report: Report) -> Body:
    row, steps = view.row, report.steps.analyzed
    slow = report.verdict.level == "slow"
    facts = verdict_facts(report)
    facts.append(_before(view, around) if onset is None else _since(view, around, onset))
    facts.append(quality_fact(report))
    facts.append(
        Fact(
            "Data age",
            "",
            Markup("last step {}, {}").format(steps[-1], when(row.received_at, view.now)),
            moment=row.received_at,
        )
    )
    return Body(
        state=SLOW_STATE if slow else ANALYZED_STATE,
        short=_short(report),
        heading=report.verdict.sentence,
        line=(
            f"{plural(len(steps), 'step')}, {plural(row.operations, 'operation')}",
            f"{FORMATS[row.trace_format].title}, {byte_size(row.body_bytes)}",
        ),
        facts=facts,
    )


def _short(report: Report) -> str:
    text = f"{times(report.headline.slowdown)} slower"
    causes = report.causes
    if report.verdict.level == "slow" and causes:
        workers = causes[0].where.workers
        if len(workers) == 1:
            return f"{text}, worker ({workers[0][0]}, {workers[0][1]})"
    return text


def _before(view: SessionView, around: Around) -> Fact:
    """Return the slowdown of the session before, and of all of them as a sparkline."""
    *earlier, _ = around.sessions
    if not earlier:
        return Fact("Before", "First session", "nothing to compare with")
    with_verdict = [session for session in earlier if session.headline is not None]
    if not with_verdict:
        last = earlier[-1]
        word = STATES[last.state].word if last.state in STATES else "without a verdict"
        return Fact("Before", "No verdict", f"session {last.number}: {word.lower()}")
    last = with_verdict[-1]
    assert last.headline is not None  # noqa: S101 - selected so
    passed_s = (view.row.received_at - last.received_at).total_seconds()
    return Fact(
        "Before",
        times(last.headline.slowdown),
        f"session {last.number}, {age(passed_s)} earlier",
        spark=sparkline(verdict_values(around.sessions)),
    )


def _since(view: SessionView, around: Around, onset: Onset) -> Fact:
    """Return since when the job is slow, and what it was before."""
    was = "the first with a verdict" if onset.was is None else f"was {times(onset.was)}"
    return Fact(
        "Since",
        f"Session {onset.number}",
        Markup("{}, {}").format(when(onset.at, view.now), was),
        spark=sparkline(verdict_values(around.sessions)),
    )


def _no_verdict(view: SessionView, report: Report) -> Body:
    row = view.row
    if not report.fidelity.replayed:
        return _unreplayed(view, report)
    recorded, simulated = (
        report.step_times.recorded,
        report.step_times.simulated,
    )
    facts = [
        Fact(
            "Step recorded",
            seconds(sum(recorded) / len(recorded)),
            f"mean of {plural(len(recorded), 'step')}",
        ),
        Fact(
            "Step replayed",
            seconds(sum(simulated) / len(simulated)),
            "without launch delays",
        ),
    ]
    known = known_fact(report)
    facts += [known] if known else []
    facts += [quality_fact(report), launch_fact(report)]
    facts.append(Fact("Received", "", when(row.received_at, view.now), moment=row.received_at))
    return Body(
        state=STATES[SessionState.NO_VERDICT],
        short="no verdict",
        heading=report.verdict.sentence,
        line=(
            plural(row.operations, "operation"),
            "a cause is known" if report.causes else "no cause is named",
        ),
        facts=facts,
        why=_why_no_more(report),
    )


def _unreplayed(view: SessionView, report: Report) -> Body:
    """Return the head of a page that shows who comes last, and no slowdown."""
    row, found, recorded = view.row, report.arrivals, report.step_times.recorded
    facts = [
        Fact(
            "Step recorded",
            seconds(sum(recorded) / len(recorded)),
            f"mean of {plural(len(recorded), 'step')}",
        )
    ]
    if found is not None:
        worst = found.worst
        facts += [
            Fact("Comes last", f"Rank {worst.rank}", f"at {percent(worst.last_share, 0)} of all"),
            Fact("Others wait", seconds(worst.waited_for_s), "for it, each of them in a step"),
        ]
    facts.append(Fact("Received", "", when(row.received_at, view.now), moment=row.received_at))
    return Body(
        state=STATES[SessionState.NO_VERDICT],
        short="no slowdown" if found is None else found.sentence,
        heading=report.verdict.sentence,
        line=(plural(row.operations, "operation"), "arrivals and breakdown alone"),
        facts=facts,
        why=report.fidelity.reason or "",
    )


def _why_no_more(report: Report) -> str:
    fixable = bool(report.recommendations)
    shown = "the cause and its fix, " if fixable else ""
    off = "S and the map" if fixable else "S, the map and fixes"
    return (
        f"Recorded times, {shown}launch delays and coverage are shown below. {off} are not: they "
        "would rest on a replay that is off."
    )


def _neighbor(session: SessionRow | None) -> Neighbor | None:
    return None if session is None else Neighbor(session.number, f"/sessions/{session.id}")

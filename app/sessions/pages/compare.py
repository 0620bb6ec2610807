"""The page that compares two sessions, its CSV files, and the routes of comparisons."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.guard import RequestContainer
from app.analysis.diagnosis.causes.registry import blames_machine, title_of
from app.analysis.report.document import Recommendation, Report
from app.analysis.report.session_verdict import blamed_gpus
from app.analysis.wording import hours
from app.errors import NotFoundError
from app.platform.database.unit_of_work import Reads
from app.sessions.compare import (
    ArrivalChange,
    CauseCount,
    Comparison,
    Side,
    TimesComparison,
    compare_sessions,
    compare_times,
    latest_two,
    sessions_of_incident,
)
from app.sessions.compare_steps import CauseChange, Change, Difference, FieldChange
from app.sessions.pages.compare_parts import (
    ARRIVALS,
    MOST_WORKERS,
    RANKS,
    WORKERS,
    WORTH,
    Histogram,
    WorkerChange,
    all_workers,
    arrivals_title,
    bounds_of,
    chance,
    change_s,
    changed_causes,
    difference_fact,
    histogram,
    map_title,
    moved_workers,
    slowdowns,
    step_time_fact,
    times_page,
    workers_title,
)
from app.web import html
from app.web.format import count, listing, percent, plural, sizes, times, worker
from app.web.links import QueryText, compare_url
from app.web.lists import in_files
from app.web.moments import Form, When
from app.web.pages import Pages
from app.web.parts import Fact
from app.web.tables import Cell, Drawn, Line, Shown, Table, csv_file, drawn, one_of

# Limit of the listed metadata fields.
FIELDS: Final = 40
# Limit of the hosts listed for a cause that moved to other hosts.
MOVED: Final = 2


@dataclass(frozen=True, slots=True)
class SideView:
    """One of the two compared sessions, as the page shows it."""

    url: str
    number: int
    received_at: datetime
    title: str
    note: str


@dataclass(frozen=True, slots=True)
class Option:
    """A session in the list from which users choose the sides of the comparison."""

    id: str
    label: str
    is_a: bool
    is_b: bool
    received: When | None = None  # time in the label; None if the label has no time


@dataclass(frozen=True, slots=True)
class ComparePage:
    """The contents of the page that compares two sessions."""

    now: datetime
    title: str
    heading: str
    resolved: str
    why: str
    job: str
    sizes: str
    facts: Sequence[Fact]
    a: SideView
    b: SideView
    options: Sequence[Option]
    swap_url: str
    data: Mapping[str, Any] | None
    map_title: str
    histogram: Histogram | None
    histogram_title: str
    steps_csv: str  # URL
    causes: Drawn
    causes_title: str
    arrivals: Drawn
    arrivals_title: str
    workers: Drawn
    workers_title: str
    fields: Drawn  # its last row counts the equal fields
    fields_title: str


def compare_page(comparison: Comparison) -> ComparePage:
    """Return the page that compares two sessions."""
    a, b, steps = comparison.a, comparison.b, comparison.step_times
    fix = _fix(comparison)
    # A fix's predicted gain is compared with the measured one only if the fix was applied.
    done = fix is not None and (fix.title in comparison.applied or comparison.incident is not None)
    moved = moved_workers(comparison)
    gone, came = (
        [title_of(cause.cause) for cause in comparison.causes if cause.change is change]
        for change in (Change.GONE, Change.CAME)
    )
    metadata = comparison.metadata
    changed, fields = len(metadata.changed), len(metadata.changed) + metadata.equal
    query = compare_url(a.row.id, b.row.id).partition("?")[2]

    def csv(name: str) -> str:
        return f"/compare/{name}.csv?{query}"

    fields_table = drawn(
        _FIELDS, metadata.changed[:FIELDS], csv=csv("metadata"), classes="plain fields"
    )
    equal = Line([Cell(f"{plural(metadata.equal, 'other field')} equal", "muted", span=3)])
    return ComparePage(
        now=comparison.now,
        title=f"{a.row.job}: {_name(a, b)} against {_name(b, a)}",
        heading=_heading(comparison, fix if done else None),
        resolved=_resolved(comparison, fix),
        why=""
        if steps
        else listing(
            [
                f"session {count(side.row.number)} is {side.row.state.replace('_', ' ')}"
                for side in (a, b)
                if side.report is None
            ]
        ),
        job=a.row.job,
        sizes=sizes(b.row.dp, b.row.pp, b.row.tp, b.row.cp, b.row.vpp)
        + f" · {plural(b.row.world, 'GPU')}",
        facts=_facts(comparison, (gone, came), fix, done=done),
        a=_side(a, "Before"),
        b=_side(b, "After"),
        options=_options(comparison),
        swap_url=compare_url(b.row.id, a.row.id),
        data=slowdowns(comparison) if steps and comparison.same_shape else None,
        map_title=map_title(comparison, moved),
        histogram=_histogram(a, b, fix if done else None),
        histogram_title=""
        if steps is None
        else f"The mean step changed by {change_s(steps.change_s)}"
        if steps.real
        else "Step times overlap",
        steps_csv=csv("steps"),
        causes=drawn(_CAUSES, comparison.causes, csv=csv("causes"), classes="plain changes"),
        causes_title=changed_causes(gone, came)
        if comparison.causes
        else "Neither session has a cause",
        arrivals=drawn(ARRIVALS, comparison.arrivals[:RANKS], csv=csv("arrivals")),
        arrivals_title=arrivals_title(comparison),
        workers=drawn(WORKERS, moved[:MOST_WORKERS], csv=csv("workers")),
        workers_title=workers_title(moved),
        fields=replace(fields_table, lines=[*fields_table.lines, equal]),
        fields_title=f"{count(changed) if changed else 'None'} of "
        f"{plural(fields, 'metadata field')} changed",
    )


_MARKS: Final = {Change.GONE: "resolved", Change.CAME: "warn", Change.MORE: "warn"}


def _change(cause: CauseChange) -> str:
    word = "about the same" if cause.change is Change.SAME else str(cause.change)
    return html.glyph(_MARKS[cause.change], word) if cause.change in _MARKS else word


def _share(value: float | None) -> str:
    return "not named" if value is None else percent(value)


_CAUSES: Final[tuple[Shown[CauseChange], ...]] = (
    Shown("Cause", lambda cause: title_of(cause.cause)),
    Shown("Before", lambda cause: _share(cause.before), classes="num"),
    Shown("After", lambda cause: _share(cause.after), classes="num"),
    Shown("Change", _change),
)
_FIELDS: Final[tuple[Shown[FieldChange], ...]] = (
    Shown("Field", lambda field: field.field, of_cells="grow"),
    Shown("Before", lambda field: html.element("del", field.before or "none"), of_cells="grow"),
    Shown("After", lambda field: html.element("b", field.after or "none"), of_cells="grow"),
)


def _name(side: Side, other: Side) -> str:
    job = "" if side.row.job == other.row.job else f" of {side.row.job}"
    return f"session {count(side.row.number)}{job}"


def _signed(share: float) -> str:
    return percent(share) if share < 0 else f"+{percent(share)}"


def _fix(comparison: Comparison) -> Recommendation | None:
    """Return the fix with the largest predicted gain, if possible among the applied fixes.

    Fixes whose gain is only an upper bound are left out.
    """
    if comparison.a.report is None:
        return None
    promised = [fix for fix in comparison.a.report.recommendations if not fix.at_most]
    promised = [fix for fix in promised if fix.title in comparison.applied] or promised
    return max(promised, key=lambda fix: fix.predicted_gain, default=None)


def _heading(comparison: Comparison, fix: Recommendation | None) -> str:
    steps = comparison.step_times
    if steps is None:
        return "At least one session has no verdict: steps and causes cannot be compared"
    who = f"{_name(comparison.b, comparison.a)} takes".capitalize()
    if not steps.real:
        return f"{who} as long as {_name(comparison.a, comparison.b)}: no difference can be shown"
    faster = steps.change < 0
    text = f"Steps are {percent(abs(steps.change))} {'faster' if faster else 'slower'}"
    if fix is None or not faster:
        return f"{text} than in {_name(comparison.a, comparison.b)}"
    return f"{text}; the best fix was predicted to bring {percent(fix.predicted_gain)}"


def _resolved(comparison: Comparison, fix: Recommendation | None) -> str:
    if comparison.incident is None:
        return ""
    steps = comparison.step_times
    if fix is None or steps is None or fix.predicted_gain <= 0:
        return "Resolved: nothing was predicted"
    share = -steps.change / fix.predicted_gain
    return f"Resolved: {percent(max(share, 0.0), 0)} of the predicted gain was realised"


def _facts(
    comparison: Comparison,
    gone_and_came: tuple[list[str], list[str]],
    fix: Recommendation | None,
    *,
    done: bool,
) -> list[Fact]:
    steps, a, b = comparison.step_times, comparison.a.report, comparison.b.report
    if steps is None or a is None or b is None:
        return []
    gone, came = gone_and_came
    return [
        step_time_fact(steps),
        Fact(
            "Slowdown",
            times(b.headline.slowdown, 3),
            f"was {times(a.headline.slowdown, 3)}",
            "Against the job without its causes, else S",
        ),
        Fact(
            "Lost each hour",
            hours(b.lost_gpu_hours_per_hour),
            f"was {hours(a.lost_gpu_hours_per_hour)} GPU-hours",
        ),
        difference_fact(steps, "step", "Of the means; bootstrap interval over the steps of both"),
        Fact("Chance or change?", *chance(steps)),
        _moved(a, b)
        or Fact(
            "Causes",
            f"{listing(gone) or 'None'} gone, {listing(came).lower() or 'none'} new",
            "causes over 1\N{NO-BREAK SPACE}% of a step",
        ),
        _predicted(steps, fix, done=done),
    ]


def _moved(a: Report, b: Report) -> Fact | None:
    """Return the cause that moved to other hosts; None if no cause moved."""
    before, after = _hosts_by_cause(a), _hosts_by_cause(b)
    for cause, hosts in before.items():
        now = after.get(cause, ())
        if hosts and now and not set(hosts) & set(now):
            where = f"{listing(list(hosts[:MOVED]))} → {listing(list(now[:MOVED]))}"
            return Fact("Moved", title_of(cause), where, "The same cause on other hosts")
    return None


def _hosts_by_cause(report: Report) -> dict[str, tuple[str, ...]]:
    hosts_by_cause: dict[str, tuple[str, ...]] = {}
    for cause in report.causes:
        if blames_machine(cause.cause):
            hosts = (gpu.host_words for gpu in blamed_gpus(report, cause.where))
            hosts_by_cause[cause.cause] = tuple(dict.fromkeys(host for host in hosts if host))
    return hosts_by_cause


def _predicted(steps: Difference, fix: Recommendation | None, *, done: bool) -> Fact:
    if fix is None:
        return Fact("Predicted", "nothing", "the session before had no fix with a certain gain")
    if not done:
        gain = _signed(-fix.predicted_gain)
        return Fact("Best fix then", gain, f"{fix.title}; not marked as applied")
    return Fact(
        "Predicted",
        _signed(-fix.predicted_gain),
        f"{fix.title}; measured {_signed(steps.change)}",
    )


def _side(side: Side, word: str) -> SideView:
    row, report = side.row, side.report
    state = row.state.replace("_", " ") if report is None else _worst(report)
    return SideView(
        url=f"/sessions/{row.id}",
        number=row.number,
        received_at=row.received_at,
        title=f"{word}: {state}",
        note=f"Slowdown of each worker alone, session {count(row.number)}",
    )


def _worst(report: Report) -> str:
    slowdown, dp, pp = report.worst_worker()
    if slowdown < 1 + WORTH:
        return f"no worker above {times(1 + WORTH)}"
    host = report.machine(report.rank_of((dp, pp))).called
    return f"worker {worker(dp, pp)} alone {times(slowdown)}{f', on {host}' if host else ''}"


def _options(comparison: Comparison) -> list[Option]:
    received = {
        choice.id: When(choice.received_at, Form.SHORT, comparison.now)
        for choice in comparison.choices
    }
    options = {
        choice.id: Option(
            id=str(choice.id),
            label=f"session {count(choice.number)} · attempt {choice.attempt} · "
            f"{received[choice.id].text}"
            + ("" if choice.slowdown is None else f" · {times(choice.slowdown, 3)}"),
            received=received[choice.id],
            is_a=choice.id == comparison.a.row.id,
            is_b=choice.id == comparison.b.row.id,
        )
        for choice in comparison.choices
    }
    # The list has the job's latest sessions, to which the compared sessions may not belong.
    for side in (comparison.a, comparison.b):
        row = side.row
        options.setdefault(
            row.id,
            Option(
                str(row.id),
                f"{row.job}, session {count(row.number)}",
                row.id == comparison.a.row.id,
                row.id == comparison.b.row.id,
            ),
        )
    return list(options.values())


def _histogram(a: Side, b: Side, fix: Recommendation | None) -> Histogram | None:
    if a.report is None or b.report is None:
        return None
    recorded = a.report.step_times.recorded
    mean = sum(recorded) / len(recorded)
    predicted = None if fix is None else mean * (1 - fix.predicted_gain)
    return histogram(recorded, b.report.step_times.recorded, predicted)


def workers_csv(comparison: Comparison) -> Table:
    """Return each worker's slowdown and host in both sessions; no rows without a verdict."""
    return Table.of(WorkerChange, all_workers(comparison), *in_files(WorkerChange), "change")


def steps_csv(comparison: Comparison) -> Table:
    """Return the recorded time of each step in both sessions."""
    return Table(
        ("session", "step", "recorded_s"),
        (
            (side.row.number, step, time)
            for side in (comparison.a, comparison.b)
            if side.report is not None
            for step, time in zip(
                side.report.steps.analyzed, side.report.step_times.recorded, strict=True
            )
        ),
    )


def causes_csv(comparison: Comparison) -> Table:
    """Return the cost of each cause in both sessions, as a share of a step."""
    return Table(
        ("cause", "share_before", "share_after", "change"),
        ((cause.cause, cause.before, cause.after, cause.change) for cause in comparison.causes),
    )


def arrivals_csv(comparison: Comparison) -> Table:
    """Return the time that others wait for each rank in both sessions."""
    return Table.of(ArrivalChange, comparison.arrivals, *in_files(ArrivalChange), "change_s")


def metadata_csv(comparison: Comparison) -> Table:
    """Return the metadata fields with different values in the two sessions."""
    return Table.of(FieldChange, comparison.metadata.changed)


# CSV tables of the comparison of two sessions, by file name.
EXPORTS: Final[Mapping[str, Callable[[Comparison], Table]]] = {
    "workers": workers_csv,
    "steps": steps_csv,
    "causes": causes_csv,
    "arrivals": arrivals_csv,
    "metadata": metadata_csv,
}

# CSV tables of the comparison of two time ranges, by file name.
OF_TIMES: Final[Mapping[str, Callable[[TimesComparison], Table]]] = {
    "causes": lambda comparison: Table.of(CauseCount, comparison.causes),
}


def add_compare_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of comparisons to the dashboard."""

    @routes.get("/compare")
    def compare_route(
        container: RequestContainer,
        *,
        a: QueryText = "",
        b: QueryText = "",
        incident: QueryText = "",
        job: QueryText = "",
    ) -> Response:
        with pages.reading(container) as (tx, nav):
            if not (a or b or incident or job):
                return pages.render("sessions/compare/choose.html", nav, now=tx.now)
            try:
                comparison = _selected(tx, a, b, incident, job)
            except (ValueError, NotFoundError):
                return pages.not_found(_selection(a, b, incident, job), nav)
        page = compare_page(comparison)
        return pages.render("sessions/compare/page.html", nav, page=page, now=comparison.now)

    @routes.get("/compare/times")
    def compare_times_route(  # noqa: PLR0913 - what an address may ask for
        container: RequestContainer,
        *,
        job: QueryText = "",
        a_from: QueryText = "",
        a_to: QueryText = "",
        b_from: QueryText = "",
        b_to: QueryText = "",
    ) -> Response:
        with pages.reading(container) as (tx, nav):
            if not job:
                return pages.render("sessions/compare/choose.html", nav, now=tx.now)
            bounds = bounds_of((a_from, a_to, b_from, b_to), tx.now)
            try:
                comparison = compare_times(tx, job, *bounds)
            except NotFoundError:
                return pages.not_found(f"job {job}", nav)
        page = times_page(comparison)
        return pages.render("sessions/compare/times.html", nav, page=page, now=comparison.now)

    @routes.get("/compare/{name}.csv")
    def compare_file_route(
        container: RequestContainer, name: str, a: uuid.UUID, b: uuid.UUID
    ) -> Response:
        make = one_of(EXPORTS, name)
        with container.reading() as tx:
            comparison = compare_sessions(tx, a, b)
        file_name = (
            f"paceline-compare-{comparison.a.row.number}-{comparison.b.row.number}-{name}.csv"
        )
        return csv_file(file_name, make(comparison))

    @routes.get("/compare/times/{name}.csv")
    def compare_times_file_route(  # noqa: PLR0913 - what an address may ask for
        container: RequestContainer,
        name: str,
        job: str,
        *,
        a_from: QueryText = "",
        a_to: QueryText = "",
        b_from: QueryText = "",
        b_to: QueryText = "",
    ) -> Response:
        make = one_of(OF_TIMES, name)
        with container.reading() as tx:
            bounds = bounds_of((a_from, a_to, b_from, b_to), tx.now)
            comparison = compare_times(tx, job, *bounds)
        return csv_file(f"paceline-compare-times-{name}.csv", make(comparison))


def _selected(tx: Reads, a: str, b: str, incident: str, job: str) -> Comparison:
    """Return the comparison that a query selects: two sessions, an incident, or a job's last two.

    Raises
    ------
    ValueError
        An id is malformed.
    NotFoundError
        The sessions, the incident or the job do not exist, or the job has too few sessions.
    """
    if incident:
        first, second, over = sessions_of_incident(tx, uuid.UUID(incident))
        return compare_sessions(tx, first, second, over)
    if job and not (a and b):
        return compare_sessions(tx, *latest_two(tx, job))
    return compare_sessions(tx, uuid.UUID(a), uuid.UUID(b))


def _selection(a: str, b: str, incident: str, job: str) -> str:
    """Return what a query selects, in words."""
    if incident:
        return f"incident {incident} with sessions before and after it"
    if job:
        return f"pair of sessions with a verdict of job {job}"
    return f"pair of sessions {a or 'a'} and {b or 'b'} to compare"

"""What the page of a comparison shows: did it get faster, why, and what else changed."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.guard import Here
from app.analysis.diagnosis.causes.registry import blames_machine, title_of
from app.analysis.report.document import Recommendation, Report
from app.analysis.report.session_verdict import blamed_gpus
from app.analysis.wording import hours
from app.errors import NotFoundError
from app.platform.database.unit_of_work import Reads
from app.sessions.compare import (
    CauseCount,
    Comparison,
    Side,
    TimesComparison,
    compare_sessions,
    compare_times,
    latest_two,
    sessions_of_incident,
)
from app.sessions.compare_steps import CauseChange, Change, Difference
from app.sessions.pages.compare_parts import (
    WORKERS,
    WORTH,
    ArrivalLine,
    Histogram,
    WorkerLine,
    arrival_lines,
    arrivals_title,
    bounds_of,
    chance,
    change_s,
    histogram,
    map_title,
    moved_workers,
    slowdowns,
    times_page,
    worker_line,
    workers_title,
)
from app.web.format import count, listing, percent, plural, seconds, sizes, times, worker
from app.web.links import QueryText, compare_url
from app.web.moments import Form, When
from app.web.pages import Pages
from app.web.parts import Fact
from app.web.tables import Table, csv_file, one_of

# Fields that are listed.
FIELDS: Final = 40


# Hosts that are named of a cause that moved.
MOVED: Final = 2


@dataclass(frozen=True, slots=True)
class SideView:
    """One session of the two."""

    url: str
    number: int
    attempt: int
    received_at: datetime
    title: str
    note: str


@dataclass(frozen=True, slots=True)
class Option:
    """A session to choose."""

    id: str
    label: str
    is_a: bool
    is_b: bool
    received: When | None = None  # where it is in the label


@dataclass(frozen=True, slots=True)
class CauseLine:
    """A cause in both sessions; `mark` is a glyph where it went or came."""

    cause: str
    before: str
    after: str
    change: str
    mark: str


@dataclass(frozen=True, slots=True)
class FieldLine:
    """A field of the metadata that differs."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ComparePage:
    """The page of a comparison."""

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
    query: str
    data: Mapping[str, Any] | None
    map_title: str
    histogram: Histogram | None
    histogram_title: str
    histogram_note: str
    causes: Sequence[CauseLine]
    causes_title: str
    arrivals: Sequence[ArrivalLine]
    arrivals_title: str
    workers: Sequence[WorkerLine]
    workers_title: str
    fields: Sequence[FieldLine]
    fields_title: str
    equal: str


def compare_page(found: Comparison) -> ComparePage:
    """Return the page of a comparison."""
    a, b, steps = found.a, found.b, found.step_times
    fix = _fix(found)
    # What was predicted is held against what was measured only where it was done.
    done = fix is not None and (fix.title in found.applied or found.incident is not None)
    moved = moved_workers(found)
    place = compare_url(a.row.id, b.row.id)
    return ComparePage(
        now=found.now,
        title=f"{a.row.job}: {_name(a, b)} against {_name(b, a)}",
        heading=_heading(found, fix if done else None),
        resolved=_resolved(found, fix),
        why="" if steps else _missing(found),
        job=a.row.job,
        sizes=sizes(b.row.dp, b.row.pp, b.row.tp, b.row.cp, b.row.vpp)
        + f" · {plural(b.row.world, 'GPU')}",
        facts=_facts(found, fix, done=done),
        a=_side(a, "Before"),
        b=_side(b, "After"),
        options=_options(found),
        swap_url=compare_url(b.row.id, a.row.id),
        query=place.partition("?")[2],
        data=slowdowns(found) if steps and found.same_shape else None,
        map_title=map_title(found, moved),
        histogram=_histogram(a, b, fix if done else None),
        histogram_title=_histogram_title(steps),
        histogram_note="Steps by recorded time; gray before, blue after",
        causes=[_cause(one) for one in found.causes],
        causes_title=_causes_title(found),
        arrivals=arrival_lines(found),
        arrivals_title=arrivals_title(found),
        workers=[worker_line(found, *cell) for cell in moved[:WORKERS]],
        workers_title=workers_title(moved),
        fields=[
            FieldLine(one.field, one.before or "none", one.after or "none")
            for one in found.metadata.changed[:FIELDS]
        ],
        fields_title=_fields_title(found),
        equal=f"{plural(found.metadata.equal, 'other field')} equal",
    )


def _name(side: Side, other: Side) -> str:
    job = "" if side.row.job == other.row.job else f" of {side.row.job}"
    return f"session {count(side.row.number)}{job}"


def _signed(share: float) -> str:
    return percent(share) if share < 0 else f"+{percent(share)}"


def _fix(found: Comparison) -> Recommendation | None:
    """Return the fix of which the most was promised, of the applied ones where there are any.

    A bound is no promise.
    """
    if found.a.report is None:
        return None
    promised = [one for one in found.a.report.recommendations if not one.at_most]
    promised = [one for one in promised if one.title in found.applied] or promised
    return max(promised, key=lambda one: one.predicted_gain, default=None)


def _heading(found: Comparison, fix: Recommendation | None) -> str:
    steps = found.step_times
    if steps is None:
        return "At least one session has no verdict: steps and causes cannot be compared"
    who = f"{_name(found.b, found.a)} takes".capitalize()
    if not steps.real:
        return f"{who} as long as {_name(found.a, found.b)}: no difference can be shown"
    faster = steps.change < 0
    text = f"Steps are {percent(abs(steps.change))} {'faster' if faster else 'slower'}"
    if fix is None or not faster:
        return f"{text} than in {_name(found.a, found.b)}"
    return f"{text}; the best fix was predicted to bring {percent(fix.predicted_gain)}"


def _resolved(found: Comparison, fix: Recommendation | None) -> str:
    if found.incident is None:
        return ""
    steps = found.step_times
    if fix is None or steps is None or fix.predicted_gain <= 0:
        return "Resolved: nothing was predicted"
    share = -steps.change / fix.predicted_gain
    return f"Resolved: {percent(max(share, 0.0), 0)} of the predicted gain was realised"


def _missing(found: Comparison) -> str:
    return listing(
        [
            f"session {count(side.row.number)} is {side.row.state.replace('_', ' ')}"
            for side in (found.a, found.b)
            if side.report is None
        ]
    )


def _facts(found: Comparison, fix: Recommendation | None, *, done: bool) -> list[Fact]:
    steps, a, b = found.step_times, found.a.report, found.b.report
    if steps is None or a is None or b is None:
        return []
    low, high = steps.ci95_s or (None, None)
    gone = [title_of(one.cause) for one in found.causes if one.change is Change.GONE]
    came = [title_of(one.cause) for one in found.causes if one.change is Change.CAME]
    return [
        Fact("Step time", seconds(steps.after_s), f"was {seconds(steps.before_s)}"),
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
        Fact(
            "Difference",
            change_s(steps.change_s),
            "too few steps for an interval"
            if low is None or high is None
            else f"95\N{NO-BREAK SPACE}%: {change_s(low)} to {change_s(high)}",
            "Of the means; bootstrap interval over the steps of both",
        ),
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
    """Return which cause is on other machines now; None where each stayed, came or went."""
    before, after = _hosts_by_cause(a), _hosts_by_cause(b)
    for cause, hosts in before.items():
        now = after.get(cause, ())
        if hosts and now and not set(hosts) & set(now):
            where = f"{listing(list(hosts[:MOVED]))} → {listing(list(now[:MOVED]))}"
            return Fact("Moved", title_of(cause), where, "The same cause on other hosts")
    return None


def _hosts_by_cause(report: Report) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for cause in report.causes:
        if blames_machine(cause.cause):
            hosts = (gpu.host_words for gpu in blamed_gpus(report, cause.where))
            found[cause.cause] = tuple(dict.fromkeys(host for host in hosts if host))
    return found


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
    said = row.state.replace("_", " ") if report is None else _worst(report)
    return SideView(
        url=f"/sessions/{row.id}",
        number=row.number,
        attempt=row.attempt,
        received_at=row.received_at,
        title=f"{word}: {said}",
        note=f"Slowdown of each worker alone, session {count(row.number)}",
    )


def _worst(report: Report) -> str:
    slowdown, dp, pp = report.worst_worker()
    if slowdown < 1 + WORTH:
        return f"no worker above {times(1 + WORTH)}"
    host = report.machine(report.rank_of((dp, pp))).called
    return f"worker {worker(dp, pp)} alone {times(slowdown)}{f', on {host}' if host else ''}"


def _options(found: Comparison) -> list[Option]:
    received = {one.id: When(one.received_at, Form.SHORT, found.now) for one in found.choices}
    known = {
        choice.id: Option(
            id=str(choice.id),
            label=f"session {count(choice.number)} · attempt {choice.attempt} · "
            f"{received[choice.id].text}"
            + ("" if choice.slowdown is None else f" · {times(choice.slowdown, 3)}"),
            received=received[choice.id],
            is_a=choice.id == found.a.row.id,
            is_b=choice.id == found.b.row.id,
        )
        for choice in found.choices
    }
    # Those that are compared can be chosen even where they are not among the latest.
    for side in (found.a, found.b):
        row = side.row
        known.setdefault(
            row.id,
            Option(
                str(row.id),
                f"{row.job}, session {count(row.number)}",
                row.id == found.a.row.id,
                row.id == found.b.row.id,
            ),
        )
    return list(known.values())


def _histogram(a: Side, b: Side, fix: Recommendation | None) -> Histogram | None:
    if a.report is None or b.report is None:
        return None
    recorded = a.report.step_times.recorded
    mean = sum(recorded) / len(recorded)
    predicted = None if fix is None else mean * (1 - fix.predicted_gain)
    return histogram(recorded, b.report.step_times.recorded, predicted)


def _histogram_title(steps: Difference | None) -> str:
    if steps is None:
        return ""
    if not steps.real:
        return "Step times overlap"
    return f"The mean step changed by {change_s(steps.change_s)}"


def _cause(one: CauseChange) -> CauseLine:
    words = {
        Change.GONE: "gone",
        Change.CAME: "came",
        Change.LESS: "less",
        Change.MORE: "more",
        Change.SAME: "about the same",
    }
    marks = {Change.GONE: "resolved", Change.CAME: "warn", Change.MORE: "warn"}
    before, after = (
        "not named" if share is None else percent(share) for share in (one.before, one.after)
    )
    return CauseLine(
        title_of(one.cause), before, after, words[one.change], marks.get(one.change, "")
    )


def _causes_title(found: Comparison) -> str:
    gone, came = (
        [title_of(one.cause) for one in found.causes if one.change is change]
        for change in (Change.GONE, Change.CAME)
    )
    if not gone and not came:
        return "No cause disappeared or appeared" if found.causes else "Neither session has a cause"
    went = f"{listing(gone)} disappeared" if gone else "No cause disappeared"
    return f"{went}, {listing(came).lower() + ' appeared' if came else 'none appeared'}"


def _fields_title(found: Comparison) -> str:
    changed = len(found.metadata.changed)
    total = changed + found.metadata.equal
    if not changed:
        return f"None of {plural(total, 'metadata field')} changed"
    return f"{count(changed)} of {plural(total, 'metadata field')} changed"


# ---- The tables of a comparison as CSV ---------------------------------------------------------


def workers_csv(found: Comparison) -> Table:
    """Return the slowdown and host of every worker in both sessions; nothing without a verdict."""
    a, b = found.a.report, found.b.report
    rows: list[Sequence[object]] = []
    if a is not None and b is not None and found.same_shape:
        for dp, pp in itertools.product(range(found.a.row.dp), range(found.a.row.pp)):
            before, after = a.by_worker.exact[dp][pp], b.by_worker.exact[dp][pp]
            hosts = a.host_of((dp, pp)), b.host_of((dp, pp))
            rows.append((dp, pp, *hosts, before, after, after - before))
    header = ("dp", "pp", "host_before", "host_after")
    return Table((*header, "slowdown_before", "slowdown_after", "change"), rows)


def steps_csv(found: Comparison) -> Table:
    """Return the recorded time of every step of both sessions."""
    return Table(
        ("session", "step", "recorded_s"),
        (
            (side.row.number, step, time)
            for side in (found.a, found.b)
            if side.report is not None
            for step, time in zip(
                side.report.steps.analyzed, side.report.step_times.recorded, strict=True
            )
        ),
    )


def causes_csv(found: Comparison) -> Table:
    """Return the share of a step that each cause costs in both sessions."""
    return Table(
        ("cause", "share_before", "share_after", "change"),
        ((one.cause, one.before, one.after, one.change) for one in found.causes),
    )


def arrivals_csv(found: Comparison) -> Table:
    """Return how long others waited for each rank in both sessions."""
    return Table(
        (
            "rank",
            "last_share_before",
            "last_share_after",
            "waited_for_before_s",
            "waited_for_after_s",
            "change_s",
        ),
        (
            (
                one.rank,
                one.last_share_before,
                one.last_share_after,
                one.waited_for_before_s,
                one.waited_for_after_s,
                one.change_s,
            )
            for one in found.arrivals
        ),
    )


def metadata_csv(found: Comparison) -> Table:
    """Return every field of the metadata that differs."""
    return Table(
        ("field", "before", "after"),
        ((one.field, one.before, one.after) for one in found.metadata.changed),
    )


# File name → what makes it of a comparison.
EXPORTS: Final[Mapping[str, Callable[[Comparison], Table]]] = {
    "workers": workers_csv,
    "steps": steps_csv,
    "causes": causes_csv,
    "arrivals": arrivals_csv,
    "metadata": metadata_csv,
}

# File name → what makes it of two times of a job.
OF_TIMES: Final[Mapping[str, Callable[[TimesComparison], Table]]] = {
    "causes": lambda found: Table.of(CauseCount, found.causes),
}


# ---- The page of two sessions side by side -----------------------------------------------------


def add_compare_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the page of a comparison to the dashboard."""

    @routes.get("/compare")
    def compare_route(
        container: Here,
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
                found = _found(tx, a, b, incident, job)
            except (ValueError, NotFoundError):
                return pages.not_found(_what(a, b, incident, job), nav)
        page = compare_page(found)
        return pages.render("sessions/compare/page.html", nav, page=page, now=found.now)

    @routes.get("/compare/times")
    def compare_times_route(  # noqa: PLR0913 - what an address may ask for
        container: Here,
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
                found = compare_times(tx, job, *bounds)
            except NotFoundError:
                return pages.not_found(f"job {job}", nav)
        page = times_page(found)
        return pages.render("sessions/compare/times.html", nav, page=page, now=found.now)

    @routes.get("/compare/{name}.csv")
    def compare_file_route(container: Here, name: str, a: uuid.UUID, b: uuid.UUID) -> Response:
        make = one_of(EXPORTS, name)
        with container.reading() as tx:
            found = compare_sessions(tx, a, b)
        file_name = f"paceline-compare-{found.a.row.number}-{found.b.row.number}-{name}.csv"
        return csv_file(file_name, make(found))

    @routes.get("/compare/times/{name}.csv")
    def compare_times_file_route(  # noqa: PLR0913 - what an address may ask for
        container: Here,
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
            found = compare_times(tx, job, *bounds)
        return csv_file(f"paceline-compare-times-{name}.csv", make(found))


def _found(tx: Reads, a: str, b: str, incident: str, job: str) -> Comparison:
    """Return what an address asks for: two sessions, an incident's, or the last two of a job.

    Raises
    ------
    ValueError
        If what it names is no id.
    NotFoundError
    """
    if incident:
        first, second, over = sessions_of_incident(tx, uuid.UUID(incident))
        return compare_sessions(tx, first, second, over)
    if job and not (a and b):
        return compare_sessions(tx, *latest_two(tx, job))
    return compare_sessions(tx, uuid.UUID(a), uuid.UUID(b))


def _what(a: str, b: str, incident: str, job: str) -> str:
    if incident:
        return f"incident {incident} with sessions before and after it"
    if job:
        return f"pair of sessions with a verdict of job {job}"
    return f"pair of sessions {a or 'a'} and {b or 'b'} to compare"

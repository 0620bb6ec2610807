"""The page that compares two sessions, its CSV files, and the routes of comparisons."""

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
    changed_causes,
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

# Limit of the listed metadata fields.
FIELDS: Final = 40
# Limit of the hosts listed for a cause that moved to other hosts.
MOVED: Final = 2


@dataclass(frozen=True, slots=True)
class SideView:
    """One of the two compared sessions, as the page shows it."""

    url: str
    number: int
    attempt: int
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
    received: When | None = None  # where it is in the label


@dataclass(frozen=True, slots=True)
class CauseLine:
    """A cause in both sessions; `mark` is a symbol if the cause disappeared or appeared."""

    cause: str
    before: str
    after: str
    change: str
    mark: str


@dataclass(frozen=True, slots=True)
class FieldLine:
    """A metadata field with different values in the two sessions."""

    field: str
    before: str
    after: str


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


def compare_page(comparison: Comparison) -> ComparePage:
    """Return the page that compares two sessions."""
    a, b, steps = comparison.a, comparison.b, comparison.step_times
    fix = _fix(comparison)
    # A fix's predicted gain is compared with the measured one only if the fix was applied.
    done = fix is not None and (fix.title in comparison.applied or comparison.incident is not None)
    moved = moved_workers(comparison)
    place = compare_url(a.row.id, b.row.id)
    return ComparePage(
        now=comparison.now,
        title=f"{a.row.job}: {_name(a, b)} against {_name(b, a)}",
        heading=_heading(comparison, fix if done else None),
        resolved=_resolved(comparison, fix),
        why="" if steps else _missing(comparison),
        job=a.row.job,
        sizes=sizes(b.row.dp, b.row.pp, b.row.tp, b.row.cp, b.row.vpp)
        + f" · {plural(b.row.world, 'GPU')}",
        facts=_facts(comparison, fix, done=done),
        a=_side(a, "Before"),
        b=_side(b, "After"),
        options=_options(comparison),
        swap_url=compare_url(b.row.id, a.row.id),
        query=place.partition("?")[2],
        data=slowdowns(comparison) if steps and comparison.same_shape else None,
        map_title=map_title(comparison, moved),
        histogram=_histogram(a, b, fix if done else None),
        histogram_title=_histogram_title(steps),
        histogram_note="Steps by recorded time; gray before, blue after",
        causes=[_cause(one) for one in comparison.causes],
        causes_title=_causes_title(comparison),
        arrivals=arrival_lines(comparison),
        arrivals_title=arrivals_title(comparison),
        workers=[worker_line(comparison, *cell) for cell in moved[:WORKERS]],
        workers_title=workers_title(moved),
        fields=[
            FieldLine(one.field, one.before or "none", one.after or "none")
            for one in comparison.metadata.changed[:FIELDS]
        ],
        fields_title=_fields_title(comparison),
        equal=f"{plural(comparison.metadata.equal, 'other field')} equal",
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


def _missing(comparison: Comparison) -> str:
    return listing(
        [
            f"session {count(side.row.number)} is {side.row.state.replace('_', ' ')}"
            for side in (comparison.a, comparison.b)
            if side.report is None
        ]
    )


def _facts(comparison: Comparison, fix: Recommendation | None, *, done: bool) -> list[Fact]:
    steps, a, b = comparison.step_times, comparison.a.report, comparison.b.report
    if steps is None or a is None or b is None:
        return []
    low, high = steps.ci95_s or (None, None)
    gone = [title_of(cause.cause) for cause in comparison.causes if cause.change is Change.GONE]
    came = [title_of(cause.cause) for cause in comparison.causes if cause.change is Change.CAME]
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
        attempt=row.attempt,
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


def _causes_title(comparison: Comparison) -> str:
    gone, came = (
        [title_of(cause.cause) for cause in comparison.causes if cause.change is change]
        for change in (Change.GONE, Change.CAME)
    )
    return changed_causes(gone, came) if comparison.causes else "Neither session has a cause"


def _fields_title(comparison: Comparison) -> str:
    changed = len(comparison.metadata.changed)
    total = changed + comparison.metadata.equal
    if not changed:
        return f"None of {plural(total, 'metadata field')} changed"
    return f"{count(changed)} of {plural(total, 'metadata field')} changed"


def workers_csv(comparison: Comparison) -> Table:
    """Return each worker's slowdown and host in both sessions; no rows without a verdict."""
    a, b = comparison.a.report, comparison.b.report
    rows: list[Sequence[object]] = []
    if a is not None and b is not None and comparison.same_shape:
        for dp, pp in itertools.product(range(comparison.a.row.dp), range(comparison.a.row.pp)):
            before, after = a.by_worker.exact[dp][pp], b.by_worker.exact[dp][pp]
            hosts = a.host_of((dp, pp)), b.host_of((dp, pp))
            rows.append((dp, pp, *hosts, before, after, after - before))
    header = ("dp", "pp", "host_before", "host_after")
    return Table((*header, "slowdown_before", "slowdown_after", "change"), rows)


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
                change.rank,
                change.last_share_before,
                change.last_share_after,
                change.waited_for_before_s,
                change.waited_for_after_s,
                change.change_s,
            )
            for change in comparison.arrivals
        ),
    )


def metadata_csv(comparison: Comparison) -> Table:
    """Return the metadata fields with different values in the two sessions."""
    return Table(
        ("field", "before", "after"),
        ((field.field, field.before, field.after) for field in comparison.metadata.changed),
    )


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
    "causes": lambda found: Table.of(CauseCount, found.causes),
}


def add_compare_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of comparisons to the dashboard."""

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
                comparison = _found(tx, a, b, incident, job)
            except (ValueError, NotFoundError):
                return pages.not_found(_what(a, b, incident, job), nav)
        page = compare_page(comparison)
        return pages.render("sessions/compare/page.html", nav, page=page, now=comparison.now)

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
                comparison = compare_times(tx, job, *bounds)
            except NotFoundError:
                return pages.not_found(f"job {job}", nav)
        page = times_page(comparison)
        return pages.render("sessions/compare/times.html", nav, page=page, now=comparison.now)

    @routes.get("/compare/{name}.csv")
    def compare_file_route(container: Here, name: str, a: uuid.UUID, b: uuid.UUID) -> Response:
        make = one_of(EXPORTS, name)
        with container.reading() as tx:
            comparison = compare_sessions(tx, a, b)
        file_name = (
            f"paceline-compare-{comparison.a.row.number}-{comparison.b.row.number}-{name}.csv"
        )
        return csv_file(file_name, make(comparison))

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
            comparison = compare_times(tx, job, *bounds)
        return csv_file(f"paceline-compare-times-{name}.csv", make(comparison))


def _found(tx: Reads, a: str, b: str, incident: str, job: str) -> Comparison:
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


def _what(a: str, b: str, incident: str, job: str) -> str:
    if incident:
        return f"incident {incident} with sessions before and after it"
    if job:
        return f"pair of sessions with a verdict of job {job}"
    return f"pair of sessions {a or 'a'} and {b or 'b'} to compare"

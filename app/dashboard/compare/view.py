"""What the page of a comparison shows: did it get faster, why, and what else changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from app.analysis.diagnosis.causes.registry import blames_machine, title_of
from app.analysis.report.verdict import blamed_gpus
from app.analysis.wording import hours
from app.dashboard.compare.arrivals import ArrivalLine, arrival_lines, arrivals_title
from app.dashboard.compare.histogram import Histogram, histogram
from app.dashboard.compare.words import chance, change_s
from app.dashboard.compare.workers import (
    WORKERS,
    WORTH,
    WorkerLine,
    map_title,
    moved_workers,
    slowdowns,
    worker_line,
    workers_title,
)
from app.dashboard.ui.format import (
    count,
    listing,
    percent,
    plural,
    seconds,
    sizes,
    times,
    worker,
)
from app.dashboard.ui.moments import Form, When
from app.dashboard.ui.parts import Fact
from app.dashboard.ui.places import compare_url
from app.services.compare.changes import Change

if TYPE_CHECKING:
    from app.analysis.report.document import Report
    from app.analysis.report.findings import Recommendation
    from app.services.compare.changes import CauseChange
    from app.services.compare.read import Comparison, Side
    from app.services.compare.step_times import Difference

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

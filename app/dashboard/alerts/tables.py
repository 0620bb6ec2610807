"""The tables of incidents: those that are open, with others on the same machine, and those over."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from app.dashboard.ui import html, moments
from app.dashboard.ui.format import exact_time
from app.dashboard.ui.tables import Line, Shown, cells

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.dashboard.ui.parts import StateLabel


@dataclass(frozen=True, slots=True)
class InsideLine:
    """A job inside of an incident."""

    url: str
    job: str
    headline: str
    state: StateLabel
    slowdown: str
    color: str
    lost: str


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """An incident in the list; where it is about a machine of several jobs, with these inside."""

    id: uuid.UUID
    url: str
    job: str
    severity: str
    state: StateLabel
    headline: str
    labels: str
    slowdown: str
    color: str
    lost: str
    fix: str
    gain: str
    since: datetime
    assignee: str
    chosen: bool
    # How many jobs are on the machine, where there are several.
    jobs: str
    inside: Sequence[InsideLine]


@dataclass(frozen=True, slots=True)
class OverLine:
    """An incident that is over; gains are empty where nothing measured them."""

    url: str
    job: str
    headline: str
    before: str
    after: str
    fix: str
    predicted: str
    measured: str
    lasted: str
    resolved_at: datetime
    chosen: bool
    compare_url: str


_PICK_ALL: Final = Markup(
    '<input class="operates" type="checkbox" data-pick-all '
    'aria-label="Select all on this page" disabled>'
)


def open_columns(now: datetime) -> tuple[Shown[IncidentLine], ...]:
    """Return the columns of open incidents."""
    return (
        Shown(_PICK_ALL, _pick, classes="pick"),
        Shown("Severity", lambda line: html.severity(line.severity), "severity"),
        Shown("State", lambda line: html.state(line.state), "state", of_cells="stands"),
        Shown("Job and cause", _job, "job", of_cells="grow"),
        Shown("Slowdown", _slowdown, "slowdown", "num"),
        Shown("Lost each hour", lambda line: line.lost, "lost", "num opt"),
        Shown("Best fix", lambda line: line.fix, classes="opt w2"),
        Shown("Gain", lambda line: line.gain, classes="num opt w2"),
        Shown("Since", lambda line: moments.ago(line.since, now), "since", "num"),
        Shown("Assignee", lambda line: line.assignee, "assignee", "opt w3", of_cells="muted"),
    )


def open_lines(shown: Sequence[Shown[IncidentLine]], lines: Iterable[IncidentLine]) -> list[Line]:
    """Return the rows of open incidents, each with those inside of it below it."""
    found = []
    for line in lines:
        found.append(Line(cells(shown, line), _chosen(line)))
        found += [Line(cells(_INSIDE, one), {"class": "inside"}) for one in line.inside]
    return found


def over_attributes(line: OverLine) -> dict[str, str]:
    """Return the attributes of the row of an incident that is over."""
    return _chosen(line)


def _chosen(line: IncidentLine | OverLine) -> dict[str, str]:
    return {"aria-selected": "true"} if line.chosen else {}


def _pick(line: IncidentLine) -> Markup:
    return Markup(
        '<input class="operates" type="checkbox" data-pick="{}" '
        'aria-label="Select {}: {}" disabled>'
    ).format(line.id, line.job, line.headline)


def _job(line: IncidentLine) -> Markup:
    link = html.element(
        "a", line.job, href=line.url, data_row=True, aria_current="true" if line.chosen else ""
    )
    jobs = f", {line.jobs}" if line.jobs else ""
    labels = Markup(" · ") + line.labels if line.labels else ""
    return link + html.note(line.headline, jobs, labels)


def _slowdown(line: IncidentLine | InsideLine) -> Markup:
    return html.swatch(line.color) + line.slowdown


def _before_and_after(line: OverLine) -> object:
    if not line.before and not line.after:
        return ""
    both = f"{line.before or 'none'} → {line.after or 'none'}"
    return html.link(line.compare_url, both) if line.before and line.after else both


# What these do not have, the last columns, has no cells.
_INSIDE: Final[tuple[Shown[InsideLine], ...]] = (
    Shown("", lambda _: "", span=2),
    Shown("", lambda one: html.state(one.state), of_cells="stands"),
    Shown(
        "",
        lambda one: html.link(one.url, one.job) + html.note(one.headline),
        of_cells="grow",
    ),
    Shown("", _slowdown, classes="num"),
    Shown("", lambda one: one.lost, classes="num opt"),
)

OVER: Final[tuple[Shown[OverLine], ...]] = (
    Shown("State", lambda _: html.glyph("resolved", "Resolved")),
    Shown(
        "Job and cause",
        lambda line: html.link(line.url, line.job) + html.note(line.headline),
        of_cells="grow",
    ),
    Shown("Before → after", _before_and_after, classes="num"),
    Shown("Fix", lambda line: line.fix, classes="opt"),
    Shown("Predicted", lambda line: line.predicted, classes="num opt"),
    Shown(
        "Measured",
        lambda line: line.measured or ("none" if line.predicted else ""),
        classes="num opt",
    ),
    Shown(
        "Open for",
        lambda line: line.lasted,
        classes="num",
        title=lambda line: f"Resolved {exact_time(line.resolved_at)}",
    ),
)

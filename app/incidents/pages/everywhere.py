"""The page of open incidents of several projects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from app.analysis.wording import hours
from app.incidents.everywhere import OpenEverywhere
from app.incidents.pages.parts import STATES, fired_or_opened, headline, labels
from app.incidents.reads import IncidentRow
from app.web.format import heat_color, plural, times
from app.web.links import Address
from app.web.parts import StateLabel
from app.web.project_paths import prefix_of


@dataclass(frozen=True, slots=True)
class JoinedLine:
    """A table row: an incident and its project."""

    project: str
    url: str
    job: str
    severity: str
    lost: str
    assignee: str
    state: StateLabel
    headline: str
    labels: str
    slowdown: str
    color: str
    since: datetime


@dataclass(frozen=True, slots=True)
class JoinedPage:
    """The content of the page."""

    heading: str
    note: str
    lines: Sequence[JoinedLine]
    projects: Sequence[str]
    project: str
    csv: str
    path: str
    administers: bool


def joined_page(found: OpenEverywhere, path: str, *, administers: bool) -> JoinedPage:
    """Return the page of open incidents of several projects.

    Parameters
    ----------
    administers : bool
        Whether it is the page of the installation, with all projects.
    """
    projects = {project for project, _ in found.rows}
    where = f"project {found.project}" if found.project else "any project"
    heading = f"No incident is open in {where}"
    if found.rows:
        incidents = plural(found.count, "open incident")
        within = where if found.project else plural(len(projects), "project")
        heading = f"{incidents} in {within}"
    note = "Severity first, then GPU-hours lost each hour; each opens in its project"
    if len(found.rows) < found.count:
        note += f"; the first {len(found.rows)} of them"
    return JoinedPage(
        heading,
        note,
        [_line(project, row) for project, row in found.rows],
        # The requested project is a choice even if it does not exist.
        projects=sorted({*found.projects, found.project} - {""}),
        project=found.project,
        csv=Address(f"{path}.csv", {"project": found.project}).but(),
        path=path,
        administers=administers,
    )


def _line(project: str, row: IncidentRow) -> JoinedLine:
    incident, facts = row.incident, row.incident.facts
    rate = facts.lost_each_hour if facts else None
    slowdown = facts.headline.slowdown if facts and facts.headline else None
    return JoinedLine(
        project=project,
        url=f"{prefix_of(project)}/incidents/{incident.id}",
        job=row.job,
        severity=incident.severity,
        lost="" if rate is None else hours(rate),
        assignee=row.assignee or "not assigned",
        state=STATES[incident.state],
        headline=headline(incident),
        labels=labels(facts),
        slowdown="none" if slowdown is None else times(slowdown),
        color="" if slowdown is None else heat_color(slowdown),
        since=fired_or_opened(incident),
    )

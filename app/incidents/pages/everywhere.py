"""The page of open incidents of several projects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from app.incidents.everywhere import OpenEverywhere
from app.incidents.pages.list import hours_if_known
from app.incidents.pages.parts import (
    STATES,
    fired_or_opened,
    headline,
    labels,
    measured_slowdown,
)
from app.incidents.reads import IncidentRow
from app.web import html, moments
from app.web.format import plural
from app.web.links import Address
from app.web.project_paths import prefix_of
from app.web.tables import Drawn, Shown, drawn


@dataclass(frozen=True, slots=True)
class JoinedPage:
    """The content of the page."""

    heading: str
    note: str
    table: Drawn
    projects: Sequence[str]
    project: str
    path: str
    administers: bool


def joined_page(
    incidents: OpenEverywhere, path: str, now: datetime, *, administers: bool
) -> JoinedPage:
    """Return the page of open incidents of several projects.

    Parameters
    ----------
    administers : bool
        Whether it is the page of the installation, with all projects.
    """
    projects = {project for project, _ in incidents.rows}
    where = f"project {incidents.project}" if incidents.project else "any project"
    heading = f"No incident is open in {where}"
    if incidents.rows:
        number = plural(incidents.count, "open incident")
        within = where if incidents.project else plural(len(projects), "project")
        heading = f"{number} in {within}"
    note = "Severity first, then GPU-hours lost each hour; each opens in its project"
    if len(incidents.rows) < incidents.count:
        note += f"; the first {len(incidents.rows)} of them"
    return JoinedPage(
        heading,
        note,
        drawn(
            _columns(now),
            incidents.rows,
            csv=Address(f"{path}.csv", {"project": incidents.project}).but(),
            classes="inc",
        ),
        # The requested project is a choice even if it does not exist.
        projects=sorted({*incidents.projects, incidents.project} - {""}),
        project=incidents.project,
        path=path,
        administers=administers,
    )


def _columns(now: datetime) -> tuple[Shown[tuple[str, IncidentRow]], ...]:
    def job(project: str, row: IncidentRow) -> Markup:
        url = f"{prefix_of(project)}/incidents/{row.incident.id}"
        named = labels(row.incident.facts)
        note = html.note(headline(row.incident), f" · {named}" if named else "")
        return html.link(url, row.job) + note

    def lost(row: IncidentRow) -> str:
        return hours_if_known(row.incident.facts.lost_each_hour if row.incident.facts else None)

    return (
        Shown("Severity", lambda pair: html.severity(pair[1].incident.severity), classes="opt"),
        Shown("State", lambda pair: html.state(STATES[pair[1].incident.state])),
        Shown(
            "Project",
            lambda pair: html.link(f"{prefix_of(pair[0])}/incidents", pair[0], plain=True),
        ),
        Shown("Job and cause", lambda pair: job(*pair), of_cells="grow"),
        Shown(
            "Slowdown",
            lambda pair: html.slowdown(measured_slowdown(pair[1].incident.facts)),
            classes="num opt",
        ),
        Shown("Lost each hour", lambda pair: lost(pair[1]), classes="num"),
        Shown(
            "Since",
            lambda pair: moments.ago(fired_or_opened(pair[1].incident), now),
            classes="num opt",
        ),
        Shown(
            "Assignee",
            lambda pair: pair[1].assignee or "not assigned",
            classes="opt w3",
            of_cells="muted",
        ),
    )

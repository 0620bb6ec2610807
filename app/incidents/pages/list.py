"""The lists of incidents: filters parsed from the address, tables, and CSV files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import count as numbers_from
from typing import Annotated, Final

from fastapi import Query
from markupsafe import Markup

from app.analysis.wording import hours
from app.incidents.delivery_reads import DeliveryRow
from app.incidents.message import cause_name
from app.incidents.models.facts import NO_DATA_CAUSE, Facts
from app.incidents.models.tables import IncidentState
from app.incidents.pages.parts import (
    STATES,
    fired_or_opened,
    gain_text,
    headline,
    job_count,
    labels,
    lost_each_hour,
    measured_slowdown,
    member_rows,
    silent_together_title,
    state_context,
)
from app.incidents.reads import (
    INCIDENTS,
    MAX_CHARACTERS,
    UNASSIGNED,
    IncidentFilter,
    IncidentRow,
    InsideRow,
    severity_of,
    state_of,
)
from app.incidents.views import IncidentLife, Incidents, ResolvedIncident, incidents
from app.platform.container import Container
from app.web import html, moments
from app.web.format import age, count, exact_time, times
from app.web.forms import Choice
from app.web.links import Address, QueryText, page_number
from app.web.tables import Drawn, Line, Shown, Table, cells, drawn, sorted_by
from app.web.time_ranges import ALL, RangeChoices, range_choices, range_of

PATH: Final = "/incidents"

# Query parameters that the filter form passes on unchanged.
KEPT: Final = ("state", "sort", "range", "from", "to", "message")


@dataclass(frozen=True, slots=True)
class Select:
    """A filter with few values; its first value selects all incidents."""

    name: str
    label: str
    choices: Sequence[Choice]


@dataclass(frozen=True, slots=True)
class FilterBar:
    """The filters of the page; `kept` are query parameters that the form passes on unchanged."""

    words: str
    states: Sequence[Choice]
    selects: Sequence[Select]
    fields: Sequence[tuple[str, str, str]]
    kept: Sequence[tuple[str, str]]
    range: RangeChoices
    filtered: bool
    cleared_url: str


class IncidentsQuery:
    """The filters, the order and the page number in the list's address."""

    def __init__(  # noqa: PLR0913 - one for each parameter
        self,
        *,
        q: QueryText = "",
        state: QueryText = "",
        severity: QueryText = "",
        cause: QueryText = "",
        job: QueryText = "",
        host: QueryText = "",
        owner: QueryText = "",
        project: QueryText = "",
        label: QueryText = "",
        assignee: QueryText = "",
        message: QueryText = "",
        range: QueryText = "",  # noqa: A002 - name of the parameter
        begin: Annotated[str, Query(alias="from")] = "",
        end: Annotated[str, Query(alias="to")] = "",
        sort: QueryText = "",
        page: QueryText = "",
    ) -> None:
        filtered = IncidentFilter(
            words=" ".join(q[:MAX_CHARACTERS].split()),
            state=state_of(state),
            severity=severity_of(severity),
            cause=cause,
            job=job,
            host=host,
            owner=owner,
            project=project,
            label=label,
            assignee=assignee,
            message=_id_or_nothing(message),
        )
        # PostgreSQL cannot store NUL characters in text.
        self.filtered = replace(
            filtered,
            **{
                name: value.replace("\x00", "")
                for name, value in asdict(filtered).items()
                if name not in ("state", "since", "until")
            },
        )
        self.about = range_of(range, begin, end, default=ALL)
        self.sort = INCIDENTS.sort(sort)
        self.number = page_number(page)

    @property
    def parameters(self) -> dict[str, str]:
        """Return the non-empty query parameters by name."""
        values = asdict(self.filtered)
        values["q"] = values.pop("words")
        values["state"] = str(values["state"] or "")
        values["sort"] = self.sort
        values |= self.about.parameters(ALL)
        return {name: value for name, value in values.items() if value}

    @property
    def narrowed(self) -> bool:
        """Return whether filters other than the state are set."""
        return bool(set(self.parameters) - {"state", "sort"})

    def at(self, now: datetime) -> IncidentFilter:
        """Return the filters, with a relative time range counted back from `now`."""
        return replace(self.filtered, since=self.about.since(now), until=self.about.end)

    def address(self, path: str = PATH) -> Address:
        """Return the address of the list's first page, or of a selected row."""
        return Address(path, self.parameters)


def _id_or_nothing(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return ""


def filter_bar(query: IncidentsQuery, listed: Incidents) -> FilterBar:
    """Return the filters of the page."""
    address, filtered, given = query.address(), query.filtered, listed.choices
    unassigned = Choice(UNASSIGNED, "Not assigned", filtered.assignee == UNASSIGNED)
    selects = [
        Select(
            "severity",
            "Any severity",
            [
                Choice(value, value.capitalize(), filtered.severity == value)
                for value in ("critical", "warning", "info")
            ],
        ),
        _select("cause", "Any cause", filtered.cause, given.causes, named=True),
        _select("owner", "Any owner", filtered.owner, given.owners),
        _select("project", "Any project", filtered.project, given.projects),
        _select("assignee", "Anyone", filtered.assignee, given.assignees, unassigned),
    ]
    fields = [
        ("job", "Job", filtered.job),
        ("host", "Host", filtered.host),
        ("label", "Label", filtered.label),
    ]
    return FilterBar(
        words=filtered.words,
        states=_states(address, listed),
        selects=[select for select in selects if select.choices],
        fields=fields,
        kept=[(name, value) for name, value in query.parameters.items() if name in KEPT],
        range=range_choices(query.about, with_all=True),
        filtered=query.narrowed,
        cleared_url=Address(PATH, {"state": query.parameters.get("state", "")}).but(),
    )


def _states(address: Address, listed: Incidents) -> list[Choice]:
    filtered, counts = listed.filtered, listed.counts
    total = "" if filtered.over else f" {count(sum(counts.values()))}"
    shown = [Choice("", f"Open{total}", filtered.state is None, address.but(state=None))]
    for state, label in STATES.items():
        many = counts.get(state, 0)
        # Other states are offered only if incidents have them.
        always = state in (IncidentState.FIRING, IncidentState.RESOLVED)
        if always or many or filtered.state is state:
            number = f" {count(many)}" if many and not filtered.over else ""
            url = address.but(state=state.value)
            shown.append(Choice(state, f"{label.word}{number}", filtered.state is state, url))
    return shown


def _select(
    name: str, label: str, chosen: str, given: Sequence[str], *more: Choice, named: bool = False
) -> Select:
    # Offer the chosen value even if no incident has it any more.
    values = sorted({*given, chosen} - {"", UNASSIGNED}, key=str.lower)
    choices = [
        Choice(value, cause_name(value) if named else value, value == chosen) for value in values
    ]
    return Select(name, label, [*more, *choices])


_PICK_ALL: Final = Markup(
    '<input class="operates" type="checkbox" data-pick-all '
    'aria-label="Select all on this page" disabled>'
)


def page_url(path: str, query: IncidentsQuery, number: int) -> str:
    """Return the address of a page of the list, or of a selected row on this page."""
    return query.address(path).but(page=number if number > 1 else None)


def open_table(
    listed: Incidents, query: IncidentsQuery, chosen: uuid.UUID | None, *, csv: str
) -> Drawn:
    """Return the table of open incidents, each followed by its members."""
    columns = _open_columns(listed.now, query, listed.number, chosen)
    inside = {on_machine: _inside(query, listed.number, on_machine) for on_machine in (True, False)}
    lines = []
    for row in listed.present:
        lines.append(Line(cells(columns, row), _selected(row, chosen)))
        members = inside[not silent_together_title(row)]
        lines += [Line(cells(members, member), {"class": "inside"}) for member in member_rows(row)]
    return Drawn(csv, "inc tri", sorted_by(INCIDENTS, columns, query.address()), lines)


def _selected(row: IncidentRow, chosen: uuid.UUID | None) -> dict[str, str]:
    return {"aria-selected": "true"} if row.incident.id == chosen else {}


def _open_columns(
    now: datetime, query: IncidentsQuery, number: int, chosen: uuid.UUID | None
) -> tuple[Shown[IncidentRow], ...]:
    def job(row: IncidentRow) -> Markup:
        incident = row.incident
        link = html.element(
            "a",
            row.job,
            href=page_url(f"{PATH}/{incident.id}", query, number),
            data_row=True,
            aria_current="true" if incident.id == chosen else "",
        )
        by_a_person = incident.state in (IncidentState.ACKNOWLEDGED, IncidentState.SILENCED)
        details = (state_context(incident, now) if by_a_person else "", labels(incident.facts))
        parts = [_headline(row)]
        if jobs := job_count(row):
            parts += [", ", jobs]
        for detail in filter(None, details):
            parts += [" · ", detail]
        return link + html.note(*parts)

    return (
        Shown(_PICK_ALL, _pick, classes="pick"),
        Shown("Severity", lambda row: html.severity(row.incident.severity), "severity"),
        Shown(
            "State",
            lambda row: html.state(STATES[row.incident.state]),
            "state",
            of_cells="stands",
        ),
        Shown("Job and cause", job, "job", of_cells="grow"),
        Shown(
            "Slowdown",
            lambda row: html.slowdown(measured_slowdown(row.incident.facts)),
            "slowdown",
            "num",
        ),
        Shown("Lost each hour", lambda row: hours_if_known(lost_each_hour(row)), "lost", "num opt"),
        Shown("Best fix", _fix, classes="opt w2"),
        Shown("Gain", _predicted, classes="num opt w2"),
        Shown("Since", lambda row: moments.ago(fired_or_opened(row.incident), now), "since", "num"),
        Shown(
            "Assignee",
            lambda row: row.assignee or "not assigned",
            "assignee",
            "opt w3",
            of_cells="muted",
        ),
    )


def _headline(row: IncidentRow) -> str:
    return silent_together_title(row) or headline(row.incident)


def _pick(row: IncidentRow) -> Markup:
    return Markup(
        '<input class="operates" type="checkbox" data-pick="{}" '
        'aria-label="Select {}: {}" disabled>'
    ).format(row.incident.id, row.job, _headline(row))


def hours_if_known(lost: float | None) -> str:
    """Return GPU-hours as text; empty if unknown."""
    return "" if lost is None else hours(lost)


def _fix(row: IncidentRow) -> str:
    fix = row.incident.facts.fix if row.incident.facts else None
    return fix.title if fix else ""


def _predicted(row: IncidentRow) -> str:
    fix = row.incident.facts.fix if row.incident.facts else None
    return gain_text(fix.gain) if fix else ""


def _inside(
    query: IncidentsQuery,
    number: int,
    on_machine: bool,  # noqa: FBT001 - a key of the caller
) -> tuple[Shown[InsideRow], ...]:
    """Return the columns of members, which leave the last columns of the table empty."""
    where = ", on the same machine" if on_machine else ""
    return (
        Shown("", lambda _: "", span=2),
        Shown("", lambda member: html.state(STATES[member.state]), of_cells="stands"),
        Shown(
            "",
            lambda member: (
                html.link(page_url(f"{PATH}/{member.id}", query, number), member.job)
                + html.note(cause_name(member.cause), where)
            ),
            of_cells="grow",
        ),
        Shown("", lambda member: html.slowdown(member.slowdown), classes="num"),
        Shown("", lambda member: hours_if_known(member.lost), classes="num opt"),
    )


def over_table(
    listed: Incidents, query: IncidentsQuery, chosen: uuid.UUID | None, *, csv: str
) -> Drawn:
    """Return the table of resolved incidents; gains that were not measured are empty."""
    number = query.number if query.filtered.over else 1

    def job(item: ResolvedIncident) -> Markup:
        url = page_url(f"{PATH}/{item.row.incident.id}", query, number)
        return html.link(url, item.row.job) + html.note(headline(item.row.incident))

    return drawn(
        (
            Shown("State", lambda _: html.glyph("resolved", "Resolved")),
            Shown("Job and cause", job, of_cells="grow"),
            Shown("Before → after", _before_and_after, classes="num"),
            Shown("Fix", lambda item: _fix(item.row), classes="opt"),
            Shown("Predicted", lambda item: _predicted(item.row), classes="num opt"),
            Shown("Measured", _measured, classes="num opt"),
            Shown(
                "Open for",
                lambda item: age(
                    (_ended(item) - fired_or_opened(item.row.incident)).total_seconds()
                ),
                classes="num",
                title=lambda item: f"Resolved {exact_time(_ended(item))}",
            ),
        ),
        listed.over,
        csv=csv,
        classes="inc",
        attributes=lambda item: _selected(item.row, chosen),
    )


def _ended(item: ResolvedIncident) -> datetime:
    return item.row.incident.resolved_at or item.row.incident.opened_at


def _after(item: ResolvedIncident) -> Facts | None:
    # The slowdowns before and after a job went silent are not comparable.
    return None if item.row.incident.cause == NO_DATA_CAUSE else item.after


def _before_and_after(item: ResolvedIncident) -> object:
    before = measured_slowdown(item.row.incident.facts)
    after = measured_slowdown(_after(item))
    if before is None and after is None:
        return ""
    both = " → ".join("none" if value is None else times(value) for value in (before, after))
    if before is None or after is None:
        return both
    return html.link(f"/compare?incident={item.row.incident.id}", both)


def _measured(item: ResolvedIncident) -> str:
    before, after = item.row.incident.facts, _after(item)
    if before and after and before.step_time_s and after.step_time_s:
        return gain_text(1 - after.step_time_s / before.step_time_s)
    return "none" if _predicted(item.row) else ""


# Number of incidents of a CSV file that are read in one transaction.
BATCH: Final = 2000
COLUMNS: Final = (
    *("id", "severity", "state", "job", "cause", "where", "slowdown", "gpu_hours_lost_per_hour"),
    *("fix", "predicted_gain", "opened_at", "fired_at", "resolved_at", "assignee", "labels"),
    "jobs_inside",
)


def incidents_csv(container: Container, query: IncidentsQuery) -> Table:
    """Return all incidents that match an address, in the address's order."""
    return Table(COLUMNS, _listed(container, query))


def _listed(container: Container, query: IncidentsQuery) -> Iterator[Sequence[object]]:
    """Yield the rows of incidents; each batch is read in its own transaction."""
    for number in numbers_from(1):
        with container.reading() as tx:
            page = incidents(tx, query.at(tx.now), sort=query.sort, number=number, size=BATCH)
        rows = [item.row for item in page.over] if page.filtered.over else page.present
        yield from (incident_cells(row) for row in rows)
        if number >= page.pages:
            return


def incident_cells(row: IncidentRow) -> Sequence[object]:
    """Return the cells of an incident's row."""
    incident, facts = row.incident, row.incident.facts
    shown, fix = (facts.headline, facts.fix) if facts else (None, None)
    return (
        *(incident.id, incident.severity, incident.state, row.job, incident.cause),
        *(incident.where, shown and shown.slowdown),
        facts and facts.lost_each_hour,
        *(fix and fix.title, fix and fix.gain),
        *(incident.opened_at, incident.fired_at, incident.resolved_at, row.assignee),
        *(facts.labels if facts else None, len({member.job for member in row.inside})),
    )


# CSV files about a single incident, by name.
OF_INCIDENT: Final[Mapping[str, Callable[[IncidentLife], Table]]] = {
    "inside": lambda life: Table.of(InsideRow, member_rows(life.view.row)),
    "deliveries": lambda life: Table.of(DeliveryRow, life.deliveries),
}

"""The lists of incidents: filters parsed from the address, tables, and CSV files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import count as numbers_from
from typing import Annotated, Final

from fastapi import Query
from markupsafe import Markup

from app.incidents.channel_reads import ChannelView, Tally
from app.incidents.channel_settings import Undelivered
from app.incidents.delivery_reads import DeliveryRow
from app.incidents.message import cause_name
from app.incidents.models.rules import Rule
from app.incidents.models.tables import IncidentState
from app.incidents.pages.parts import STATES, member_rows
from app.incidents.pages.rules import condition_words, jobs_words, notified_channels
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
from app.incidents.views import IncidentLife, Incidents, incidents
from app.platform.container import Container
from app.web import html, moments
from app.web.format import count, exact_time
from app.web.forms import Choice
from app.web.links import Address, QueryText, page_number
from app.web.parts import StateLabel
from app.web.tables import Line, Shown, Table, cells
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


def filter_bar(query: IncidentsQuery, found: Incidents) -> FilterBar:
    """Return the filters of the page."""
    address, filtered, given = query.address(), query.filtered, found.choices
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
        states=_states(address, found),
        selects=[select for select in selects if select.choices],
        fields=fields,
        kept=[(name, value) for name, value in query.parameters.items() if name in KEPT],
        range=range_choices(query.about, with_all=True),
        filtered=query.narrowed,
        cleared_url=Address(PATH, {"state": query.parameters.get("state", "")}).but(),
    )


def _states(address: Address, found: Incidents) -> list[Choice]:
    filtered, counts = found.filtered, found.counts
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


@dataclass(frozen=True, slots=True)
class InsideLine:
    """A row below an incident: a member of the incident."""

    url: str
    job: str
    headline: str
    state: StateLabel
    slowdown: str
    color: str
    lost: str


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """A row of the list of open incidents, with its members."""

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
    # Number of jobs on the machine; empty if there is only one job
    jobs: str
    inside: Sequence[InsideLine]


@dataclass(frozen=True, slots=True)
class OverLine:
    """A row of the list of resolved incidents; gains that were not measured are empty."""

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
    """Return the columns of the list of open incidents."""
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
    """Return the rows of open incidents, each followed by its members."""
    rows = []
    for line in lines:
        rows.append(Line(cells(shown, line), _chosen(line)))
        rows += [Line(cells(_INSIDE, member), {"class": "inside"}) for member in line.inside]
    return rows


def over_attributes(line: OverLine) -> dict[str, str]:
    """Return the HTML attributes of a row in the list of resolved incidents."""
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


# Rows of members leave the last columns empty.
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
            found = incidents(tx, query.at(tx.now), sort=query.sort, number=number, size=BATCH)
        rows = [item.row for item in found.over] if found.filtered.over else found.present
        yield from (incident_cells(row) for row in rows)
        if number >= found.pages:
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
        *(facts.labels if facts else None, len({one.job for one in row.inside})),
    )


# CSV files about a single incident, by name.
OF_INCIDENT: Final[Mapping[str, Callable[[IncidentLife], Table]]] = {
    "inside": lambda found: Table.of(InsideRow, member_rows(found.view.row)),
    "deliveries": lambda found: Table.of(DeliveryRow, found.deliveries),
}


def undelivered_csv(rows: Sequence[Undelivered]) -> Table:
    """Return the table of deliveries that did not arrive."""
    return Table.of(DeliveryRow, [row.delivery for row in rows])


def channels_csv(channels: Sequence[ChannelView], tallies: Mapping[uuid.UUID, Tally]) -> Table:
    """Return the table of channels, without their configurations, which hold secrets."""
    names = (
        *("id", "name", "kind", "audience", "enabled", "rate_limit", "disabled_reason"),
        *("failures", "last_error", "last_failure_at", "last_success_at", "waiting", "created_at"),
    )
    with_tallies = ((tallies.get(channel.id), channel) for channel in channels)
    return Table(
        (*names, "delivered_24h", "failed_24h"),
        (
            (
                *(getattr(channel, name) for name in names),
                *((tally.delivered, tally.failed) if tally else (0, 0)),
            )
            for tally, channel in with_tallies
        ),
    )


def rules_csv(rules: Sequence[Rule], channels: Sequence[ChannelView]) -> Table:
    """Return the table of rules as text, with the channels that each rule notifies."""
    return Table(
        ("id", "name", "enabled", "condition", "jobs", "severity", "audience", "channels"),
        (
            (
                *(rule.id, rule.name, rule.enabled, condition_words(rule)),
                *(
                    jobs_words(rule.selector),
                    rule.severity,
                    rule.audience,
                    notified_channels(rule, channels),
                ),
            )
            for rule in rules
        ),
    )

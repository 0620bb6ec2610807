"""What the list of incidents is asked for in its address, and what the page offers to ask for."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Query

from app.alerts.message import cause_name
from app.alerts.states import IncidentState
from app.dashboard.alerts.parts import STATES
from app.dashboard.ui.address import Address, QueryText, page_number
from app.dashboard.ui.choosing import Choice
from app.dashboard.ui.format import count
from app.dashboard.ui.ranges import ALL, RangeChoices, range_choices, range_of
from app.services.alerts.filters import (
    MAX_CHARACTERS,
    UNASSIGNED,
    IncidentFilter,
    severity_of,
    state_of,
)
from app.services.alerts.incident_reads import INCIDENTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from app.services.alerts.views import Incidents

PATH: Final = "/incidents"

# What the form does not ask for itself.
KEPT: Final = ("state", "sort", "range", "from", "to", "message")


@dataclass(frozen=True, slots=True)
class Select:
    """A field with few values; the first one asks for nothing."""

    name: str
    label: str
    choices: Sequence[Choice]


@dataclass(frozen=True, slots=True)
class FilterBar:
    """What the page offers to ask for; `kept` is what a form must send along."""

    words: str
    states: Sequence[Choice]
    selects: Sequence[Select]
    fields: Sequence[tuple[str, str, str]]
    kept: Sequence[tuple[str, str]]
    range: RangeChoices
    filtered: bool
    cleared_url: str


class IncidentsQuery:
    """What an address of the list asks for."""

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
        # No row holds such a character, and the database takes none.
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
        """Return them by their names in an address, as far as they ask for something."""
        values = asdict(self.filtered)
        values["q"] = values.pop("words")
        values["state"] = str(values["state"] or "")
        values["sort"] = self.sort
        values |= self.about.parameters(ALL)
        return {name: value for name, value in values.items() if value}

    @property
    def narrowed(self) -> bool:
        """Return whether it asks for anything but a state and an order."""
        return bool(set(self.parameters) - {"state", "sort"})

    def at(self, now: datetime) -> IncidentFilter:
        """Return what it asks for, with its time counted back from now."""
        return replace(self.filtered, since=self.about.since(now), until=self.about.end)

    def address(self, path: str = PATH) -> Address:
        """Return the address of the first page of the same list, or of a selected row."""
        return Address(path, self.parameters)


def _id_or_nothing(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return ""


def filter_bar(query: IncidentsQuery, found: Incidents) -> FilterBar:
    """Return what the page offers to ask for."""
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
        # Others are chosen seldom, and only where there are any.
        always = state in (IncidentState.FIRING, IncidentState.RESOLVED)
        if always or many or filtered.state is state:
            number = f" {count(many)}" if many and not filtered.over else ""
            url = address.but(state=state.value)
            shown.append(Choice(state, f"{label.word}{number}", filtered.state is state, url))
    return shown


def _select(
    name: str, label: str, chosen: str, given: Sequence[str], *more: Choice, named: bool = False
) -> Select:
    # Also what is chosen and nothing has any more.
    values = sorted({*given, chosen} - {"", UNASSIGNED}, key=str.lower)
    choices = [
        Choice(value, cause_name(value) if named else value, value == chosen) for value in values
    ]
    return Select(name, label, [*more, *choices])

"""Filters of the fleet: parameters of the page's address, choices on the page, saved views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends

from app.jobs.current import FLEET, MAX_CHARACTERS, FleetFilter, Loss, Show
from app.jobs.fleet import FleetView
from app.jobs.fleet_costs import ReportFilter
from app.jobs.fleet_report import Sample
from app.jobs.saved_views import View, query_of
from app.web.format import count
from app.web.forms import Choice
from app.web.links import Address, QueryText, asked_for, page_number
from app.web.time_ranges import DAY, Range

PATH: Final = "/"
# Value of the address parameter for the tab with the paper's figures.
FIGURES: Final = "figures"
# Parameters that the filter form sends as hidden fields.
KEPT: Final = ("show", "loss", "sort", "labels", "range", "from", "to")
# Choices of the filter for the kind of loss.
_LOSSES: Final = {
    None: "Any loss",
    Loss.STRAGGLERS: "To stragglers",
    Loss.BETWEEN: "Between steps",
    Loss.TOGETHER: "All slow",
}


@dataclass(frozen=True, slots=True)
class FilterBar:
    """Filter choices on the page; `kept` are the hidden fields of their form."""

    words: str
    shows: Sequence[Choice]
    losses: Sequence[Choice]  # kinds of loss; each also sorts by it
    owners: Sequence[Choice]
    label: str
    labels: Choice  # whether the list prints the labels of jobs
    kept: Sequence[tuple[str, str]]
    cleared_url: str


class FleetQuery:
    """Parameters in the address of the fleet's page, apart from the period."""

    def __init__(  # noqa: PLR0913 - one for each parameter
        self,
        *,
        q: QueryText = "",
        show: QueryText = "",
        owner: QueryText = "",
        label: QueryText = "",
        loss: QueryText = "",
        sort: QueryText = "",
        page: QueryText = "",
        silent: QueryText = "",
        labels: QueryText = "",
        tab: QueryText = "",
        team: QueryText = "",
        sample: QueryText = "",
    ) -> None:
        # PostgreSQL's text type cannot store NUL.
        q, owner, label = (text.replace("\x00", "") for text in (q, owner, label))
        self.filtered = FleetFilter(
            words=" ".join(q[:MAX_CHARACTERS].split()),
            show=Show(show) if show in tuple(Show) else Show.ALL,
            owner=owner[:MAX_CHARACTERS],
            label=label[:MAX_CHARACTERS].strip(),
            loss=Loss(loss) if loss in tuple(Loss) else None,
        )
        self.sort = sort if sort.removeprefix("-") in FLEET.sorts else ""
        self.labels = labels == "1"
        self.figures = tab == FIGURES
        self.sample = Sample.of(sample)
        self.of_figures = ReportFilter(
            team.replace("\x00", "")[:MAX_CHARACTERS].strip(),
            self.filtered.owner,
            self.filtered.label,
        )
        self.number, self.silent_number = page_number(page), page_number(silent)

    @property
    def loss(self) -> Loss | None:
        """Return the kind of loss that lines show: the kind in the order, or else in the filter."""
        name = self.sort.removeprefix("-")
        return Loss(name) if name in tuple(Loss) else self.filtered.loss

    @property
    def archived(self) -> bool:
        """Return whether the archive is shown."""
        return self.filtered.show is Show.ARCHIVED

    def tabs(self, about: Range) -> Sequence[Choice]:
        """Return the tabs; their links keep the period, the owner and the label."""
        labels = {"owner": self.filtered.owner, "label": self.filtered.label}
        kept = Address(PATH, {**labels, **about.parameters(default=DAY)})
        return (
            Choice("", "Jobs", not self.figures, kept.but()),
            Choice(FIGURES, "Figures", self.figures, kept.but(tab=FIGURES)),
        )

    def address(self, about: Range) -> Address:
        """Return the address of the list's first page."""
        filtered = self.filtered
        parameters = {
            "q": filtered.words,
            "show": "" if filtered.show is Show.ALL else filtered.show.value,
            "owner": filtered.owner,
            "label": filtered.label,
            "loss": filtered.loss or "",
            "sort": self.sort,
            "labels": "1" if self.labels else "",
            **about.parameters(default=DAY),
        }
        return Address(PATH, parameters)


FleetQueryParam = Annotated[FleetQuery, Depends(asked_for(FleetQuery))]


@dataclass(frozen=True, slots=True)
class ViewBar:
    """The saved views of a person."""

    views: Sequence[Choice]  # `value` is the id, `url` that of the fleet with its filter
    chosen: Choice | None
    query: str  # parameters that would be saved now


def view_bar(views: Sequence[View], query: FleetQuery, about: Range) -> ViewBar:
    """Return the saved views; the view with the current filter and order is marked as chosen."""
    current = query_of(query.address(about).but().removeprefix(PATH))
    choices = [
        Choice(
            str(view.id),
            view.name,
            view.query == current,
            f"{PATH}?{view.query}" if view.query else PATH,
        )
        for view in views
    ]
    return ViewBar(choices, next((choice for choice in choices if choice.chosen), None), current)


def filter_bar(query: FleetQuery, about: Range, view: FleetView) -> FilterBar:
    """Return the choices of filters on the page."""
    filtered, address = query.filtered, query.address(about)
    with_data = [group for group in view.groups if group.has_data]
    counts = {
        Show.ALL: sum(group.filtered for group in with_data),
        Show.SLOW: sum(group.filtered for group in with_data if group.slow),
        Show.NONE: sum(group.filtered for group in with_data if not group.verdict),
    }
    words = {Show.ALL: "All", Show.SLOW: "Slow", Show.NONE: "No verdict", Show.ARCHIVED: "Archive"}
    shows = [
        Choice(
            show.value,
            # Archived jobs are counted only if the archive is shown, and other jobs only if it is
            # not.
            word if query.archived or show not in counts else f"{word} {count(counts[show])}",
            filtered.show is show,
            address.but(show=None if show is Show.ALL else show.value),
        )
        for show, word in words.items()
    ]
    losses = [
        Choice(
            loss or "",
            word,
            filtered.loss is loss,
            address.but(loss=loss, sort=None if loss is None else f"-{loss}"),
        )
        for loss, word in _LOSSES.items()
    ]
    # The chosen owner is offered even if no job has this owner any more.
    owners = sorted({*view.owners, filtered.owner} - {""}, key=str.lower)
    kept = {name: address.parameters[name] for name in KEPT}
    narrowed = bool(filtered.words or filtered.owner or filtered.label)
    return FilterBar(
        words=filtered.words,
        shows=shows,
        losses=losses,
        owners=[Choice(owner, owner, owner == filtered.owner) for owner in owners],
        label=filtered.label,
        labels=Choice(
            "1",
            "Hide labels" if query.labels else "Labels",
            query.labels,
            address.but(labels=None if query.labels else 1),
        ),
        kept=[(name, value) for name, value in kept.items() if value],
        cleared_url=address.but(q=None, owner=None, label=None) if narrowed else "",
    )

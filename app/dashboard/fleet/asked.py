"""What an address of the fleet asks for, and what the page offers to ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Depends, Query

from app.dashboard.look.address import Address, page_number
from app.dashboard.look.choosing import Choice, Heading
from app.dashboard.look.format import count
from app.dashboard.look.ranges import DAY, Range
from app.services.fleet.standing import MAX_CHARACTERS, SORTS, FleetFilter, Show

if TYPE_CHECKING:
    from app.services.fleet.listing import FleetView

PATH: Final = "/"
# Column, what it is sorted by if at all, its classes, and what it says more of itself.
COLUMNS: Final = (
    ("State", "state", "", ""),
    ("Job", "job", "", ""),
    ("Slowdown", "slowdown", "num", "Against the job without its causes, else S"),
    ("95\N{NO-BREAK SPACE}% interval", "", "opt w2", ""),
    ("Sessions", "", "opt w3", ""),
    ("Lost each hour", "lost", "num opt", "GPU-hours, by all ranks together"),
    ("Cause", "cause", "opt", ""),
    ("Where", "", "opt w2", ""),
    ("Owner", "owner", "opt w3", "The label of that name; the others stand below"),
    ("GPUs", "gpus", "num opt", ""),
    ("Parallelism", "", "opt w2", ""),
    ("Data", "data", "num", ""),
)
# Numbers are worth most where they are large; ages where they are small.
_FALLS_FIRST: Final = frozenset({"slowdown", "lost", "gpus"})

Asked = Annotated[str, Query()]


@dataclass(frozen=True, slots=True)
class FilterBar:
    """What the page offers to ask for; `kept` is what its form sends along."""

    words: str
    shows: Sequence[Choice]
    owners: Sequence[Choice]
    label: str
    kept: Sequence[tuple[str, str]]
    cleared_url: str


class FleetInAddress:
    """What an address of the fleet asks for, but for its time."""

    def __init__(  # noqa: PLR0913 - one for each parameter
        self,
        *,
        q: Asked = "",
        show: Asked = "",
        owner: Asked = "",
        label: Asked = "",
        sort: Asked = "",
        page: Asked = "",
        silent: Asked = "",
    ) -> None:
        # No row holds such a character, and the database takes none.
        q, owner, label = (text.replace("\x00", "") for text in (q, owner, label))
        self.filtered = FleetFilter(
            words=" ".join(q[:MAX_CHARACTERS].split()),
            show=Show(show) if show in tuple(Show) else Show.ALL,
            owner=owner[:MAX_CHARACTERS],
            label=label[:MAX_CHARACTERS].strip(),
        )
        self.sort = sort if sort.removeprefix("-") in SORTS else ""
        self.number, self.silent_number = page_number(page), page_number(silent)

    @property
    def archived(self) -> bool:
        """Return whether the archive is asked for."""
        return self.filtered.show is Show.ARCHIVED

    def address(self, about: Range) -> Address:
        """Return the address of the first page."""
        asked = self.filtered
        parameters = {
            "q": asked.words,
            "show": "" if asked.show is Show.ALL else asked.show.value,
            "owner": asked.owner,
            "label": asked.label,
            "sort": self.sort,
            **about.parameters(default=DAY),
        }
        return Address(PATH, parameters)


FleetAsked = Annotated[FleetInAddress, Depends()]


def headings(asked: FleetInAddress, about: Range) -> list[Heading]:
    """Return the headings; each turns its order round where it is in force."""
    address, found = asked.address(about), []
    in_force = asked.sort or "state"
    for label, name, classes, hint in COLUMNS:
        order = {name: "ascending", f"-{name}": "descending"}.get(in_force, "") if name else ""
        falls = order == "ascending" or (not order and name in _FALLS_FIRST)
        turned = f"-{name}" if falls else name
        url = address.but(sort=None if turned == "state" else turned) if name else ""
        found.append(Heading(label, classes, hint, url, order))
    return found


def filter_bar(asked: FleetInAddress, about: Range, found: FleetView) -> FilterBar:
    """Return what the page offers to ask for."""
    filtered, address = asked.filtered, asked.address(about)
    heard = [group for group in found.groups if group.heard]
    counts = {
        Show.ALL: sum(group.jobs for group in heard),
        Show.SLOW: sum(group.jobs for group in heard if group.slow),
        Show.NONE: sum(group.jobs for group in heard if not group.verdict),
    }
    words = {Show.ALL: "All", Show.SLOW: "Slow", Show.NONE: "No verdict", Show.ARCHIVED: "Archive"}
    shows = [
        Choice(
            show.value,
            # The archive is counted where it is looked at, and nothing else is there.
            word if asked.archived or show not in counts else f"{word} {count(counts[show])}",
            filtered.show is show,
            address.but(show=None if show is Show.ALL else show.value),
        )
        for show, word in words.items()
    ]
    # Also what is chosen and nothing has any more.
    owners = sorted({*found.owners, filtered.owner} - {""}, key=str.lower)
    kept = {name: address.parameters[name] for name in ("show", "sort", "range", "from", "to")}
    narrowed = bool(filtered.words or filtered.owner or filtered.label)
    return FilterBar(
        words=filtered.words,
        shows=shows,
        owners=[Choice(owner, owner, owner == filtered.owner) for owner in owners],
        label=filtered.label,
        kept=[(name, value) for name, value in kept.items() if value],
        cleared_url=address.but(q=None, owner=None, label=None) if narrowed else "",
    )

"""What the page of a host says of jobs that run on it now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.dashboard.ui import html, moments
from app.dashboard.ui.csv_text import Table
from app.dashboard.ui.format import count, heat_color, plural, seconds, times
from app.dashboard.ui.parts import StateLabel
from app.dashboard.ui.places import job_url
from app.dashboard.ui.tables import Drawn, Shown, drawn

if TYPE_CHECKING:
    from datetime import datetime

    from app.services.pulse.hosts import HostNotice, HostNow, HostRank

_GOES_ON: Final = StateLabel("pending", "Goes on", 0)
_OVER: Final = StateLabel("resolved", "Over", 5)


@dataclass(frozen=True, slots=True)
class HostLive:
    """Ranks of a host now, and what was noticed of them; None where there is nothing."""

    ranks: Drawn | None
    ranks_title: str
    notices: Drawn | None
    notices_title: str


def host_live(found: HostNow, csv: str, now: datetime) -> HostLive:
    """Return what pulses say of a host."""
    number, open_now = len(found.ranks), sum(one.cleared_at is None for one in found.notices)
    return HostLive(
        drawn(_RANKS, found.ranks, csv=f"{csv}/pulse.csv") if found.ranks else None,
        f"{plural(number, 'rank')} among the slowest now" if number else "",
        drawn(_noticed(now), found.notices, csv=f"{csv}/notices.csv") if found.notices else None,
        f"{plural(len(found.notices), 'notice')} of its ranks, {count(open_now)} open",
    )


def ranks_csv(found: HostNow) -> Table:
    """Return the ranks of a host that are among the slowest of a job now."""
    header = ("job", "rank", "gpu", "ratio", "step_s")
    return Table(header, ([getattr(one, name) for name in header] for one in found.ranks))


def notices_csv(found: HostNow) -> Table:
    """Return what was noticed of a host, the latest first."""
    header = ("job", "noticed_at", "cleared_at", "sentence")
    return Table(header, ([getattr(one, name) for name in header] for one in found.notices))


FILES: Final = {"pulse": ranks_csv, "notices": notices_csv}

_RANKS: Final[tuple[Shown[HostRank], ...]] = (
    Shown("Job", lambda one: html.link(job_url(one.job), one.job), of_cells="grow"),
    Shown("Rank", lambda one: count(one.rank), classes="num"),
    Shown("GPU", lambda one: one.gpu, classes="num"),
    Shown(
        "Computing",
        lambda one: html.swatch(heat_color(one.ratio)) + times(one.ratio),
        classes="num",
        hint="Against the median of the ranks of its stage, in the last minute",
    ),
    Shown("Step", lambda one: seconds(one.step_s), classes="num opt"),
)


def _noticed(now: datetime) -> tuple[Shown[HostNotice], ...]:
    return (
        Shown("Noticed", lambda one: moments.when(one.noticed_at, now), of_cells="nowrap"),
        Shown("State", lambda one: html.state(_GOES_ON if one.cleared_at is None else _OVER)),
        Shown("Job", lambda one: html.link(job_url(one.job), one.job), classes="opt"),
        Shown("What", lambda one: one.sentence[:1].upper() + one.sentence[1:], of_cells="grow"),
    )

"""What the list of jobs says of those whose pulse comes now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.dashboard.ui import html
from app.dashboard.ui.format import count, percent, plural, seconds
from app.dashboard.ui.places import job_url
from app.dashboard.ui.tables import Shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from app.dashboard.fleet.lines import SessionLine
    from app.services.pulse.fleet import LiveStep

# A smaller change of the step time is none.
_CHANGED: Final = 0.02
# Jobs without a session that are named.
_NAMED: Final = 12


@dataclass(frozen=True, slots=True)
class LiveJobs:
    """The jobs that run, by name, and what is said of them all."""

    by_name: Mapping[str, LiveStep]
    words: str
    # name, address and step time of jobs that have sent no session
    unrecorded: Sequence[tuple[str, str, str]]
    unrecorded_more: int


def live_jobs(found: Sequence[LiveStep]) -> LiveJobs:
    """Return what the fleet's page says of jobs that run."""
    suspected = sum(bool(one.suspicions) for one in found)
    words = f"{count(len(found))} live" if found else ""
    if suspected:
        words += f", {count(suspected)} suspected"
    without = [one for one in found if not one.recorded]
    return LiveJobs(
        {one.job: one for one in found},
        words,
        [(one.job, job_url(one.job), words_of(one)) for one in without[:_NAMED]],
        max(0, len(without) - _NAMED),
    )


LIVE: Final[Shown[SessionLine]] = Shown(
    "Live",
    lambda line: _cell(line.live),
    classes="num opt",
    hint="Step time of the last minute, and its change against the last hour",
    title=lambda line: words_of(line.live),
)


def words_of(live: LiveStep | None) -> str:
    """Return what is said of a job that runs; empty of another one."""
    if live is None:
        return ""
    changed = _change(live)
    said = f"A step takes {seconds(live.step_s)}{f', {changed}' if changed else ''}"
    return ". ".join([said, *live.suspicions])


def _cell(live: LiveStep | None) -> Markup | str:
    if live is None:
        return html.NOTHING
    step = seconds(live.step_s)
    if live.suspicions:
        return html.join((html.glyph("pending", "suspected"), " ", step))
    changed = _change(live)
    return html.join((step, " ", html.muted(changed))) if changed else step


def _change(live: LiveStep) -> str:
    if abs(live.change) < _CHANGED:
        return ""
    return f"{'+' if live.change > 0 else ''}{percent(live.change, 0)}"


def unrecorded_title(jobs: LiveJobs) -> str:
    """Return what is said of jobs that run and have sent no session."""
    number = len(jobs.unrecorded) + jobs.unrecorded_more
    return f"{plural(number, 'job')} live, without a session yet"

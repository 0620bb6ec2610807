"""What the page of a host says of its latest probe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from app.dashboard.ui import html
from app.dashboard.ui.csv_text import Table
from app.dashboard.ui.format import percent, plural
from app.dashboard.ui.parts import StateLabel
from app.dashboard.ui.tables import Drawn, Shown, drawn
from app.services.probes.read import ProbeRow
from app.services.probes.verdict import ENOUGH, SLOW_BELOW, Measure, ProbeOutcome
from app.services.probes.words import WORDS, reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from markupsafe import Markup

    from app.services.hosts.repairs import Repair
    from app.services.probes.read import ProbeView
    from app.services.probes.verdict import JudgedDevice

# Of a host, and, in a word, of a device.
_STATES: Final = {
    ProbeOutcome.CONFIRMED: StateLabel("slow", "Confirmed by probe", 1),
    ProbeOutcome.CLEARED: StateLabel("ok", "Cleared by probe", 5),
    ProbeOutcome.UNCLEAR: StateLabel("pending", "Unclear by probe", 3),
    ProbeOutcome.NO_PEERS: StateLabel("pending", "Probed", 4, quiet=True),
}
_IN_A_WORD: Final = {
    outcome: replace(state, word=outcome.value.capitalize()) for outcome, state in _STATES.items()
}
_HEADINGS: Final = {
    Measure.MATMUL: "Products",
    Measure.MEMORY_COPY: "Memory",
    Measure.HOST_TO_DEVICE: "From host",
    Measure.DEVICE_TO_HOST: "To host",
    Measure.ALL_REDUCE: "All-reduce",
}


@dataclass(frozen=True, slots=True)
class ProbePart:
    """The latest probe; `state` is what it says of the host as it is, None after a repair."""

    at: datetime
    state: StateLabel | None
    title: str
    note: str
    devices: Drawn


def probe_part(view: ProbeView | None, repairs: Sequence[Repair], csv: str) -> ProbePart | None:
    """Return what a probe says; None where the host was never probed."""
    if view is None:
        return None
    repaired = any(one.at > view.at for one in repairs)
    title = _title(view)
    return ProbePart(
        at=view.at,
        state=None if repaired else _STATES[view.outcome],
        title=f"{title}, before the last repair" if repaired else title,
        note=f"Against the median of other {_models(view)}; below {percent(SLOW_BELOW, 0)} and "
        "outside of what the others reach is slow",
        devices=drawn(_columns(view), view.devices, csv=f"{csv}/probes.csv"),
    )


def probes_csv(rows: Sequence[ProbeRow]) -> Table:
    """Return what probes found of each device of a host, the latest first."""
    return Table.of(ProbeRow, rows)


def _title(view: ProbeView) -> str:
    if view.outcome is ProbeOutcome.NO_PEERS:
        return f"Probed; {ENOUGH} or more other devices of its kind make a comparison"
    if view.outcome is ProbeOutcome.CLEARED:
        return f"Cleared by probe: {plural(len(view.devices), 'device')} as fast as their like"
    said = "Confirmed" if view.outcome is ProbeOutcome.CONFIRMED else "Unclear"
    return f"{said} by probe: {reason_of(view)}"


def _models(view: ProbeView) -> str:
    return ", ".join(sorted({device.model for device in view.devices}))


def _columns(view: ProbeView) -> tuple[Shown[JudgedDevice], ...]:
    measured = [one for one in Measure if any(one in device.measures for device in view.devices)]
    return (
        Shown("GPU", lambda one: one.index, title=lambda one: one.gpu or one.model),
        *(_column(measure) for measure in measured),
        Shown("Says", lambda one: html.state(_IN_A_WORD[one.outcome]), of_cells="nowrap"),
    )


def _column(measure: Measure) -> Shown[JudgedDevice]:
    what, unit = WORDS[measure]

    def cell(device: JudgedDevice) -> str | Markup:
        figure = device.measures.get(measure)
        if figure is None:
            return "failed" if device.fault else ""
        value = f"{figure.value:,.4g}"
        if figure.ratio is None:
            return value
        ratio = html.element("span", percent(figure.ratio, 0), class_="note by")
        return html.join([value, ratio])

    return Shown(
        _HEADINGS[measure],
        cell,
        classes="num" if measure is Measure.MATMUL else "num opt",
        hint=f"{what[:1].upper()}{what[1:]}, {unit}",
    )

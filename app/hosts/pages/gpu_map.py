"""Heat map of a host: a row for each GPU, a column for each of equal parts of the period."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from app.analysis.replay.metrics import STRAGGLING
from app.analysis.trace.rank_metadata import short_uuid
from app.hosts.detail import HostView, gpu_key, names_of_gpus
from app.hosts.pages.list import named_gpus
from app.web.format import age, heat_color, times
from app.web.moments import Form, When
from app.web.time_ranges import Range

COLUMNS: Final = 30
CELL_WIDTH: Final = 24
CELL_HEIGHT: Final = 16
LEFT: Final = 64
RIGHT: Final = 48
BOTTOM: Final = 18
TOP: Final = 16
_TICKS: Final = 4
# Length of a column's part of the period from which on ticks show only the date.
_LONG: Final = timedelta(hours=12)
_GPU_CHARS: Final = 9
# Name of the only row if the metadata do not name GPUs.
WHOLE: Final = "host"


@dataclass(frozen=True, slots=True)
class Cell:
    """A GPU in one part of the period: a cell of the map."""

    x: int
    y: int
    color: str
    hint: str
    begin: When  # shown in the hint


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A row of the map: display name of a GPU, vertical centre, latest value."""

    name: str
    y: float
    latest: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A repair, marked on the map."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A labeled time below the map."""

    x: float
    when: When


@dataclass(frozen=True, slots=True)
class GpuMap:
    """The map; parts of the period without a session are hatched."""

    title: str
    note: str
    width: int
    height: int
    rows: Sequence[GpuRow]
    cells: Sequence[Cell]
    ticks: Sequence[Tick]
    repairs: Sequence[Mark]

    @property
    def inner(self) -> tuple[int, int, int, int]:
        """Return x, y, width and height of the area of the cells."""
        return LEFT, TOP, COLUMNS * CELL_WIDTH, len(self.rows) * CELL_HEIGHT


def gpu_map(view: HostView, about: Range) -> GpuMap | None:
    """Return the map of a host over a period; None if the period has no session."""
    if not view.sessions:
        return None
    end = view.now if about.end is None else min(view.now, about.end)
    begin = about.since(view.now) or view.sessions[-1].received_at
    end = max(end, begin + timedelta(minutes=COLUMNS))
    part = (end - begin) / COLUMNS
    form = Form.DAY if part >= _LONG else Form.SHORT
    columns = [When(begin + at * part, form, view.now) for at in range(COLUMNS)]
    against_peers = any(item.computing is not None for item in view.sessions)
    values, latest = _values(view, begin, part, against_peers=against_peers)
    called = {WHOLE: WHOLE, **names_of_gpus(view.sessions)}
    names = sorted(values, key=lambda key: (len(called[key]), called[key], key))
    cells = [
        Cell(
            LEFT + at * CELL_WIDTH,
            TOP + row * CELL_HEIGHT,
            heat_color(value),
            f"{_label(called[name])}{'' if called[name] == name else f', {short_uuid(name)}'}, "
            f"{columns[at].text}: {times(value)}",
            columns[at],
        )
        for row, name in enumerate(names)
        for at, value in sorted(values[name].items())
    ]
    measure = "Time against peers of its stage" if against_peers else "Slowdown of the job by it"
    return GpuMap(
        title=_title(values, called),
        note=f"{measure}, of all jobs: the largest in each {age(part.total_seconds())}; "
        "hatched: no session",
        width=LEFT + COLUMNS * CELL_WIDTH + RIGHT,
        height=TOP + len(names) * CELL_HEIGHT + BOTTOM,
        rows=[
            GpuRow(
                _label(called[name])[:_GPU_CHARS],
                TOP + (row + 0.5) * CELL_HEIGHT,
                times(latest[name]),
            )
            for row, name in enumerate(names)
        ],
        cells=cells,
        ticks=[
            Tick(
                LEFT + COLUMNS * CELL_WIDTH * tick / _TICKS,
                When(begin + (end - begin) * (tick / _TICKS), form, view.now, bare=True),
            )
            for tick in range(_TICKS + 1)
        ],
        repairs=[
            Mark(LEFT + COLUMNS * CELL_WIDTH * ((item.at - begin) / (end - begin)), item.what)
            for item in view.repairs
            if begin <= item.at <= end
        ],
    )


def _values(
    view: HostView, begin: datetime, part: timedelta, *, against_peers: bool
) -> tuple[dict[str, dict[int, float]], dict[str, float]]:
    """Return the largest value of each GPU in each part of the period, and its latest value."""
    values: dict[str, dict[int, float]] = {}
    latest: dict[str, float] = {}
    measure = "computing" if against_peers else "slowdown"
    for session in view.sessions:
        at = min(max(int((session.received_at - begin) / part), 0), COLUMNS - 1)
        own = [(gpu_key(gpu), gpu[measure]) for gpu in session.gpus]
        if not own:
            own = [(WHOLE, session.computing if against_peers else session.slowdown)]
        for name, value in own:
            if value is not None:
                parts = values.setdefault(name, {})
                parts[at] = max(value, parts.get(at, 0.0))
                latest.setdefault(name, value)
    return values, latest


def _title(values: dict[str, dict[int, float]], called: Mapping[str, str]) -> str:
    name, most = max(
        ((name, max(parts.values())) for name, parts in values.items()), key=lambda item: item[1]
    )
    if most < STRAGGLING:
        return f"No GPU was above {times(STRAGGLING)}"
    label = _label(called[name])
    return f"{label[:1].upper()}{label[1:]} reached {times(most)}"


def _label(name: str) -> str:
    return named_gpus([name])

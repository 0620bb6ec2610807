"""Parts of plotly figures: layout, axes, lines and annotations.

Colors are design tokens (``var(--text)``); the page's script replaces them by the colors of the
current theme.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from app.web.format import SCALE_STOPS

Figure = dict[str, Any]

TEXT: Final = "var(--text)"
TEXT_2: Final = "var(--text-2)"
LINE: Final = "var(--line)"
BASE: Final = "var(--mark)"
BAR: Final = "var(--line-strong)"

AXIS_SIZE: Final = 11
# A gap between steps of more than this multiple of the median distance begins a new recorded
# stretch.
STRETCH_FACTOR: Final = 8
TICK_FACTORS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


def nice_tick(span: float, wanted: int) -> float:
    """Return a round distance between ticks that divides `span` into about `wanted` parts."""
    raw = span / wanted
    magnitude = 10.0 ** math.floor(math.log10(raw))
    return next(
        factor * magnitude for factor in TICK_FACTORS if factor * magnitude >= raw * (1 - 1e-9)
    )


def stretch_starts(steps: Sequence[int]) -> list[int]:
    """Return the indices at which a new recorded stretch of steps begins."""
    distances = [after - before for before, after in pairwise(steps)]
    if not distances:
        return []
    usual = sorted(distances)[len(distances) // 2]
    return [
        position
        for position, distance in enumerate(distances, start=1)
        if distance > STRETCH_FACTOR * max(1, usual)
    ]


def base_layout(*, margin: Mapping[str, int]) -> Figure:
    """Return the layout that all figures share."""
    return {
        "autosize": True,
        "margin": {**margin, "pad": 0, "autoexpand": False},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "dragmode": False,
        "hovermode": "x",
        "font": {"family": "var(--font)", "size": AXIS_SIZE, "color": TEXT_2},
        "hoverlabel": {
            "bgcolor": "var(--bg)",
            "bordercolor": BAR,
            "font": {"family": "var(--font)", "size": 12, "color": TEXT},
            "align": "left",
        },
    }


def axis(*, title: str | None = None, **options: object) -> Figure:
    """Return an axis without lines and grid; `options` are options of plotly's axes."""
    bare: Figure = {
        "fixedrange": True,
        "zeroline": False,
        "showgrid": False,
        "showline": False,
        "ticks": "",
        "gridcolor": LINE,
        "tickcolor": BASE,
        "ticklen": 4,
        "automargin": False,
        "tickfont": {"size": AXIS_SIZE, "color": TEXT_2},
    }
    if title:
        bare["title"] = {
            "text": title,
            "standoff": 4,
            "font": {"size": AXIS_SIZE, "color": TEXT_2},
        }
    return bare | options


def color_scale() -> list[list[object]]:
    """Return the fixed color scale of slowdowns."""
    return [
        [index / (len(SCALE_STOPS) - 1), f"var({stop})"] for index, stop in enumerate(SCALE_STOPS)
    ]


def level(value: float, color: str, *, dash: str = "solid") -> Figure:
    """Return a horizontal line across the figure at a value of its vertical axis."""
    return {
        "type": "line",
        "xref": "paper",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"color": color, "width": 1, "dash": dash},
    }


def corner(text: str) -> Figure:
    """Return the unit of the vertical axis, as an annotation above the axis."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 2,
        "text": text,
        "showarrow": False,
        "font": {"size": AXIS_SIZE, "color": TEXT_2},
    }


def rounded(value: float | None) -> float | None:
    """Return a value rounded to the digits that a figure can show."""
    return None if value is None else round(value, 4)

"""Plots of the docs: what stands where."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from benchmarks.svg import Axis, Series, plot

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_legend_covers_no_point_whatever_is_plotted(count: int) -> None:
    highest = [(0.0, 1.0), (1.0, 1.0)]
    series = [Series(f"a series of the number {n}", highest, f"#00000{n}") for n in range(count)]
    series.append(Series("a line", highest, "#ffffff", line=True))
    drawn = ET.fromstring(  # noqa: S314 - our own text
        plot("Title", Axis("x", 0, 1, [0, 1]), Axis("y", 0, 1, [0, 1]), series)
    )
    colors = {one.color for one in series}
    squares = [one for one in drawn.iter(f"{SVG}rect") if one.get("width") == "10"]
    assert {square.get("fill") for square in squares} == colors
    points = [float(one.get("cy", "nan")) for one in drawn.iter(f"{SVG}circle")]
    [line] = drawn.iter(f"{SVG}polyline")
    points += [float(y) for y in re.findall(r",([\d.]+)", line.get("points", ""))]
    lowest = max(float(square.get("y", "nan")) + 10 for square in squares)
    assert lowest < min(points)
    places = {(square.get("x"), square.get("y")) for square in squares}
    assert len(places) == len(series)
    assert all(float(square.get("x", "nan")) < 500 for square in squares)

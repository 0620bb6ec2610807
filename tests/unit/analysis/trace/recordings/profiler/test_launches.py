from __future__ import annotations

import random
from bisect import bisect_right

import pytest

from app.analysis.trace.recordings.profiler import launches as device
from app.analysis.trace.recordings.profiler.launches import launched_kernels
from app.analysis.trace.recordings.profiler.scan import Scan, Span

RANGES = [Span(start, start + 60, event) for event, start in enumerate(range(0, 5000, 100))]


def one_by_one(
    scan: dict[str, list[tuple[int, int]]], kernels: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int]]:
    """Return range, start and work of each kernel that a range launched, by a slow algorithm."""

    def place_of(links: list[tuple[int, int]], wanted: int) -> int | None:
        for start, number in links:
            if number == wanted and wanted >= 0:
                place = bisect_right([span.start for span in RANGES], start) - 1
                return place if place >= 0 and start <= RANGES[place].end else None
        return None

    found = []
    for start, correlation, external, work in kernels:
        place = place_of(scan["launches"], correlation)
        place = place_of(scan["operators"], external) if place is None else place
        if place is not None:
            found.append((place, start, work))
    return found


@pytest.mark.parametrize("at_once", [1, 7, 1 << 18])
def test_each_kernel_belongs_to_the_range_that_launched_it(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(device, "_AT_ONCE", at_once)
    drawn = random.Random(at_once)  # noqa: S311 - nothing secret
    # Some correlation numbers occur twice, and some refer to nothing.
    links = {
        kind: [(drawn.randrange(-50, 5100), drawn.randrange(-1, 40)) for _ in range(45)]
        for kind in ("launches", "operators")
    }
    kernels = [
        (drawn.randrange(9000), drawn.randrange(-1, 60), drawn.randrange(-1, 60), work % 3 - 1)
        for work in range(80)
    ]
    scan = Scan()
    for start, number in links["launches"]:
        scan.launches.add(start, number)
    for start, number in links["operators"]:
        scan.operators.add(start, number)
    for start, correlation, external, work in kernels:
        scan.kernels.add(Span(start, start + 5, 0), correlation, external, work)

    found = [
        (place, start, work)
        for some in launched_kernels(scan, RANGES)
        for place, start, work in zip(some.place, some.start, some.work, strict=True)
    ]
    assert len(found) > 10
    assert found == one_by_one(links, kernels)

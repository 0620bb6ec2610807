from __future__ import annotations

import numpy as np

from app.analysis.report.document import Report
from app.sessions.pages.figures import first_map
from tests.support.reports import changed


def with_map(report: Report, exact: list[list[float]]) -> Report:
    return changed(report, by_worker__exact=exact, sizes__dp=len(exact), sizes__pp=len(exact[0]))


def test_cells_of_a_color_are_one_path_with_dp_across_and_stages_down(
    slow_worker: Report,
) -> None:
    found = first_map(with_map(slow_worker, [[1.0, 1.0], [1.0, 1.0], [1.0, 1.6]]))
    assert found is not None
    assert (found.dp, found.pp, found.dense) == (3, 2, False)
    paths = dict(found.paths)
    assert paths["var(--s-150)"] == "M2 1h1v1h-1z"
    assert paths["var(--s-100)"].count("M") == 5


def test_neighbors_of_a_color_in_a_large_map_are_one_rectangle(slow_worker: Report) -> None:
    exact = np.ones((1024, 16))
    exact[100:110, 3] = 1.2
    found = first_map(with_map(slow_worker, exact.tolist()))
    assert found is not None
    assert found.dense
    assert [path for _, path in found.paths] == ["M0 0h1024v16h-1024z", "M100 3h10v1H100z"]


def test_a_map_too_long_for_the_first_response_is_left_to_the_script(
    slow_worker: Report,
) -> None:
    exact = np.random.default_rng(0).uniform(1, 1.5, (1024, 64))
    assert first_map(with_map(slow_worker, exact.tolist())) is None

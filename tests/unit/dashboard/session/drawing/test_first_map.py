from __future__ import annotations

import numpy as np

from app.analysis.report.document import Report
from app.dashboard.session.drawing.first_map import MOST_CELLS, first_map
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


def test_a_map_too_large_for_the_first_response_is_left_to_the_script(
    slow_worker: Report,
) -> None:
    exact = np.ones((MOST_CELLS // 4 + 1, 4)).tolist()
    assert first_map(with_map(slow_worker, exact)) is None
